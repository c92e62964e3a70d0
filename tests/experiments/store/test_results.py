"""`experiments.load`: the results of a study as DataFrames."""

import pytest

import experiments
from experiments.store import reference


def test_a_studys_results_are_dataframes():
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


@pytest.mark.parametrize(
    ("study", "scale", "words"),
    [
        ("sparsity_librari", "small", "did you mean 'sparsity_library'.*de8e87e8"),
        ("sparsity_library", "tiny", "scale is 'tiny', but must be one of"),
        ("sparsity_library", "paper", "no finished run at scale 'paper'"),
    ],
)
def test_what_is_not_there_is_one_sentence(study, scale, words):
    with pytest.raises(ValueError, match=words):
        experiments.load(study, scale)
