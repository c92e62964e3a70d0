"""Rows of a run's curve, and ``train.json``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments import machine
from experiments.store.io import write_json, write_whole
from experiments.store.paths import STATES
from experiments.training.device import gpu_facts
from sparse_lib.masks.counts import num_true

if TYPE_CHECKING:
    from experiments.training.trainer import Trainer


def flops(trainer: Trainer, measured: dict[str, Any]) -> dict[str, int]:
    """FLOPs so far, and those of the same steps without masks, as the library counts them.

    Args:
        measured: `Trainer.measure`; empty for a dense run.
    """
    dense = trainer.progress.step * trainer.flops.training_step()
    executed = measured["flops"]["run"] if measured else dense
    return {"executed": executed, "dense_equivalent": dense}


def train_row(trainer: Trainer, loss: float) -> dict[str, Any]:
    """A row of the training curve; ``loss`` is the mean since the last one, in nats."""
    progress, task = trainer.progress, trainer.task
    measured = trainer.measure()
    spent = flops(trainer, measured)
    units = progress.step * task.units_per_step
    return {
        "kind": "train",
        "step": progress.step,
        task.unit: units,
        "loss": loss,
        "learning_rate": task.learning_rate(progress.step - 1),
        "sparsity": measured.get("sparsity", 0.0),
        "drop_fraction": measured.get("drop_fraction"),
        "churn": measured.get("churn"),
        "itop": measured.get("itop"),
        "flops_executed": spent["executed"],
        "flops_dense": spent["dense_equivalent"],
        "elapsed_s": round(progress.elapsed_s, 3),
        f"{task.unit}_per_s": round(units / max(progress.elapsed_s, 1e-9), 1),
    }


def validation_row(trainer: Trainer, scores: dict[str, float]) -> dict[str, Any]:
    """A row of the validation curve: all that the task measured.

    ``trained_s`` are the seconds of the steps before it, without earlier validations, and
    ``trained_cpu_s`` what the process computed in them: much less on one thread says that others
    had the core.
    """
    progress, task = trainer.progress, trainer.task
    return {
        "kind": "validation",
        "step": progress.step,
        task.unit: progress.step * task.units_per_step,
        "trained_s": round(progress.elapsed_s - progress.validating_s, 3),
        "trained_cpu_s": round(progress.cpu_s - progress.validating_cpu_s, 3),
        **scores,
    }


def facts(trainer: Trainer) -> dict[str, Any]:
    """A finished run's facts, without paths or host names."""
    progress, unit, measured = trainer.progress, trainer.task.unit, trainer.measure()
    last = {row["kind"]: row for row in progress.rows}
    final = last["train"]
    place = ("kind", "step", unit, "trained_s", "trained_cpu_s")
    scores = {k: v for k, v in last["validation"].items() if k not in place}
    num_masked = 0
    if trainer.sparsity is not None:
        masks = [param.mask for param in trainer.sparsity.sparse_params.values()]
        num_masked = sum(mask.numel() - num_true(mask) for mask in masks)
    num_parameters = sum(p.numel() for p in trainer.model.parameters())
    origin = {"transform": trainer.transform, "first_weights": trainer.first_weights}
    here = trainer.machine()
    return {
        **{key: value for key, value in origin.items() if value is not None},
        "data": trainer.task.data,
        "versions": machine.versions(),
        "cpu": here["processor"],
        "machine": here,
        "device": str(trainer.device),
        "execution": trainer.execution,
        **({"skip_costs": trainer.skip_costs} if trainer.skip_costs else {}),
        "num_threads": trainer.num_threads,
        **compute(trainer),
        "wall_s": round(progress.elapsed_s, 2),
        **({"borrowed_s": round(trainer.borrowed_s, 2)} if trainer.borrowed_s else {}),
        "num_parameters": num_parameters,
        "num_nonzero": num_parameters - num_masked,
        "final": {
            "train_loss": final["loss"],
            **{f"validation_{name}": value for name, value in scores.items()},
            "steps": final["step"],
            **{name: final[name] for name in (unit, f"{unit}_per_s", "sparsity", "itop")},
        },
        "flops": flops(trainer, measured),
        "layers": [
            {"name": name, **values} for name, values in measured.get("tensors", {}).items()
        ],
    }


def compute(trainer: Trainer) -> dict[str, Any]:
    """How the run was computed, where that is not in float32 on a CPU."""
    chosen = {
        "precision": (trainer.precision, "fp32"),
        "compile": (trainer.compile, False),
        "gpu": (gpu_facts(trainer.device), {}),
    }
    found = {key: value for key, (value, usual) in chosen.items() if value != usual}
    return {"compute": found} if found else {}


def write(trainer: Trainer, out: Path, kept: Path, *, code_hash: str, command: str) -> None:
    """The files of a finished run; ``train.json`` last, since it says that the rest is there.

    Args:
        kept: folder with the states that other runs continue, if it exists.
    """
    text = "".join(json.dumps(row) + "\n" for row in trainer.progress.rows)
    write_whole(out / "metrics.jsonl", text.encode())
    trainer.export(out / "model")
    if kept.is_dir():
        shutil.copytree(kept, out / "model" / STATES)
    spec = trainer.spec
    identity = {"run": spec.id, "spec": spec.to_json(), "spec_hash": spec.hash}
    record = {**identity, "code_hash": code_hash, **facts(trainer), "command": command}
    write_json(out / "train.json", record)
