"""Comparisons across datasets and sizes, and the texts that a study's page shows."""

import json

import pandas as pd
import pytest

from experiments.analysis import tables
from experiments.analysis.claims import comparison
from experiments.analysis.figures import fine_tuning
from experiments.analysis.methods import Methods
from experiments.specs.lookup import planned_study
from experiments.specs.read import load_study
from experiments.specs.schema import ClaimTest
from experiments.store.collect import records_table
from experiments.store.tidy import typed

#: Mean BLEU by model, dataset and method.
BLEU = {
    ("small", "easy", "dense-dense"): 60, ("small", "easy", "spdf-75"): 59,
    ("small", "hard", "dense-dense"): 50, ("small", "hard", "spdf-75"): 46,
    ("large", "easy", "dense-dense"): 66, ("large", "easy", "spdf-75"): 65.5,
    ("large", "hard", "dense-dense"): 56, ("large", "hard", "spdf-75"): 54,
}  # fmt: skip
SIDE = {"method": "spdf-75", "model": "large", "dataset": "hard"}


def study():
    return planned_study(load_study("spdf"), "smoke").changed(runs=())


def records(without=()):
    rows = [
        {"study": "spdf", "run": f"{model}-{dataset}-{method}-{seed}", "model": model,
         "dataset": dataset, "method": method, "algorithm": "dense", "sparsity": 0.0, "seed": seed,
         "recipe": "finetune", "metric": "bleu", "value": mean + 0.1 * seed * (seed + len(method)),
         "split": "test", "task": "data_to_text", "higher_is_better": True}
        for (model, dataset, method), mean in BLEU.items()
        for seed in range(5)
        if (model, dataset) not in without
    ]  # fmt: skip
    return typed(pd.DataFrame([*rows], columns=records_table([], study()).columns))


def gap(**place):
    return [{"method": method, **place} for method in ("dense-dense", "spdf-75")]


def test_a_selection_may_name_another_dataset():
    gaps = [gap(dataset="hard"), gap(dataset="easy")]
    harder = ClaimTest(metric="bleu", direction="greater", gaps=gaps)
    found = comparison.compare(harder, records(), study())
    assert found.pair.effect == pytest.approx(4 - 1)
    assert "small on hard" in found.reason
    assert found.replications.startswith("large on hard: ") and "+1.5" in found.replications
    assert "easy" not in found.replications.split(":")[0]


def test_a_selection_may_name_another_model():
    gaps = [gap(model="large", dataset="hard"), gap(model="small", dataset="hard")]
    larger = ClaimTest(metric="bleu", direction="less", gaps=gaps)
    found = comparison.compare(larger, records(), study())
    assert found.pair.effect == pytest.approx(2 - 4) and not found.replications
    missing = comparison.compare(larger, records(without=[("small", "hard")]), study())
    assert missing.verdict == "not tested"


def test_every_dataset_of_a_comparison_must_be_learned():
    low = records()
    is_low = (low["model"] == "large") & (low["dataset"] == "easy")
    low.loc[is_low, "value"] -= 50
    links = [
        {"a": SIDE | place, "b": SIDE | place | {"method": "dense-dense"}}
        for place in ({"dataset": "hard"}, {"dataset": "easy"})
    ]
    test = ClaimTest(metric="bleu", direction="greater", margin=-5, every=links)
    found = comparison.compare(test, low, study())
    assert found.verdict == "not tested" and "large on easy: dense reaches 18" in found.reason
    assert comparison.compare(test, records(), study()).pair.effect == pytest.approx(-2 - 0.8)


def test_revived_weights_from_a_normal_are_a_line_of_their_own():
    assert Methods(study()).phases("spdf-75") == (0.75, "dense")
    assert Methods(study()).phases("spdf-75-normal") == (0.75, "dense, scaled-normal")
    rows = records()
    rows.loc[rows["model"] == "large", "method"] = "spdf-75-normal"
    data = fine_tuning.data(rows, rows, study())
    assert set(data["fine-tuning"]) == {"dense", "dense, scaled-normal"}
    assert set(data["fine-tuning"]) < set(fine_tuning.LINES)


def test_the_caption_never_averages_over_models_or_datasets():
    rows = records()
    text = fine_tuning.caption(rows, rows, study())
    for (model, dataset), dense, sparse in [
        (("small", "easy"), 60, 59), (("small", "hard"), 50, 46),
        (("large", "easy"), 66, 65.5), (("large", "hard"), 56, 54),
    ]:  # fmt: skip
        # What `records` adds to a mean: seeds 0 to 4 times (seed + length of the method's name).
        added = [0.1 * sum(seed * (seed + n) for seed in range(5)) / 5 for n in (11, 7)]
        assert (
            f"{model} on {dataset}: dense after 0%: {dense + added[0]:.1f}; "
            f"dense after 75%: {sparse + added[1]:.1f}."
        ) in text
    assert text.count("after 75%") == 4
    assert fine_tuning.caption(rows.iloc[:0], rows, study()) == ""


def test_the_page_shows_texts_of_the_first_seed_beside_their_references(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "results/smoke/spdf/records"
    folder.mkdir(parents=True)
    for seed in (0, 1):
        output = {"input": "name[A]", "output": f"A {seed}.", "references": ["a.", "b."],
                  "num_references": 7}  # fmt: skip
        score = {"task": "data_to_text", "metric": "bleu", "value": 1.0, "outputs": [output] * 10}
        value = {"evaluation": {"scores": [score, {"task": "perplexity", "metric": "loss"}]}}
        (folder / f"small-easy-spdf-75-{seed}.json").write_text(json.dumps(value))
    empty = records()
    table = tables.load("outputs").make(empty, empty, study())
    assert len(table) == 10 and set(table["output"]) == {"A 0."}
    row = table.iloc[0].to_dict()
    assert row["references"] == "a. / b." and row["more references"] == 5
    assert row["runs"] == "small-easy-spdf-75-0"
