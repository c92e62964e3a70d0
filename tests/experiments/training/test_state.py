"""Saved states: of this code and data only, whole or left out, and no room is no end."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from experiments.data.files import seal
from experiments.errors import CannotWrite, UserError
from experiments.training import loop as training
from experiments.training.state import NUM_KEPT, Saved
from tests.experiments.training.short import dying, run_training, short_spec, weights


@pytest.fixture
def killed(monkeypatch):
    """Train until it is killed after a save, with another before it; gives the folder."""

    def run(folder, corpus):
        with dying(monkeypatch, 16, saves=(7,)), pytest.raises(KeyboardInterrupt):
            run_training(short_spec("rigl"), corpus, folder)
        return folder

    return run


def states(folder: Path) -> list[Path]:
    """The states of the run in a folder, by step."""
    return sorted(
        (folder / "state" / "run").glob("state-*.pt"), key=lambda path: int(path.stem.split("-")[1])
    )


def start_of(text: str) -> int:
    """Step at which a training went on, by what it says."""
    found = re.search(r"resumes at step (\d+)", text)
    return int(found.group(1)) if found else 0


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory):
    """The weights of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    run_training(short_spec("rigl"), corpus, folder)
    return weights(folder)


@pytest.mark.parametrize("part", ["code", "data"])
def test_a_state_of_other_code_or_data_is_left(part, killed, corpus, tmp_path, capsys, whole):
    killed(tmp_path, corpus)
    data = shutil.copytree(corpus, tmp_path / "data")
    if part == "data":
        meta = json.loads((data / "meta.json").read_text()) | {"hash": "other"}
        seal(data, meta, data.glob("*.bin"))
    capsys.readouterr()
    code_hash = "2" * 64 if part == "code" else "1" * 64
    result = run_training(short_spec("rigl"), data, tmp_path, code_hash=code_hash)
    said = capsys.readouterr().out
    assert f"the {part} has changed since step 16, so the run starts from the beginning" in said
    assert start_of(said) == 0 and weights(tmp_path) == whole  # code and tokens are the same
    assert (result["code_hash"], result["data"]["hash"] == "other") == (code_hash, part == "data")


def test_a_validation_split_without_a_window_is_refused_before_a_step(corpus, tmp_path):
    data = shutil.copytree(corpus, tmp_path / "data")
    (data / "validation.bin").write_bytes((data / "validation.bin").read_bytes()[:64])
    seal(data, json.loads((data / "meta.json").read_text()), data.glob("*.bin"))
    with pytest.raises(UserError, match=r"the validation split of .* has only 32 tokens"):
        run_training(short_spec("dense"), data, tmp_path)
    assert not (tmp_path / "out").exists()


def test_states_that_are_kept_repeat_the_end_of_a_run(corpus, tmp_path, killed, capsys):
    """While a result is scored, the states stay: Snakemake deletes the model of a killed job."""
    run_training(short_spec("rigl"), corpus, tmp_path / "whole")
    run_training(short_spec("rigl"), corpus, killed(tmp_path, corpus), keep_states=True)
    shutil.rmtree(tmp_path / "out")
    capsys.readouterr()
    run_training(short_spec("rigl"), corpus, tmp_path)
    assert start_of(capsys.readouterr().out) == 24 and not states(tmp_path)
    assert weights(tmp_path) == weights(tmp_path / "whole")


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2  # of a tensor, which torch does not check
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize(
    ("num_damaged", "damage", "start"),
    [(1, lambda content: content[: len(content) // 2], 7), (1, flipped, 7), (2, lambda _: b"", 0)],
    ids=["cut", "one byte flipped", "both empty"],
)
def test_damaged_states_are_named_and_the_one_before_them_is_taken(
    num_damaged, damage, start, killed, corpus, tmp_path, capsys, whole
):
    killed(tmp_path, corpus)
    damaged = states(tmp_path)[-num_damaged:]
    for path in damaged:
        path.write_bytes(damage(path.read_bytes()))
    capsys.readouterr()
    run_training(short_spec("rigl"), corpus, tmp_path)
    said = capsys.readouterr().out
    assert all(f"{path} is damaged and is left out" in said for path in damaged)
    assert start_of(said) == start and weights(tmp_path) == whole and not states(tmp_path)


def test_a_few_states_are_kept_and_a_torn_write_is_none(tmp_path):
    said = []
    saved = Saved(tmp_path, {"code": "a"}, said.append)
    for step in (9, 10, 100):
        saved.save(step, {"step": step})
    (tmp_path / "state.part").write_bytes(b"half a st")
    assert len(saved.files()) == NUM_KEPT
    assert saved.newest()["step"] == 100 and not said


def full(folder: Path) -> None:
    """Let the next state of a folder go to a device without room."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "state.part").symlink_to("/dev/full")


needs_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full of Linux")


@needs_full
def test_a_full_disk_is_named_and_older_states_stay(tmp_path):
    saved = Saved(tmp_path, {"code": "a"}, print)
    saved.save(1, {"step": 1})
    full(tmp_path)
    with pytest.raises(OSError, match=f"{tmp_path}/state cannot be written: No space left"):
        saved.save(2, {"step": 2, "more": torch.zeros(10**6)})
    assert saved.newest()["step"] == 1


@needs_full
def test_a_training_goes_on_without_room_for_states_and_log(corpus, tmp_path, capsys, whole):
    full(tmp_path / "state" / "run")
    run_training(short_spec("rigl"), corpus, tmp_path, log=Path("/dev/full"))
    said = capsys.readouterr().out
    assert "No space left on device; the training goes on" in said
    assert "(the log /dev/full cannot be written: No space left on device)" in said
    assert weights(tmp_path) == whole


def test_the_state_is_removed_after_the_summary(corpus, tmp_path, monkeypatch):
    seen, summary = [], tmp_path / "out" / "train.json"
    monkeypatch.setattr(Saved, "remove", lambda _: seen.append(summary.is_file()))
    monkeypatch.setattr(Saved, "newest", lambda _: None)
    run_training(short_spec("dense", steps=2), corpus, tmp_path)
    assert seen == [True]


def test_no_room_for_the_weights_is_one_sentence(tmp_path, monkeypatch):
    def full(*_args, **_options):
        raise SafetensorError("Error while serializing: I/O error: No space left on device")

    monkeypatch.setattr("safetensors.torch.serialize_file", full)
    with pytest.raises(CannotWrite, match=f"{tmp_path} cannot be written: .*No space left"):
        with training.writing(tmp_path):
            save_file({"x": torch.zeros(9)}, tmp_path / "x")
