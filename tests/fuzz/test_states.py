"""Damaged training states: the run ends with the bits of an undisturbed one, whatever they hold."""

from __future__ import annotations

import functools
import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.specs.expand import study_runs
from experiments.specs.read import load_study
from experiments.specs.run import RunSpec
from experiments.training import exports
from experiments.training import loop as training
from tests.experiments.specs.edit import edited
from tests.fuzz import inputs, oracle
from tests.fuzz.test_singles import prepared

STEPS = 6


@functools.cache
def spec() -> RunSpec:
    """RigL on a very small decoder."""

    def shrink(value: dict[str, Any]) -> None:
        value["model"].update(hidden_size=8, intermediate_size=12, num_layers=1)
        value["data"]["context"] = 8
        value["recipe"].update(steps=STEPS, batch_size=2, validation_tokens=64, validations=1)
        value["sparsity"]["update"] = {"freq": 2, "stop": 5}

    study = load_study("sparsity_library")
    run = next(r for r in study_runs(study, "smoke") if r.spec.method == "rigl")
    return edited(run.spec, shrink)


def train(folder: Path) -> str:
    """Train in a folder that holds data; returns the digest of the weights and masks."""
    training.train(
        spec(),
        code_hash="1" * 64,
        command="fuzz",
        data_dir=folder / "data",
        out=folder / "out",
        state_dir=folder / "state" / "run",
    )
    model = folder / "out" / "model"
    content = (model / "model.safetensors").read_bytes() + (model / exports.MASKS).read_bytes()
    return hashlib.sha256(content).hexdigest()


class Killed(BaseException):
    """In place of SIGKILL."""


@functools.cache
def interrupted() -> tuple[dict[str, bytes], str]:
    """The files of the state folder half-way through a run, and what the run ends with."""
    step = training.Trainer.step

    def step_and_die(trainer: training.Trainer) -> float:
        if trainer.progress.step in (3, 4):
            trainer.save()
        if trainer.progress.step == 4:
            raise Killed
        return step(trainer)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepared(folder / "data")
        training.Trainer.step = step_and_die  # type: ignore[method-assign]
        try:
            train(folder)
        except Killed:
            pass
        finally:
            training.Trainer.step = step  # type: ignore[method-assign]
        files = {
            path.relative_to(folder / "state").as_posix(): path.read_bytes()
            for path in (folder / "state").rglob("*")
            if path.is_file() and not path.name.endswith(".lock")
        }
        shutil.rmtree(folder / "state")
        return files, train(folder)


@st.composite
def damaged_states(draw: st.DrawFn) -> dict[str, bytes]:
    """The files of the state folder, of which some are damaged, doubled or gone."""
    whole = interrupted()[0]
    files = dict(whole)
    for name in draw(st.lists(st.sampled_from(sorted(whole)), min_size=1, unique=True)):
        fault = draw(st.integers(0, 6))
        if fault == 0:
            del files[name]
        elif fault == 1:
            files[name] = whole[draw(st.sampled_from(sorted(whole)))]
        elif fault == 2:
            files[f"{name}.part"] = draw(inputs.damaged(files[name]))
        else:
            files[name] = draw(inputs.damaged(files[name]))
    return files


def resume(folder: Path, files: dict[str, bytes]) -> str | None:
    """Train with the damaged state; the same command must end with the same bits."""
    prepared(folder / "data")
    for name, content in files.items():
        (folder / "state" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "state" / name).write_bytes(content)
    assert train(folder) == interrupted()[1]
    return None


@oracle.budget(short=30, share=0.02)
@given(damaged_states())
def test_a_damaged_state_changes_no_bit_of_the_result(files):
    oracle.judge("training states", lambda folder: resume(folder, files), files)


@pytest.mark.parametrize("content", [b"", b"\x00" * 64, b"PK\x03\x04"])
def test_a_state_without_content_changes_no_bit(content):
    files = dict.fromkeys(interrupted()[0], content)
    oracle.judge("training states", lambda folder: resume(folder, files), files)


def test_an_interrupted_run_leaves_states():
    assert interrupted()[0]
