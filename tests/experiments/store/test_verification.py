"""Whether a run that was trained again came out as recorded, in words and as a number."""

import copy

import pytest

from experiments.errors import UserError
from experiments.store import paths, reference, verification
from tests.experiments.analysis import kept

RECORD = kept.make(seeds=1)[0]
LOSS = 4.0


def record(loss=LOSS, machine="a", **changed):
    """A record that ends at a loss, made on a machine."""
    made = copy.deepcopy(RECORD)
    made["final"] = {"validation_loss": loss, "tokens_per_s": 5.0}
    made["machine"] = {"processor": machine, "num_threads": 1}
    made["layers"] = made["layers"] or [{"name": "w"}]
    return made | changed


def test_other_masks_scores_and_data_are_a_difference_and_times_none():
    slower = record(wall_s=99.0, cpu="another")
    slower["curve"] = [row | {"elapsed_s": 7.0, "tokens_per_s": 1.0} for row in slower["curve"]]
    found = verification.judge(record(), slower)
    assert found.verdict == "same bits" and found.is_good
    for part, key, value in (("layers", "sparsity", 0.123), ("curve", "loss", 9.0)):
        (other := record())[part][0][key] = value
        assert verification.judge(record(), other).verdict == "differs"
    (other := record())["evaluation"]["scores"][0]["value"] = 77.0
    assert "score" in verification.judge(record(), other).why
    other = record(data={"name": "d", "hash": "another"})
    assert "data hash" in verification.judge(record(), other).why
    new = record(), record(4.001, "b"), record(9.0, "b")
    said = "2 of 3 runs came out as recorded (1 same bits, 1 within rounding, 1 differs)"
    assert verification.summary([verification.judge(record(), one) for one in new]) == said


@pytest.mark.parametrize(
    ("loss", "machine", "seeds", "verdict"),
    [
        (4.003, "b", (), "within rounding"),  # 0.1% of 4 is 0.004
        (4.005, "b", (), "differs"),
        (4.003, "a", (), "differs"),  # the same machine gives the same bits
        (4.25, "b", (3.9, 4.0, 4.1), "within rounding"),  # three standard deviations are 0.3
        (4.35, "b", (3.9, 4.0, 4.1), "differs"),
        (None, "b", (), "differs"),
    ],
)
def test_another_machine_may_round_otherwise(loss, machine, seeds, verdict):
    found = verification.judge(record(), record(loss, machine), seeds=seeds)
    assert found.verdict == verdict
    assert (found.recorded, found.new, found.metric) == (LOSS, loss, "validation_loss") or not loss


def test_pages_say_how_often_and_where_runs_were_trained_again(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "REFERENCE", tmp_path)
    monkeypatch.setattr(reference, "entries", lambda: {"x": None, "y": None})
    assert verification.words(("x", "y")) == ""
    found = [("x", "a", "same bits"), ("x", "b", "within rounding"), ("gone", "a", "same bits")]
    items = [
        verification.Verified(run, word, "loss", 1.0, 1.0, "", ("a", where))
        for run, where, word in found
    ]
    verification.keep(items[:1])
    verification.keep(items)
    said = "1 of 2 runs, on 2 kinds of machine: as recorded"
    assert verification.words(("x", "y")) == said
    verification.keep([items[1]._replace(verdict="differs")])
    assert verification.words(("x",)).endswith(": 1 differed")
    assert {row["run"] for row in verification.kept()} == {"x"}


@pytest.mark.parametrize(
    "text",
    ["", "run,machine\nx,a\n", "run,machine,verdict\nx,a,same\n", "run,machine,verdict\nx\n"],
)
def test_a_damaged_file_of_verdicts_is_one_sentence(text, tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "REFERENCE", tmp_path)
    (tmp_path / "verified.csv").write_text(text)
    with pytest.raises(UserError, match=r"verified\.csv is damaged: .* restore it by git checkout"):
        verification.words(("x",))
