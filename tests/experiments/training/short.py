"""Short trainings of a study's runs, whole and interrupted."""

import json
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from experiments.specs.expand import study_runs
from experiments.specs.read import load_study
from experiments.specs.run import RunSpec
from experiments.training import loop as training
from experiments.training.state import Saved
from tests.experiments.specs.edit import edited

STUDY = load_study("sparsity_library")
RUNS = {run.spec.method: run for run in study_runs(STUDY, "smoke")}


def short_spec(method: str, steps: int = 24, **changes) -> RunSpec:
    """The smoke run of a method, with fewer steps and updates that fall into them."""

    def shorten(spec):
        spec["recipe"].update(steps=steps, batch_size=4)
        if spec["sparsity"] and "update" in spec["sparsity"]:
            spec["sparsity"]["update"] = {"freq": 3, "stop": 18}
        spec.update(changes)

    return edited(RUNS[method].spec, shorten)


def run_training(spec, corpus, folder, *, code_hash="1" * 64, **options) -> dict:
    places = {"data_dir": corpus, "out": folder / "out", "state_dir": folder / "state" / "run"}
    training.train(spec, code_hash=code_hash, command="test", **places, **options)
    return json.loads((folder / "out" / "train.json").read_text())


def weights(folder: Path) -> bytes:
    return (folder / "out" / "model" / "model.safetensors").read_bytes()


@contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, *ends: int, saves: tuple[int, ...] = ()):
    """Trainings save after some steps, and are interrupted after a save at those of ``ends``."""
    step, states = training.Trainer.step, []

    def noted(*arguments):
        states.append(Saved(*arguments))
        return states[-1]

    def step_then_die(trainer):
        loss = step(trainer)
        if trainer.progress.step in (*saves, *ends):
            states[-1].save(trainer.progress.step, trainer.state())
        if trainer.progress.step in ends:
            raise KeyboardInterrupt
        return loss

    with monkeypatch.context() as patch:
        patch.setattr(training.Trainer, "step", step_then_die)
        patch.setattr(training, "Saved", noted)
        yield


def with_and_without_interruptions(
    spec: RunSpec,
    data: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    steps: tuple[int, ...],
    execution: str = "auto",
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train a run whole, and again with an end after each of some steps; the weights are equal.

    Returns:
        ``train.json`` of the interrupted training, and of the whole one.
    """
    whole, parts = folder / "whole", folder / "parts"
    expected = run_training(spec, data, whole, execution=execution)
    with dying(monkeypatch, *steps):
        for _ in steps:
            with pytest.raises(KeyboardInterrupt):
                run_training(spec, data, parts, execution=execution)
        result = run_training(spec, data, parts)
    assert weights(parts) == weights(whole)
    assert not (parts / "state" / "run").exists()
    return result, expected
