"""Damaged training states: the run ends with the bits of an undisturbed one, whatever they hold."""

from __future__ import annotations

import functools
import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from experiments.data.files import seal
from experiments.specs.expand import study_runs
from experiments.specs.read import load_study
from experiments.specs.run import RunSpec
from experiments.training import exports
from experiments.training import loop as training
from tests.experiments.specs.edit import edited

STEPS = 6


def prepared(folder: Path) -> Path:
    """Random tokens in the layout of prepared data."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for split in ("train", "validation", "test"):
        rng.integers(0, 300, 400).astype(np.uint16).tofile(folder / f"{split}.bin")
    (folder / "tokenizer").mkdir()
    meta = {"name": "wikipedia-start", "hash": "random", "vocab_size": 300, "eos_id": 0}
    seal(folder, meta, folder.glob("*.bin"))
    return folder


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
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes that are flipped, cut, doubled or overwritten; never the same as before."""
    place = draw(st.integers(0, max(0, len(content) - 1)))
    fault = draw(st.integers(0, 4))
    if fault == 0:
        return content[:place]
    if fault == 1:
        odd = draw(st.sampled_from([b"\xff\xfe", b"\x00", b"\xc3", b"\x85", b"\xed\xa0\x80"]))
        return content[:place] + odd + content[place:]
    if fault == 2:
        length = draw(st.integers(1, 64))
        return content[:place] + bytes(length) + content[place + length :]
    if fault == 3:
        return content + content[place:] + b"\x00"
    changed = bytearray(content or b"\x00")
    changed[place % len(changed)] ^= draw(st.integers(1, 255))
    return bytes(changed)


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
            files[f"{name}.part"] = draw(damaged(files[name]))
        else:
            files[name] = draw(damaged(files[name]))
    return files


def resume(folder: Path, files: dict[str, bytes]) -> None:
    """Train with the damaged state; the same command must end with the same bits."""
    prepared(folder / "data")
    for name, content in files.items():
        (folder / "state" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "state" / name).write_bytes(content)
    assert train(folder) == interrupted()[1]


@settings(max_examples=30, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(damaged_states())
def test_a_damaged_state_changes_no_bit_of_the_result(files):
    assert interrupted()[0]
    with tempfile.TemporaryDirectory() as folder:
        resume(Path(folder), files)


@pytest.mark.parametrize("content", [b"", b"\x00" * 64, b"PK\x03\x04"])
def test_a_state_without_content_changes_no_bit(content, tmp_path):
    resume(tmp_path, dict.fromkeys(interrupted()[0], content))
