"""Records: merging, thinning, tidy tables, Parquet files, and what a partial study gives."""

import copy
import json

import pandas as pd
import pytest

from experiments import tasks
from experiments.errors import UserError
from experiments.store import parquet, tidy
from experiments.store.collect import (
    average,
    curves_table,
    record_rows,
    records_table,
    write_tables,
)
from experiments.store.io import read_jsonl
from experiments.store.record import final_loss, gather, read_record, thin_curve
from tests.experiments.analysis import kept


@pytest.fixture(scope="module")
def made():
    return kept.make()


def test_curves_are_thinned_to_a_bound_and_end_at_the_mean_of_the_last_tenth():
    rows = [{"kind": "train", "step": s, "churn": 0.1 if s % 10 == 0 else None} for s in range(999)]
    rows += [{"kind": "validation", "step": s} for s in range(0, 999, 3)]
    kept = thin_curve(rows)
    assert len(kept) <= 200
    for kind, last in (("train", 998), ("validation", 996)):
        steps = [row["step"] for row in kept if row["kind"] == kind]
        assert steps[0] == 0 and steps[-1] == last
    assert sum(row.get("churn") is not None for row in kept) == 50
    assert final_loss([{"kind": "train", "loss": float(loss)} for loss in range(20)]) == 18.5
    assert final_loss([]) is None


def test_lines_that_are_no_json_and_files_of_two_runs_are_named(tmp_path, made):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"text": "a\u2028b"}\n')  # which splits lines elsewhere
    assert read_jsonl(path) == [{"text": "a\u2028b"}]
    path.write_text('{"step": 1}\n{"st\n')
    with pytest.raises(ValueError, match="line 2"):
        read_jsonl(path)
    train = {key: made[0][key] for key in made[0] if key not in ("curve", "evaluation")}
    (tmp_path / "train.json").write_text(json.dumps(train))
    (tmp_path / "eval.json").write_text('{"run": "other", "scores": []}')
    with pytest.raises(ValueError, match="eval.json is of run other"):
        gather(tmp_path)
    (tmp_path / "eval.json").write_text('{"suite": "other", "scores": []}')
    (tmp_path / "metrics.jsonl").write_text("")
    gather(tmp_path)
    assert json.loads((tmp_path / "record.json").read_text())["spec"]["suite"] == "other"


def test_tables_are_read_back_as_they_were_and_not_those_of_an_older_version(made, tmp_path):
    study, path = kept.study(made), tmp_path / "out" / "records.csv"
    write_tables(made[1:], study, path.parent)
    table = tidy.read_records(path)
    expected = records_table(made[1:], study)
    expected["committed"] = expected["committed"].fillna(False)
    pd.testing.assert_frame_equal(table, expected)
    assert parquet.read(path.parent) == sorted(made[1:], key=lambda record: record["run"])
    assert list(table.columns) == list(tidy.RECORD_COLUMNS)
    assert list(tidy.read_curves(path.with_name("curves.csv"))) == list(curves_table(made))
    table = records_table(made[:1], kept.study(made)).drop(columns="chance")
    table.to_csv(tmp_path / "records.csv", index=False)
    with pytest.raises(ValueError, match=r"records.csv has no column chance: another version"):
        tidy.read_records(tmp_path / "records.csv")


def test_facts_come_from_the_spec_and_the_loss_from_more_of_the_split(made):
    table = records_table(made[:1], kept.study(made))
    assert list(tidy.validation_perplexity(table)["task"]) == ["training"]
    without = table[table["task"] == "perplexity"]
    assert list(tidy.validation_perplexity(without)["task"]) == ["perplexity"]
    record = copy.deepcopy(made[-1])
    assert record["spec"]["sparsity"]["algorithm"] == "gmp"
    record["run"] = record["spec"]["id"] = "gpt-s2__static-s0.99__seed7"
    record["spec"] |= {"final_sparsity": 0.875, "method": "mine"}
    record["spec"]["transform"] = {"family": "wide", "sparsity": 0.875}
    table = records_table([record], kept.study(made))
    facts = table[["algorithm", "family", "sparsity", "seed", "method"]].drop_duplicates()
    seed = record["spec"]["seed"]
    assert facts.values.tolist() == [["gmp", "wide", 0.875, seed, "mine"]]


def test_means_add_variances_and_the_leaderboard_takes_its_own_tasks_and_metrics(made):
    mean = average([scored("a", 0.4, 0.5, stderr=0.03), scored("b", 0.6, stderr=0.04)])
    assert mean["value"] == pytest.approx(0.5)
    assert mean["stderr"] == pytest.approx(0.025)
    assert mean["chance"] == pytest.approx(0.375)
    scores = [
        scored("arc_challenge", 0.9),
        scored("arc_challenge", 0.1, metric="acc_norm", truncated_fraction=1.0),
        scored("hellaswag", 0.2, metric="acc_norm", truncated_fraction=1.0),
        scored("mmlu_law", 0.9), scored("mmlu", 0.3), scored("truthfulqa_mc2", 0.4),
        scored("winogrande", 0.5), scored("blimp", 0.7),
    ]  # fmt: skip
    rows = rows_of(made[0], scores)
    assert rows.loc["leaderboard_mean", "value"] == pytest.approx(0.3)
    assert rows.loc["leaderboard_mean", "truncated_fraction"] == pytest.approx(0.4)
    assert "leaderboard_mean" not in rows_of(made[0], scores[:-2]).index


