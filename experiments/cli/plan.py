"""`plan`: what runs cost before any is trained, in core-seconds, or on GPUs."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.cli.inspect import check_runs
from experiments.cli.options import Scale, app
from experiments.errors import UserError
from experiments.specs.expand import BUDGET_CORE_S, all_runs, computation_costs
from experiments.specs.needs import STRATEGIES
from experiments.specs.read import check_study, load_study, study_names
from experiments.specs.run import Run
from experiments.specs.schema import SpecError, check_choice
from experiments.store.paths import DATA
from experiments.store.reference import reusable

if TYPE_CHECKING:
    from experiments.training.resources import Needs

#: Scales that are meant for GPUs.
GPU_SCALES = ("gpu", "paper")
UNITS = {"MB": 10**6, "GB": 10**9, "MIB": 2**20, "GIB": 2**30}


@app.command("plan")
def print_plan(
    scale: Scale = "quick",
    study: str = "all",
    gpu: Annotated[
        bool | None,
        typer.Option("--gpu/--cpu", help="needs on GPUs, or core-seconds; default: by the scale"),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, max=1024, help="GPUs of a run; default: its recipe's")
    ] = None,
    strategy: Annotated[str | None, typer.Option(help="of several: ddp or fsdp2")] = None,
    micro_batches: Annotated[
        int | None, typer.Option(min=1, help="parts of a step's samples; default: its recipe's")
    ] = None,
    precision: Annotated[str, typer.Option(help="bf16 or fp32")] = "bf16",
    kind: Annotated[str, typer.Option(help="of GPU: h100 or a100")] = "h100",
    memory: Annotated[str | None, typer.Option(help="of a GPU, such as 80GB; default: its")] = None,
    flops_per_s: Annotated[
        float | None,
        typer.Option(min=1.0, help="that a GPU does in training, masked work included"),
    ] = None,
    missing: Annotated[
        bool, typer.Option("--missing", help="only runs without a committed record that fits")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="for programs")] = False,
) -> None:
    """Print the runs of a scale and what they cost, in core-seconds or on GPUs.

    With --study, the library checks their configurations first, as `check` does of all studies.
    """
    check_study(study, "all")
    chosen = [
        run
        for run in all_runs(scale).values()
        if study in ("all", *run.studies) and not (missing and reusable(run, data_folder=DATA))
    ]
    if study != "all":
        check_runs(chosen)
    if not (scale in GPU_SCALES if gpu is None else gpu):
        _print_core_seconds(scale, study, chosen, as_json)
        return
    check_choice("precision", precision, ("bf16", "fp32"))
    if strategy is not None:
        check_choice("strategy", strategy, STRATEGIES)
    from experiments.training.resources import RESERVED, UTILISATION, Launched
    from sparse_lib.simulation.devices import device_spec

    check_choice("kind", kind, ("a100", "h100"))
    spec = device_spec(kind)
    device_bytes = int(spec.memory_bytes) if memory is None else _bytes(memory)
    if flops_per_s is None and precision != "bf16":
        raise SpecError("precision is 'fp32', of which no throughput is known: state --flops-per-s")
    rate = flops_per_s or UTILISATION * spec.peak_flops
    source = (
        "stated" if flops_per_s else f"assumed, {UTILISATION:.0%} of the peak of a {spec.title}"
    )
    launched = Launched(processes, strategy, precision, micro_batches)
    found, unknown = _all_needs(chosen, launched, device_bytes, rate)
    assumed = {
        "flops_per_s": rate,
        "throughput": source,
        "memory_bytes": device_bytes,
        "reserved_bytes": RESERVED,
        "cs2": "simulated, a lower bound",
    }
    if as_json:
        runs = [asdict(item) | {"fixed_bytes": item.memory.fixed} for item in found]
        print(json.dumps({"assumed": assumed, "runs": runs, "unknown": unknown}, indent=1))
        return
    for line in table(found):
        print(line)
    for name, why in unknown.items():
        print(f"{name}: {why}")
    hours = sum(item.gpu_hours for item in found)
    print(
        f"{len(found)} runs, {hours:,.0f} GPU-hours at {rate:.3g} FLOPs/s ({source}; not measured; "
        "masked work is done on a GPU, so sparsity saves none). GB are per process of "
        f"{device_bytes / 1e9:g}, {RESERVED / 1e9:g} of them reserved. CS-2: one system, simulated "
        "at its peak, a lower bound; * beyond all published sparsities."
    )


def _print_core_seconds(scale: str, study: str, chosen: list[Run], as_json: bool) -> None:
    """The cost on this CPU, as studies expect it."""
    chosen_studies = [name for name in study_names() if study in ("all", name)]
    names = {c.name for name in chosen_studies for c in load_study(name).computations}
    costs = {name: cost for name, cost in computation_costs(scale).items() if name in names}
    if as_json:
        runs = [
            {"run": run.id, "studies": run.studies, "core_seconds": run.core_seconds}
            for run in chosen
        ]
        print(json.dumps({"runs": runs, "computations": costs}, indent=1))
        return
    for run in chosen:
        print(f"{run.core_seconds:8.0f}  {run.id}  ({', '.join(run.studies)})")
    for name, cost in costs.items():
        print(f"{cost:8.0f}  computation {name}")
    total = sum(run.core_seconds for run in chosen) + sum(costs.values())
    print(f"{total:8.0f}  core-seconds in {len(chosen)} runs")
    budget = BUDGET_CORE_S.get(scale)
    if budget:
        planned = sum(run.core_seconds for run in all_runs(scale).values())
        planned += sum(computation_costs(scale).values())
        over = f", over it by {planned - budget:,.0f}" if planned > budget else ""
        print(f"{planned:8.0f}  of all studies, whose budget is {budget:,}{over}")


def _bytes(text: str) -> int:
    """Bytes of an amount such as ``80GB``."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)\s*([MG]i?B)", text.strip(), re.IGNORECASE)
    if not found:
        raise SpecError(f"memory is {text!r}, but must be a number with MB, GB, MiB or GiB")
    return int(float(found[1]) * UNITS[found[2].upper()])


