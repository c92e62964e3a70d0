"""Committed records: found by run, in place of new runs, and folded in."""

import json
import re

import pytest

import experiments
from experiments.specs.code import training_code_hash
from experiments.specs.lookup import known_runs
from experiments.store import parquet, paths, reference

SMOKE = known_runs("smoke")
FIRST, SECOND, *_ = sorted(SMOKE)


def record_of(name, **changed):
    """A short record of a run, made with the code of here."""
    run = SMOKE[name]
    row = {"kind": "train", "step": 1, "loss": 2.5, "churn": None, "flops_executed": 7}
    return {
        "run": name, "spec": run.spec.to_json(), "spec_hash": run.spec_hash, "command": "again",
        "code_hash": training_code_hash(run.spec), "data": {"name": "d", "hash": "of the data"},
        "versions": {"torch": "2"}, "cpu": "c", "num_threads": 1, "wall_s": 1.5,
        "num_parameters": 4, "num_nonzero": 2, "flops": {"executed": 7, "dense_equivalent": 9},
        "layers": [], "evaluation": None, "curve": [row, {**row, "step": 2, "loss": 2.25}],
        **changed,
    }  # fmt: skip


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working folder without committed records."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(paths, "REFERENCE", tmp_path / "reference")
    return tmp_path


def test_a_committed_record_is_reused_only_if_spec_and_data_agree(place):
    run, data = SMOKE[FIRST], place / "data"
    assert not reference.reusable(run, data_folder=data)
    reference.fold([record_of(FIRST)])
    assert reference.reusable(run, data_folder=data)
    meta = data / run.data_label / "meta.json"
    meta.parent.mkdir(parents=True)
    meta.write_text('{"hash": "of the data"}')
    assert reference.reusable(run, data_folder=data)
    meta.write_text('{"hash": "other"}')
    assert not reference.reusable(run, data_folder=data)
    meta.unlink()
    parquet.write([record_of(FIRST, spec_hash="old")], paths.REFERENCE / run.studies[0])
    assert not reference.reusable(run, data_folder=data)


def test_a_folded_record_replaces_its_run_and_what_no_study_plans_leaves(place):
    home = paths.REFERENCE / SMOKE[FIRST].studies[0]
    parquet.write([record_of(FIRST, spec_hash="old"), record_of(SECOND)], home)
    parquet.write([record_of(FIRST) | {"run": "gone"}], paths.REFERENCE / "retired")
    assert reference.fold([record_of(FIRST, wall_s=9.0)])
    assert reference.entries().keys() == {FIRST, SECOND}
    assert reference.find(FIRST)["wall_s"] == 9.0
    assert not list((paths.REFERENCE / "retired").glob("*"))
    assert reference.fold([]) == []
    parquet.write([record_of(FIRST, spec_hash="old"), record_of(SECOND)], home)
    assert reference.fold([]) and reference.entries().keys() == {SECOND}  # of the spec of today


def test_show_prints_a_record_as_it_was_and_its_command(place, call):
    reference.fold([record_of(FIRST)])
    code, said = call("show", FIRST)
    record, comment = said.split("# ")
    assert code == 0 and json.loads(record) == record_of(FIRST)
    assert comment == "committed; again: again\n"
    own = paths.run("smoke", FIRST) / "record.json"
    own.parent.mkdir(parents=True)
    own.write_text(json.dumps(record_of(FIRST, command="mine")))
    assert call("show", FIRST)[1].endswith("again: mine\n")
    said = call("show", FIRST + "1")[1]
    assert re.search(rf"did you mean '{FIRST}'.*in commit de8e87e8\)$", said)


def test_committed_records_answer_for_todays_runs(tmp_path):
    """A new key of the spec must not change the hash of runs that do not use it."""
    committed, planned = reference.entries(), known_runs()
    assert committed
    for name in committed:
        assert reference.reusable(planned[name], data_folder=tmp_path)


def test_a_studys_results_are_dataframes_and_what_is_not_there_is_one_sentence():
    records, curves, scores = experiments.load("sparsity_library", scale="small")
    committed = reference.find_all(records["run"])
    assert len(records) == len(committed) > 100
    row = records.iloc[5]
    record = committed[row["run"]]
    assert row["method"] == record["spec"]["method"] and row["committed"]
    own = curves[curves["run"] == row["run"]]
    assert list(own["loss"]) == [point["loss"] for point in record["curve"]]
    values = [score["value"] for score in record["evaluation"]["scores"]]
    assert list(scores.loc[scores["run"] == row["run"], "value"]) == values
    for study, scale, words in (
        ("sparsity_librari", "small", "did you mean 'sparsity_library'.*de8e87e8"),
        ("sparsity_library", "tiny", "scale is 'tiny', but must be one of"),
        ("sparsity_library", "paper", "no finished run at scale 'paper'"),
    ):
        with pytest.raises(ValueError, match=words):
            experiments.load(study, scale)
