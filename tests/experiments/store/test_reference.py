"""Committed records: found by run, in place of new runs, folded in, and trained again."""

import copy
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import experiments
from experiments.specs.code import training_code_hash
from experiments.specs.lookup import known_runs, planned_study
from experiments.specs.run import RunSpec
from experiments.specs.schema import SpecError
from experiments.store import parquet, paths, reference, results, verification
from tests.experiments.analysis import kept

SMOKE = known_runs("smoke")
FIRST, SECOND, *_ = sorted(SMOKE)


def record_of(name, **changed):
    """A short record of a run, made with the code of here."""
    run = SMOKE[name]
    row = {"kind": "train", "step": 1, "loss": 2.5, "churn": None, "flops_executed": 7}
    return {
        "run": name, "spec": run.spec.to_json(), "spec_hash": run.spec.hash, "command": "again",
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
    run = SMOKE[FIRST]
    assert not reference.reusable(run)
    reference.fold([record_of(FIRST)])
    assert reference.reusable(run)
    meta = place / "resources/data" / run.spec.data.label / "meta.json"
    meta.parent.mkdir(parents=True)
    meta.write_text('{"hash": "of the data"}')
    assert reference.reusable(run)
    meta.write_text('{"hash": "other"}')
    assert not reference.reusable(run)
    meta.unlink()
    parquet.write([record_of(FIRST, spec_hash="old")], paths.REFERENCE / run.studies[0])
    assert not reference.reusable(run)


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


def test_committed_records_answer_for_todays_runs(tmp_path, monkeypatch):
    """A new key of the spec must not change the hash of runs that do not use it."""
    monkeypatch.chdir(tmp_path)
    committed, planned = reference.entries(), known_runs()
    assert committed
    assert all(reference.reusable(planned[name]) for name in committed)


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


def test_records_of_other_settings_are_no_results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study = planned_study("erk", "small")
    records, curves = results.tables(study)
    folder = paths.study("small", "erk")
    folder.mkdir(parents=True)
    records.to_csv(folder / "records.csv", index=False)
    curves.to_csv(folder / "curves.csv", index=False)
    assert [len(table) for table in results.tables(study)] == [len(records), len(curves)]
    monkeypatch.setattr(RunSpec, "hash", property(lambda _: "changed"))
    assert [len(table) for table in results.tables(study)] == [0, 0]
    assert not len(results.scores(study))
    with pytest.raises(ValueError, match="no finished run"):
        experiments.load("erk", "small")


RECORD = kept.make(seeds=1)[0]
LOSS = 4.0


def ending(loss=LOSS, machine="a", **changed):
    """A ending that ends at a loss, made on a machine."""
    made = copy.deepcopy(RECORD)
    made["final"] = {"validation_loss": loss, "tokens_per_s": 5.0}
    made["machine"] = {"processor": machine, "num_threads": 1}
    made["layers"] = made["layers"] or [{"name": "w"}]
    return made | changed


def test_other_masks_scores_and_data_are_a_difference_and_times_none():
    slower = ending(wall_s=99.0, cpu="another")
    slower["curve"] = [row | {"elapsed_s": 7.0, "tokens_per_s": 1.0} for row in slower["curve"]]
    found = verification.judge(ending(), slower)
    assert found.verdict == "same bits" and found.is_good
    for part, key, value in (("layers", "sparsity", 0.123), ("curve", "loss", 9.0)):
        (other := ending())[part][0][key] = value
        assert verification.judge(ending(), other).verdict == "differs"
    (other := ending())["evaluation"]["scores"][0]["value"] = 77.0
    assert "score" in verification.judge(ending(), other).why
    assert "score" in verification.judge(ending(), ending(evaluation={"scores": []})).why
    assert "num_nonzero" in verification.judge(ending(), ending(num_nonzero=1)).why
    other = ending(data={"name": "d", "hash": "another"})
    assert "data hash" in verification.judge(ending(), other).why
    new = ending(), ending(4.001, "b"), ending(9.0, "b")
    said = "2 of 3 runs came out as recorded (1 same bits, 1 within rounding, 1 differs)"
    assert verification.summary([verification.judge(ending(), one) for one in new]) == said


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
    found = verification.judge(ending(), ending(loss, machine), seeds=seeds)
    assert found.verdict == verdict
    assert (found.recorded, found.new, found.metric) == (LOSS, loss, "validation_loss") or not loss


def test_pages_say_how_often_and_where_runs_were_trained_again(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "REFERENCE", tmp_path)
    monkeypatch.setattr(reference, "entries", lambda: {"x": None, "y": None})
    assert verification.repeats(("x", "y")) == ""
    found = [("x", "a", "same bits"), ("x", "b", "within rounding"), ("gone", "a", "same bits")]
    items = [
        verification.Verified(run, word, "loss", 1.0, 1.0, "", ("a", where))
        for run, where, word in found
    ]
    verification.keep(items[:1])
    verification.keep(items)
    said = "1 of 2 runs, on 2 kinds of machine: as recorded"
    assert verification.repeats(("x", "y")) == said
    verification.keep([items[1]._replace(verdict="differs")])
    assert verification.repeats(("x",)).endswith(": 1 differed")
    assert {row["run"] for row in verification.kept()} == {"x"}


FOLDER = Path("results/smoke")
FOLDERS = {
    "data": (paths.data, paths.DATA),
    "run": (lambda name: paths.run("smoke", name), FOLDER / "runs"),
    "study": (lambda name: paths.study("smoke", name), FOLDER),
    "page": (lambda name: paths.page("smoke", name), Path("reports/smoke")),
}
FOLDERS["computation"] = lambda name: paths.computation("smoke", name), FOLDER / "computations"


@pytest.mark.parametrize("scale", ["", ".", "..", "../../etc", "reference", "smoke/x"])
def test_a_scale_is_one_of_the_scales(scale):
    for folder in (paths.scale, paths.reports):
        with pytest.raises(SpecError, match="scale is"):
            folder(scale)


@pytest.mark.parametrize("name", paths.RESERVED)
def test_a_study_takes_no_folder_of_others(name):
    with pytest.raises(SpecError, match="folder of results"):
        paths.study("smoke", name)


@given(st.text(max_size=20), st.sampled_from(sorted(FOLDERS)))
def test_any_name_is_a_direct_child_or_refused(name, kind):
    folder, parent = FOLDERS[kind]
    try:
        found = folder(name)
    except SpecError:
        return
    assert found.parent == parent and found.name == name
    assert (Path("/top") / found).resolve() == Path("/top") / parent / name