def scored(task, value, chance=0.25, **own):
    row = {"task": task, "value": value, "chance": chance, "metric": "acc", "stderr": 0.1}
    return row | {"num_items": 10, "truncated_fraction": 0.0} | own


def rows_of(record, scores):
    """The tidy rows of a record with these scores, by metric."""
    changed = record | {"evaluation": record["evaluation"] | {"scores": scores}}
    return pd.DataFrame(record_rows(changed, "")).set_index("metric")


def test_every_number_of_a_task_reaches_the_tables_in_its_unit(made, monkeypatch):
    record = copy.deepcopy(made[0])
    last = [row for row in record["curve"] if row["kind"] == "validation"][-1]
    last |= {"bits_per_pixel": 1.25, "perplexity": 9.0, "failed": None}
    table = records_table([record], kept.study(made))
    rows = table[table["split"] == "validation"].set_index("metric")
    assert rows.loc["bits_per_pixel", "value"] == 1.25
    assert "failed" not in rows.index
    curves = curves_table([record])
    assert curves.loc[curves["metric"] == "bits_per_pixel", "value"].tolist() == [1.25]
    task = tasks.lm.Task
    monkeypatch.setattr(task, "unit", "sentences")
    record = copy.deepcopy(made[0])
    for row in record["curve"]:
        row["sentences"] = row.pop("tokens") // 10
        if row["kind"] == "validation":
            row["bleu"] = 0.5
    table = records_table([record], kept.study(made)).set_index("metric")
    assert table.loc["bleu", "value"] == 0.5 and table.loc["sentences", "value"] == 307200
    curves = curves_table([record])
    assert curves["sentences"].max() == 307200 and "tokens" not in curves


def test_garbage_or_a_key_of_the_wrong_type_is_one_sentence(made, tmp_path):
    damages = ["", '{"run": "a", "spe', '{"run": "a"}']
    for key in ("spec", "flops", "curve", "layers", "data", "versions", "num_threads"):
        damages.append(json.dumps(made[0] | {key: "garbage"}))
        with pytest.raises(ValueError, match=f"is no record: {key}"):
            write_tables([made[0] | {key: "garbage"}], kept.study(made), tmp_path / "out")
    for content in damages:
        (tmp_path / "r.json").write_text(content)
        with pytest.raises(ValueError, match="r.json") as caught:
            read_record(tmp_path / "r.json")
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_records_come_back_as_they_were_and_are_read_by_pandas_alone(made, tmp_path):
    odd = made[0] | {"run": "odd", "curve": [], "layers": [], "evaluation": None, "cpu": None}
    odd |= {"large": 2**70 + 1, "extra": {"a": [1, None]}}
    rows = [{"kind": "train", "step": 1, "x": 1, "y": None}, {"kind": "train", "x": 0.5}]
    mixed = made[1] | {"run": "mixed", "large": 0.5, "curve": rows}
    parquet.write([odd, *made, mixed], tmp_path)
    wanted = {record["run"]: record for record in (odd, *made, mixed)}
    assert {record["run"]: record for record in parquet.read(tmp_path)} == wanted
    assert parquet.read(tmp_path, ["odd"]) == [odd] and parquet.read(tmp_path, []) == []
    assert parquet.write(wanted.values(), tmp_path) == []  # equal records, equal files
    parquet.write(made, tmp_path)
    runs = pd.read_parquet(tmp_path / "runs.parquet").set_index("run")
    curves = pd.read_parquet(tmp_path / "curves.parquet")
    for record in made:
        row = runs.loc[record["run"]]
        assert row["method"] == record["spec"]["method"] and row["seed"] == record["spec"]["seed"]
        losses = curves.loc[curves["run"] == record["run"], "loss"]
        assert list(losses) == [point["loss"] for point in record["curve"]]


@pytest.mark.parametrize("name", parquet.TABLES)
@pytest.mark.parametrize("damage", ["cut", "text", "foreign", "missing"])
def test_a_damaged_file_is_named_in_one_sentence(made, tmp_path, name, damage):
    parquet.write(made[:2], tmp_path)
    path = tmp_path / f"{name}.parquet"
    content = path.read_bytes()
    if damage == "foreign":
        pd.DataFrame({"a": [1]}).to_parquet(path)
    elif damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content[: len(content) // 2] if damage == "cut" else b"no Parquet")
    with pytest.raises(UserError, match=f"^{path} (is|has)") as caught:
        parquet.read(tmp_path)
    assert "\n" not in str(caught.value)
    if damage == "missing":  # of a folder that git does not have
        assert "git checkout" not in str(caught.value)