def _all_needs(
    chosen: Iterable[Run], launched: Any, device_bytes: int, rate: float
) -> tuple[list[Needs], dict[str, str]]:
    """The needs of runs, and why those of others are unknown; seeds share the work."""
    from experiments.training.resources import needs

    found: list[Needs] = []
    unknown: dict[str, str] = {}
    known: dict[str, Needs | str] = {}
    for run in chosen:
        facts = run.spec.to_json()
        for key in ("id", "seed", "suite", "starts_from"):
            facts.pop(key, None)
        if isinstance(facts["sparsity"], dict):
            facts["sparsity"].pop("seed", None)
        key = json.dumps(facts)
        if key not in known:
            try:
                known[key] = needs(run, launched, device_bytes=device_bytes, flops_per_s=rate)
            except (UserError, ValueError) as error:
                known[key] = str(error)
        item = known[key]
        if isinstance(item, str):
            unknown[run.id] = item
        else:
            found.append(replace(item, run=run.id))
    return found, unknown


HEADINGS = (
    "runs", "params", "left", "FLOPs", "needed", "states", "masks", "sample", "as said", "parts",
    "then", "GPU-h", "CS-2 h",
)  # fmt: skip


def table(found: Iterable[Needs]) -> list[str]:
    """Lines for people: a heading per model and data, and a line for runs that differ by seed.

    ``params`` is how many parameters the model has, zeros included, and ``left`` the share that the
    last masks leave, ``FLOPs`` all and ``needed`` the
    unmasked ones. GB of each process: ``states`` (weights, gradients, optimizer, and what is
    gathered), ``masks``, what one ``sample`` adds, ``as said`` with the recipe's or the command's
    micro-batches, and ``then`` with as many ``parts`` as it takes to fit.
    """
    lines: list[str] = []

    def workload(item: Needs) -> tuple[Any, ...]:
        return item.model, item.data, item.units, item.processes, item.strategy

    for _, group in itertools.groupby(sorted(found, key=workload), key=workload):
        items = list(group)
        first = items[0]
        of = f", {first.processes} processes, {first.strategy}" if first.processes > 1 else ""
        lines.append(
            f"{first.model} on {first.data}: {first.units:,} {first.unit} a run, "
            f"{first.precision}{of}"
        )
        width = max(len(item.method) for item in items)
        lines.append("  " + " " * width + "".join(f"{name:>10}" for name in HEADINGS))
        rows: dict[tuple[str, ...], int] = {}
        for item in items:
            rows[_cells(item)] = rows.get(_cells(item), 0) + 1
        for (method, *cells), number in rows.items():
            values = [str(number), *cells]
            lines.append(f"  {method:<{width}}" + "".join(f"{value:>10}" for value in values))
        lines.append("")
    return lines


def _cells(item: Needs) -> tuple[str, ...]:
    from experiments.training.resources import RESERVED

    memory, parts = item.memory, item.micro_batches
    states = memory.fixed - memory.masks
    of_parts = item.samples * item.parts // parts if parts else 0
    return (
        item.method,
        f"{item.num_weights / 1e6:,.1f}M",
        f"{item.num_left / item.num_weights:.1%}",
        f"{item.flops_dense:.3g}",
        f"{item.flops:.3g}",
        f"{states / 1e9:.2f}",
        f"{memory.masks / 1e9:.2f}",
        f"{(memory.sample + memory.largest) / 1e9:.3f}",
        f"{item.bytes / 1e9:.1f}",
        str(parts) if parts else "never",
        f"{(memory.peak(of_parts) + RESERVED) / 1e9:.1f}" if parts else "-",
        f"{item.gpu_hours:.3g}",
        f"{item.cs2_hours:.3g}" + "*" * ("extrapolated" in item.cs2_label),
    )
