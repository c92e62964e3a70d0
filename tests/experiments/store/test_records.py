"""Records: merging, thinning, tidy tables and what a partial study gives."""

import json
from pathlib import Path

import pandas as pd
import pytest

from experiments.store import records
from tests.experiments.analysis import synthetic


@pytest.fixture(scope="module")
def made():
    return synthetic.make(records.make_record)


def test_a_record_is_small_and_keeps_the_ends_of_its_curve(made):
    for record in made:
        assert len(record["curve"]) <= 200
        assert record["curve"][-1]["step"] == 120
        json.dumps(record, allow_nan=False)


def test_thinning_keeps_first_and_last_rows_of_each_kind_and_the_bound():
    rows = [{"kind": "train", "step": s, "churn": 0.1 if s % 10 == 0 else None} for s in range(999)]
    rows += [{"kind": "validation", "step": s} for s in range(0, 999, 3)]
    kept = records.thin_curve(rows, max_rows=100)
    assert len(kept) <= 100
    for kind, last in (("train", 998), ("validation", 996)):
        steps = [row["step"] for row in kept if row["kind"] == kind]
        assert steps[0] == 0 and steps[-1] == last
    assert sum(row.get("churn") is not None for row in kept) == 25


def test_final_loss_is_the_mean_of_the_last_tenth():
    rows = [{"kind": "train", "loss": float(loss)} for loss in range(20)]
    assert records.final_loss(rows) == 18.5
    assert records.final_loss([]) is None


def test_a_torn_last_line_is_ignored_and_an_earlier_one_is_an_error(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"st')
    assert records.read_jsonl(path) == [{"step": 1}]
    path.write_text('{"st\n{"step": 1}\n')
    with pytest.raises(ValueError, match="line 1"):
        records.read_jsonl(path)


def test_records_of_two_runs_do_not_mix(made):
    train = {key: made[0][key] for key in made[0] if key not in ("curve", "evaluation")}
    with pytest.raises(ValueError, match="eval.json is of run other"):
        records.make_record(train, {"run": "other", "scores": []}, [])


def test_collect_reads_back_as_it_was_and_skips_missing_files(made, tmp_path):
    study = synthetic.study(made)
    files = []
    for record in made:
        files.append(tmp_path / "runs" / f"{record['run']}.json")
        records.write_record(record, files[-1])
    files[0].unlink()
    path = records.collect(files, study, tmp_path / "out" / "records.csv")
    table = records.read_records(path)
    pd.testing.assert_frame_equal(table, records.records_table(made[1:], study))
    pd.testing.assert_frame_equal(table, pd.read_parquet(path.with_suffix(".parquet")))
    assert list(table.columns) == list(records.RECORD_COLUMNS)
    assert list(records.read_curves(path.with_name("curves.csv"))) == list(records.CURVE_COLUMNS)
    assert records.missing_runs(table, study) == [made[0]["run"]]


def test_hashes_stay_text(made, tmp_path):
    study = synthetic.study(made)
    records.write_record(made[0], tmp_path / "r.json")
    table = records.read_records(records.collect([tmp_path / "r.json"], study, tmp_path))
    assert set(table["spec_hash"]) == {"0123456789"}


def test_the_evaluation_goes_before_training(made):
    table = records.records_table(made[:1], synthetic.study(made))
    chosen = records.validation_perplexity(table)
    assert list(chosen["task"]) == ["perplexity"]
    without = table[table["task"] == "training"]
    assert list(records.validation_perplexity(without)["task"]) == ["training"]


def test_mean_accuracy_adds_variances():
    rows = [
        {"value": 0.4, "stderr": 0.03, "chance": 0.5, "num_items": 10},
        {"value": 0.6, "stderr": 0.04, "chance": 0.25, "num_items": 20},
    ]
    average = records._average(rows)
    assert average["value"] == pytest.approx(0.5)
    assert average["stderr"] == pytest.approx(0.025)
    assert average["chance"] == pytest.approx(0.375)


def test_a_group_of_tasks_counts_once(made):
    record = json.loads(json.dumps(made[0]))
    shared = {"metric": "acc", "stderr": 0.1, "num_items": 10, "higher_is_better": True}
    record["evaluation"]["scores"] = [
        {"task": "blimp_a", "value": 0.1, "chance": 0.5, **shared},
        {"task": "blimp_b", "value": 0.3, "chance": 0.5, **shared},
        {"task": "blimp", "value": 0.2, "chance": 0.5, **shared},
        {"task": "arc_easy", "value": 0.4, "chance": 0.25, **shared},
        {"task": "lambada", "value": 0.9, "chance": None, **shared},
    ]
    rows = pd.DataFrame(records.record_rows(record, {"name": ""})).set_index("metric")
    assert rows.loc["accuracy_mean", "value"] == pytest.approx(0.3)
    assert rows.loc["accuracy_mean", "chance"] == pytest.approx(0.375)


def test_the_leaderboard_has_a_mean_of_its_own(made):
    record = json.loads(json.dumps(made[0]))
    shared = {"stderr": 0.1, "num_items": 10, "chance": 0.25, "higher_is_better": True}
    shared["truncated_fraction"] = 0.0
    cut = shared | {"truncated_fraction": 1.0}
    scores = [
        {"task": "arc_challenge", "metric": "acc", "value": 0.9, **shared},
        {"task": "arc_challenge", "metric": "acc_norm", "value": 0.1, **cut},
        {"task": "hellaswag", "metric": "acc_norm", "value": 0.2, **cut},
        {"task": "mmlu_law", "metric": "acc", "value": 0.9, **shared},
        {"task": "mmlu", "metric": "acc", "value": 0.3, **shared},
        {"task": "truthfulqa_mc2", "metric": "acc", "value": 0.4, **shared},
        {"task": "winogrande", "metric": "acc", "value": 0.5, **shared},
        {"task": "blimp", "metric": "acc", "value": 0.7, **shared},
    ]
    record["evaluation"]["scores"] = scores
    rows = pd.DataFrame(records.record_rows(record, {"name": ""})).set_index("metric")
    assert rows.loc["leaderboard_mean", "value"] == pytest.approx(0.3)
    assert rows.loc["leaderboard_mean", "truncated_fraction"] == pytest.approx(0.4)
    assert rows.loc["accuracy_mean", "value"] == pytest.approx(0.7)
    assert rows.loc["accuracy_mean", "truncated_fraction"] == 0.0

    record["evaluation"]["scores"] = scores[:-2]
    rows = pd.DataFrame(records.record_rows(record, {"name": ""}))
    assert "leaderboard_mean" not in set(rows["metric"])


def test_a_table_of_an_older_version_is_one_sentence(made, tmp_path):
    table = records.records_table(made[:1], synthetic.study(made)).drop(columns="chance")
    table.to_csv(tmp_path / "records.csv", index=False)
    with pytest.raises(ValueError, match=r"records.csv has no column chance: another version"):
        records.read_records(tmp_path / "records.csv")


def test_the_documented_columns_are_those_of_the_table():
    page = (Path(__file__).parents[3] / "docs/reports.md").read_text()
    section = page.split("## Records")[1].split("##")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:3] == "| `"]
    assert {name.strip("`"): text for name, text in rows} == records.RECORD_COLUMNS
