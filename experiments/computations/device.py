"""Speed-up by sparsity on a device: measured on this CPU, published and simulated for the CS-2.

Measured are one layer and one small GPT, on one thread, in CPU time, the variants in turn. All else
follows from shapes and from the facts in ``sparse_lib.simulation.devices``, and is labelled
*simulated*.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
from torch import nn

from experiments.computations import _measured as measured
from experiments.computations.flops import gpt
from experiments.machine import facts, keep_memory, key
from experiments.models import llama
from sparse_lib.flops.model import ModelFlops, count, gpt_training_step
from sparse_lib.simulation.devices import SPECS
from sparse_lib.simulation.devices.cs2 import MATMUL_SPEEDUP
from sparse_lib.simulation.host import probe_host
from sparse_lib.simulation.timing import MAX_PUBLISHED_SPARSITY, relative_time, simulate

CONTEXT, BATCH_SIZE = 2048, 768
STEP: dict[str, Any] = {"batch_size": BATCH_SIZE, "sequence_length": CONTEXT}


@dataclass(frozen=True)
class Sizes:
    """Extent of what is measured and simulated at a scale."""

    width: int
    rounds: int
    sparsities: tuple[float, ...]
    probe_s: float
    gpt: dict[str, int]
    gpt_rounds: int
    models: tuple[str, ...]


_QUICK = Sizes(
    width=1024,
    rounds=11,
    sparsities=(0.0, 0.25, 0.5, 0.65, 0.75, 0.8, 0.875, 0.9, 0.925, 0.95),
    probe_s=5.0,
    gpt={"num_layers": 4, "width": 256, "num_heads": 4, "context": 128, "batch_size": 16},
    gpt_rounds=5,
    models=("GPT-3 XL", "GPT-3 13B"),
)
_SMOKE = replace(
    _QUICK,
    width=256,
    rounds=3,
    sparsities=(0.5, 0.8, 0.9),
    probe_s=0.2,
    gpt={"num_layers": 2, "width": 64, "num_heads": 2, "context": 64, "batch_size": 4},
    gpt_rounds=2,
    models=("GPT-3 XL",),
)
SCALES = {"smoke": _SMOKE, "quick": _QUICK}


def compute(scale: str) -> dict[str, pd.DataFrame]:
    """All tables of the study ``device``; scales above ``quick`` compute what ``quick`` does."""
    sizes = SCALES.get(scale, _QUICK)
    keep_memory()  # as a training does
    with measured.one_thread():
        here = machine_row()
        host = probe_host(duration_s=sizes.probe_s)
        layer = measured.layer_speed(sizes.width, sizes.sparsities, sizes.rounds)
        amdahl, run_step = gpt_steps(layer, sizes), run_steps(layer, sizes)
    models = {name: build(name) for name in sizes.models}
    flops = {name: count(model, **STEP) for name, model in models.items()}
    steps = [row for name in models for row in simulated_steps(name, models[name], flops[name])]
    tables = {
        "facts": [row for spec in (*SPECS.values(), host) for row in spec.records()],
        "layer_speed": layer,
        "speedup": speedup_curves(layer),
        "steps": steps,
        "whole_model": whole_model(),
        "amdahl": amdahl,
        "run_step": run_step,
        "machine": [here],
    }
    for name in ("layer_speed", "amdahl", "run_step"):
        tables[name] = [{**row, "machine": here["machine"]} for row in tables[name]]
    return {name: pd.DataFrame(rows) for name, rows in tables.items()}


# Measured


def machine_row() -> dict[str, Any]:
    """The machine's key, as the tables with timings carry it, and its facts, of one thread."""
    found = facts(num_threads=1)
    versions, kernels = found.pop("versions"), found.pop("kernels")
    return {
        "machine": key({**found, "versions": versions, "kernels": kernels}),
        **found,
        "isa": " ".join(found["isa"]),
        "versions": "; ".join(f"{name} {version}" for name, version in versions.items()),
        "kernels": kernels.get("build"),
        "lanes": kernels.get("lanes"),
    }


def gpt_steps(layer: list[dict[str, Any]], sizes: Sizes) -> list[dict[str, Any]]:
    """Training step of a small GPT and its bound."""
    layers, width, heads = (sizes.gpt[name] for name in ("num_layers", "width", "num_heads"))
    rows = measured.bounded_steps(
        lambda: gpt(layers, width, heads, 256, sizes.gpt["context"], device="cpu"),
        layer,
        levels=(0.8, 0.9, 0.95),
        batch=(sizes.gpt["batch_size"], sizes.gpt["context"]),
        rounds=sizes.gpt_rounds,
        fastest=True,
    )
    return [{**sizes.gpt, **row} for row in rows]


