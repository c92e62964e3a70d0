"""The baseline gate on runs that are written by hand, and the results as they are committed."""

import pandas as pd
import pytest

from experiments.errors import UserError
from experiments.findings import claim, ledger
from experiments.findings.claim import Claim
from experiments.findings.evidence import COLUMNS, Evidence
from experiments.specs.read import load_study, study_names

OUTCOME = {"metric": "loss", "split": "validation", "unit": "nats"}
OUTCOME |= {"better": "lower", "noun": "loss"}
RATES = {0.05: 3.2, 0.1: 3.0, 0.2: 3.1}


def run(name, method, *, seed, rate=0.1, trials=False, model="m", budget=8.0, **other):
    row = dict.fromkeys(COLUMNS, "")
    row |= {"run": name, "study": "s", "trials": trials, "model": model, "architecture": "net"}
    row |= {"dataset": "d", "data": "d", "budget": budget, "stable": False, "batch": 1}
    row |= {"method": method, "recipe": "r", "rate": rate, "masks": method, "seed": seed}
    is_dense = "dense" in method
    row |= {"algorithm": "dense" if is_dense else method, "sparsity": 0.0 if is_dense else 0.8}
    return row | other


def evidence(means, *, tried=RATES, whole=(), larger=None, costs=()):
    """Three seeds of each method about its mean loss; trials of each at half the budget, at all."""
    runs, scores = [], []

    def add(row, loss, parameters=100.0):
        runs.append(row)
        for metric, split, value in (
            ("loss", "validation", loss),
            ("num_parameters", "train", parameters),
            ("flops_dense_equivalent", "train", parameters),
            ("flops_executed", "train", dict(costs).get(row["method"], 1.0)),
        ):
            scores.append([row["run"], metric, split, "training", value, 0.0, 0.0])

    for method, mean in means.items():
        for seed in range(3):
            add(run(f"{method}{seed}", method, seed=seed), mean + 0.01 * (seed - 1))
        for budget, own in ((4.0, tried), (8.0, dict(whole))):
            for rate, loss in own.items():
                row = {"seed": 100, "rate": rate, "trials": True, "budget": budget}
                add(run(f"{method}-{rate}-{budget}", method, **row), loss)
    if larger is not None:
        for seed in range(3):
            add(run(f"large{seed}", "dense", seed=seed, model="large"), larger + 0.01 * seed, 400.0)
    columns = ["run", "metric", "split", "task", "value", "stderr", "chance"]
    return Evidence(
        "small", pd.DataFrame(runs, columns=COLUMNS), pd.DataFrame(scores, columns=columns)
    )


def found(given, b="static", *, a="set", equal_flops=False, **place):
    text = {"name": "set", "title": "t, 75% sparse", "says": "s", "source": "rigl", "where": "w"}
    rules = {"outcome": OUTCOME, "interest": 0.01, "planned": 4, "equal_flops": equal_flops}
    places = {"small": [{"models": ["m"], "data": "d", "budget": 8} | place]}
    arms = {"study": "s", "a": [a], "b": [b], "places": places}
    return ledger.of_claim(Claim.model_validate(text | rules | arms), given)[0]


FAIR = {"dense": 2.5, "static": 3.0, "set": 2.9}


def test_fair_comparison_gets_its_word_of_ended_seeds_and_equal_flops():
    result = found(evidence(FAIR, larger=2.4))
    assert str(result.word) == "same direction"
    assert result.claim.title == "t, 80% sparse"  # as its arms are
    assert result.estimate.effect == pytest.approx(-0.1)
    result = found(evidence(FAIR), registered="2026-11-27")
    assert (result.word.word, result.word.reason) == ("no fair test", "its runs are not finished")
    near, far = (evidence(FAIR, costs={"static": cost}) for cost in (0.95, 1.5))
    assert str(found(near, equal_flops=True).word) == "same direction"
    unequal = found(far, equal_flops=True).word
    assert unequal.reason == "unequal FLOPs: static takes 1.5 times as many"
    assert str(found(far).word) == "same direction"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (evidence({**FAIR, "dense": 3.5}), "set beats the dense m at equal size"),
        (evidence(FAIR, larger=2.6), "the larger large does not beat m"),
        (evidence(FAIR, tried={0.1: 3.0, 0.2: 3.1}), "no worse one on both sides"),
        (evidence(FAIR, tried={0.05: 2.9, 0.1: 3.0, 0.2: 3.1}), "no worse one on both sides"),
        (evidence(FAIR, whole={0.05: 2.7, 0.1: 2.8, 0.2: 2.9}), "no worse one on both sides"),
    ],
)
def test_unfair_comparison_is_no_test_and_says_why(given, reason):
    result = found(given)
    assert result.word.word == "no fair test"
    assert reason in result.word.reason
    assert not result.is_fair


def test_second_phases_from_other_masks_have_rates_of_their_own():
    given = evidence({"set-dense": 2.5, "dense": 2.6, "static": 3.0, "plain": 2.4})
    runs, starts = given.runs.copy(), {"set-dense": "static", "dense": "plain"}
    for method, first in starts.items():
        own = runs["method"] == method
        runs.loc[own, ["first", "masks"]] = [f"{first}0", "none"]
    moved = (runs["method"] == "dense") & (runs["rate"] < 0.2)
    runs.loc[moved, "rate"] *= 2  # its best rate is twice that of the other
    runs.loc[(runs["method"] == "dense") & (runs["run"].str.contains("-0.2-")), "rate"] = 0.4
    result = found(Evidence("small", runs, given.scores), a="set-dense", b="dense")
    assert result.gate.failed == "" and result.gate.notes == "3 rates tried per arm"


def test_scale_without_trials_says_so_and_is_no_test_of_dense():
    given = evidence(FAIR)
    runs = given.runs[~given.runs["trials"]]
    given = Evidence("small", runs, given.scores[given.scores["run"].isin(runs["run"])])
    result = found(given)
    assert str(result.word) == "same direction"
    assert result.gate.notes == "no learning rate was tried at this scale"
    beside_dense = found(given, b="dense").word
    assert beside_dense.word == "no fair test"
    assert "no learning rate was tried" in beside_dense.reason


def test_nine_results_name_what_exists_and_a_typo_is_one_sentence(tmp_path, monkeypatch):
    assert len(claim.nine()) == 9
    for result in (*claim.nine(), *claim.supporting()):
        assert result.study in study_names()
        study = load_study(result.study)
        for comparison in result.comparisons():
            for method in comparison.a[-1:] + comparison.b[-1:]:
                assert method in study.methods, f"{result.name}: {method}"
    text = (claim.NINE / "1_set.yaml").read_text().replace("better: lower", "better: less")
    (tmp_path / "1.yaml").write_text(text)
    monkeypatch.setattr(claim, "NINE", tmp_path)
    claim.nine.cache_clear()
    with pytest.raises(UserError, match="1.yaml: outcome.better"):
        claim.nine()
    claim.nine.cache_clear()
