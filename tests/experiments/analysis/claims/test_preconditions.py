"""A comparison of runs that learned nothing, or of scores at chance, decides nothing."""

import pandas as pd
import pytest

from experiments import published
from experiments.analysis.claims import preconditions, sides
from experiments.specs import trials
from experiments.specs.lookup import planned_study
from experiments.specs.read import load_study
from experiments.specs.run import RunSpec
from tests.experiments.analysis import synthetic
from tests.experiments.specs.edit import edited

RULES = published.policy()


@pytest.mark.parametrize(
    ("metric", "value", "fine"),
    [
        ("perplexity", 40.0, True),
        ("perplexity", 900.0, False),
        ("bleu", 33.0, False),
        ("bleu", 60.0, True),
        ("accuracy", 0.02, False),
        ("accuracy", 0.995, False),
        ("steps", 1.0, True),
    ],
)
def test_the_dense_model_must_have_learned_the_task(metric, value, fine):
    dense = pd.DataFrame({"value": [0.9 * value, 1.1 * value]})
    assert (preconditions.not_learned(metric, dense, RULES) == "") == fine
    assert preconditions.not_learned(metric, dense.iloc[:0], RULES) == ""


def test_a_dataset_may_have_bounds_of_its_own():
    rules = {"learned": {"bleu": {"least": 40, "why": "a", "datasets": {
        "hard": {"least": 20, "why": "b"}}}}}  # fmt: skip
    dense = pd.DataFrame({"value": [30.0]})
    assert "it takes 40: a" in preconditions.not_learned("bleu", dense, rules, dataset="easy")
    assert preconditions.not_learned("bleu", dense, rules, dataset="hard") == ""
    low = preconditions.not_learned("bleu", dense - 15, rules, dataset="hard")
    assert "it takes 20: b" in low


@pytest.mark.parametrize(
    ("metric", "value", "why"),
    [
        ("accuracy", 0.0101, "it takes 0.02"),
        ("accuracy", 0.3, ""),
        ("perplexity", 1100.0, "above 1024"),
        ("perplexity", 900.0, ""),
        ("steps", 0.0, ""),
    ],
)
def test_no_side_may_end_where_guessing_does(metric, value, why):
    good, other = pd.DataFrame({"value": [0.3]}), pd.DataFrame({"value": [value]})
    found = preconditions.not_trained(metric, {"rigl90": good, "set90": other}, RULES)
    assert (why in found and "set90 ends at" in found) if why else found == ""


def scores(value):
    return pd.DataFrame(
        {"value": [value], "stderr": [0.01], "chance": [0.25], "num_items": [1000.0]}
    )


def test_scores_must_be_above_chance():
    low, high = scores(0.26), scores(0.30)
    below = scores(0.20)
    assert preconditions.at_chance("leaderboard_mean", [low, low], RULES)
    assert preconditions.at_chance("leaderboard_mean", [below, low], RULES)
    assert not preconditions.at_chance("leaderboard_mean", [low, high], RULES)
    assert not preconditions.at_chance("perplexity", [low, low], RULES)


def test_learning_rates_must_have_ended():
    cosine = spec(0.1)
    constant = edited(cosine, lambda own: own["recipe"].update(min_learning_rate=0.1))
    assert preconditions.not_annealed([cosine, cosine], RULES) == ""
    assert "1 of 2 runs" in preconditions.not_annealed([cosine, constant], RULES)


def spec(rate, *, method="rigl", model="m"):
    value = synthetic.spec(method, 0, label=model)
    value["recipe"]["learning_rate"] = rate
    return RunSpec.model_validate(value)


def test_learning_rates_may_not_be_at_the_end_of_what_was_tried():
    tried = {("lm", "m", "wikipedia-start", "rigl", None): {0.01, 0.02, 0.04}}
    assert preconditions.at_end_of_rates([spec(0.02)], tried) == ""
    found = preconditions.at_end_of_rates([spec(0.02), spec(0.04)], tried)
    assert "rigl at 0.04 (tried 0.01 to 0.04)" in found
    named = preconditions.at_end_of_rates([spec(0.04)], tried, lambda side: side["method"].upper())
    assert "RIGL at 0.04" in named
    assert preconditions.at_end_of_rates([spec(0.01)], tried)
    assert preconditions.at_end_of_rates([spec(0.08)], tried)
    # Untuned models have no range to be at the end of.
    assert preconditions.at_end_of_rates([spec(0.04, model="other")], tried) == ""
    assert preconditions.at_end_of_rates([spec(0.04, method="set")], tried) == ""


def test_the_ranges_are_those_of_the_tuning_studies():
    found = trials.tried_rates("small")
    rates = found[("lm", "llama-0.2m", "enwiki-slice", "rigl", None)]
    assert {0.005, 0.01, 0.02, 0.04} <= rates
    assert trials.tried_rates("smoke") == {}


def test_the_ledger_says_at_which_sparsity_rates_were_tried():
    study = planned_study(load_study("sparse_ift_vision"), "small")
    runs = {
        method: [run.id for run in study.runs if run.spec.method == method]
        for method in ("wide90-set", "wide75-set", "set80", "dense")
    }
    found = sides.differences(runs, study, {})
    # sparse_ift_vision_tuning has Sparse-Wide at 75% and SET of the unwidened model at 80%.
    assert "learning rates were tried at 75% sparsity alone for wide90-set" in found
    assert found.count("tried") == 1
    library = planned_study(load_study("sparsity_library"), "small")
    runs = {
        method: [
            run.id
            for run in library.runs
            if run.spec.method == method and run.spec.model.label == "llama-0.2m"
            and run.spec.data.name == "enwiki-slice"
        ]
        for method in ("rigl95", "set95", "rigl")
    }  # fmt: skip
    # Also those of chts_language_tuning, at 70%.
    said = "learning rates were tried at 70% and 80% sparsity alone for rigl95, set95"
    assert said in sides.differences(runs, library, {})