def run_steps(layer: list[dict[str, Any]], sizes: Sizes) -> list[dict[str, Any]]:
    """Training step of the model that most runs of the studies train, as they do, and its bound."""
    rows = measured.bounded_steps(
        run_model, layer, (0.8,), (RUN_BATCH, RUN_CONTEXT), sizes.rounds, fastest=False
    )
    return [{"model": RUN, "batch_size": RUN_BATCH, "context": RUN_CONTEXT, **row} for row in rows]


# Curves


def speedup_curves(layer: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Speed-up of one layer by sparsity: measured here, published, simulated, and ideal."""
    rows = [
        {"series": "measured", "sparsity": row["sparsity"], "speedup": row["speedup"],
         "low": row["low"], "high": row["high"], "label": "measured on this CPU"}
        for row in layer
    ]  # fmt: skip
    rows += [
        {"series": "published", "sparsity": 1 - 1 / inverse, "speedup": value,
         "label": "published for the CS-2"}
        for inverse, value in MATMUL_SPEEDUP.items()
    ]  # fmt: skip
    c = SPECS["cs2"].sparse_overhead
    for sparsity in [0.0, 0.25, 0.5, 0.65, 0.75, 0.8, 0.85, 0.875, 0.9, 0.92, 0.94, 0.95]:
        beyond = " (extrapolated beyond 90%)" if sparsity > MAX_PUBLISHED_SPARSITY else ""
        rows.append(
            {"series": "simulated", "sparsity": sparsity,
             "speedup": 1 / relative_time(sparsity, c), "label": f"simulated{beyond}"}
        )  # fmt: skip
        rows.append(
            {"series": "ideal", "sparsity": sparsity, "speedup": 1 / (1 - sparsity),
             "label": "ideal"}
        )  # fmt: skip
    return [{"inverse_density": 1 / (1 - row["sparsity"]), **row} for row in rows]


# Layers, width and heads of GPT-2 Small and GPT-3 XL: SPDF, supplement table 2.
GPTS = {
    "GPT-2 Small": (12, 768, 12),
    "GPT-3 XL": (24, 2048, 16),
    "GPT-3 13B": (40, 5120, 40),
}
# The model, the batch and the context of most runs at the scale small.
RUN, RUN_BATCH, RUN_CONTEXT = "Llama 0.2M", 32, 128


def build(name: str) -> nn.Module:
    """A model by name, on the meta device: shapes without memory."""
    return gpt(*GPTS[name], 50257, CONTEXT)


def run_model() -> nn.Module:
    """The model of most runs."""
    config = llama.Config(hidden_size=64, intermediate_size=172, num_layers=2, num_heads=4)
    return llama.build(config, vocab_size=1024, context=RUN_CONTEXT, eos_id=0)


# Simulated


def simulated_steps(name: str, model: nn.Module, flops: ModelFlops) -> Iterator[dict[str, Any]]:
    """Time and energy of a training step on one system, by device and sparsity."""
    for device, sparsity in itertools.product(SPECS, (0.0, 0.75)):
        step = simulate(model, device, sparsity=sparsity, flops=flops, **STEP)
        yield {
            "model": name,
            "sparsity": sparsity,
            "batch_size": BATCH_SIZE,
            "context": CONTEXT,
            "tokens_per_s": BATCH_SIZE * CONTEXT / step.step_s,
            **step.record(),
        }


def whole_model() -> list[dict[str, Any]]:
    """Simulated whole-model speed-ups beside the FLOP ratios of SPDF's formula."""
    rows, unlimited = [], replace(SPECS["cs2"], stream_bandwidth=math.inf)
    for name in ("GPT-2 Small", "GPT-3 XL"):
        model, (num_layers, width, _) = build(name), GPTS[name]
        flops = count(model, **STEP)
        shape = {"num_layers": num_layers, "hidden_size": width, "vocab_size": 50257}
        for sparsity in (0.5, 0.75):
            dense, sparse = (
                gpt_training_step(**shape, sequence_length=CONTEXT, sparsity=level)
                for level in (0.0, sparsity)
            )
            row: dict[str, Any] = {"model": name, "sparsity": sparsity}
            row |= {"flops_ratio": dense / sparse, "label": "simulated"}
            for kind, device in (("compute_bound", unlimited), ("streaming", SPECS["cs2"])):
                seconds = [
                    simulate(model, device, sparsity=level, flops=flops, **STEP).step_s
                    for level in (0.0, sparsity)
                ]
                row[kind] = seconds[0] / seconds[1]
            rows.append(row)
    return rows
