"""A setting that is better by no more than seed noise has won nothing."""

import math

import numpy as np
import pandas as pd
import pytest

from experiments.analysis import figures, tables, trials
from experiments.specs.lookup import planned_study
from experiments.specs.trials import taken_by
from experiments.store import reference
from experiments.store.collect import curves_table, records_table
from tests.experiments.analysis import synthetic

#: Standard deviation between seeds, in perplexity.
NOISE = 1.0


def table(*rows):
    columns = ["method", "learning rate", "value"]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.assign(model="m", dataset="d", metric="perplexity", seed=100)


@pytest.fixture(autouse=True)
def noise(monkeypatch):
    monkeypatch.setattr(trials, "seed_noise", lambda *_: NOISE)


@pytest.mark.parametrize(
    ("rows", "noise", "choice", "rate"),
    [
        ([("rigl", 0.01, 50.58), ("rigl", 0.02, 50.0)], NOISE, "tie, the default", 0.01),
        ([("rigl", 0.01, 60.0), ("rigl", 0.02, 50.0)], NOISE, "best", 0.02),
        (
            [("a", 0.01, 60.0), ("a", 0.02, 51.0), ("a", 0.04, 50.0), ("b", 0.01, 50.5)],
            NOISE, "tie, nearest to the default", 0.02,
        ),
        ([("a", 0.01, 60.0), ("a", 0.02, 50.0)], math.nan, "tie, the default", 0.01),
    ],
)  # fmt: skip
def test_what_wins_by_no_more_than_noise_does_not_replace_the_default(
    monkeypatch, rows, noise, choice, rate
):
    monkeypatch.setattr(trials, "seed_noise", lambda *_: noise)
    found = trials.judged(table(*rows), 0.01)
    [chosen] = found[found["chosen"]].to_dict("records")
    assert (chosen["choice"], chosen["learning rate"]) == (choice, rate)
    assert found["value"].idxmin() == found["choice"].str.startswith("best").idxmax()


def test_the_margin_of_a_tie_by_hand():
    assert trials.tie_margin(1.0) == pytest.approx(1.96 * math.sqrt(2), abs=1e-3)
    assert trials.tie_margin(1.0, 3) == pytest.approx(trials.tie_margin(1.0) / math.sqrt(3))
    assert trials.choose({1: 9.0, 2: 1.0}, {1: 0.0, 2: 1.0}, math.nan) == 1  # unknown noise
    assert trials.judged(table(("a", 0.01, 60.0)), 0.02)["choice"].tolist() == ["the only one"]
    # Variances 0.5 and 1 with 1 and 2 degrees of freedom.
    assert trials.pooled_sd([[0.0, 1.0], [0.0, 1.0, 2.0], [7.0]]) == pytest.approx(
        math.sqrt((0.5 + 2.0) / 3)
    )
    assert math.isnan(trials.pooled_sd([[1.0]]))


def test_the_tuning_page_shows_the_noise_beside_the_difference():
    made = synthetic.make(seeds=1, methods=["static", "rigl"])
    shown = tables.load("tuning_trials").make(*synthetic.frames(made, trials=True))
    assert {"above best", "seed noise", "margin", "choice"} <= set(shown)
    assert "best" not in shown and (shown["seed noise"] == NOISE).all()


# What studies of evidence train with


def taken_rates(name):
    """Method to (rate, steps, studies) of each trial whose setting is taken."""
    study = planned_study(name, "small")
    found, by = {}, taken_by(study)
    for spec in (run.spec for run in study.runs):
        if by[spec.id]:
            setting = round(spec.recipe.learning_rate, 6), spec.recipe.steps, by[spec.id]
            found.setdefault((spec.model.label, spec.data.name, spec.method), []).append(setting)
    return found


def test_what_is_taken_is_what_the_committed_runs_trained_with():
    found = taken_rates("sparsity_library_tuning")
    place, end = ("llama-0.2m", "enwiki-slice"), "enwiki-slice-v1024__half-batch__seed0"
    for method, part in (
        ("dense-control", "dense-control"), ("static", "static-s0.80"), ("gmp", "gmp-s0.80"),
        ("set", "set-s0.80"), ("rigl", "rigl-s0.80"), ("granet-rare", "granet-s0.80"),
    ):  # fmt: skip
        spec = reference.find(f"small__llama-0.2m__{part}__{end}")["spec"]
        own = [entry for entry in found[(*place, method)] if entry[2] == "sparsity_library"]
        assert own == [(pytest.approx(spec["recipe"]["learning_rate"]), 750, "sparsity_library")]
    # The frequent large updates of GraNet are in no study; settings chosen later have a name.
    assert (*place, "granet") not in found
    assert (0.0075, 750, "sparsity_library (dense-retuned)") in found[(*place, "dense-control")]
    assert found[(*place, "set-rare")] == [(0.04, 750, "sparsity_library (set-retuned)")]


def test_a_setting_of_several_lengths_is_taken_at_that_of_the_evidence():
    found = taken_rates("spdf_tuning")
    assert found[("llama-0.2m", "e2e-nlg", "dense-dense")] == [
        (0.02, 225, "spdf"),
    ]  # fmt: skip
    assert ("llama-0.2m", "webnlg-2017", "dense-dense") not in found  # no study has it


def committed(name):
    """Records, curves and plan of a study's committed runs."""
    study = planned_study(name, "small")
    made = list(reference.find_all(run.id for run in study.runs).values())
    return records_table(made, study), curves_table(made), study


def test_the_longest_trainings_come_first_and_points_stand_by_their_ticks():
    panels = figures.load("perplexity_by_sparsity").draw(*committed("sparsity_library")).axes
    assert [", 12.3M tokens" in panel.get_title() for panel in panels] == [True, False]
    panel = panels[1]
    assert "SET, retuned" not in {text.get_text() for text in panel.texts}
    means = [line for line in panel.lines if line.get_lw() == 1.2]
    ticks = np.log(panel.get_xticks())
    places = np.log(np.concatenate([line.get_xdata() for line in means]))
    distances = abs(places[:, None] - ticks).min(axis=1) / np.ptp(ticks)
    assert distances.max() < 0.04 and len(set(places)) == len(places)


def test_trials_of_other_lengths_are_not_compared_and_bleu_stands_beside():
    frames = committed("spdf_tuning")
    assert set(frames[0][frames[0]["metric"] == "bleu"]["split"]) == {"validation"}
    rows = tables.load("tuning_trials").make(*frames)
    dense = rows[(rows["dataset"] == "e2e-nlg") & (rows["method"] == "dense-dense")]
    for steps, rate, bleu in ((750, 0.01, 27.4446), (225, 0.02, 15.9791)):
        [best] = dense[(dense["steps"] == steps) & (dense["above best"] == 0)].to_dict("records")
        assert best["learning rate"] == rate
        assert best["BLEU"] == pytest.approx(bleu, abs=0.01)
    webnlg = rows[(rows["dataset"] == "webnlg-2017") & (rows["method"] == "dense-dense")]
    assert (webnlg["choice"] == "the only one").all() and (webnlg["taken by"] == "").all()
    assert "BLEU" not in tables.load("tuning_trials").make(*committed("sparsity_library_tuning"))
