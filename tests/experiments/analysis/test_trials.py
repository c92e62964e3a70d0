"""Which settings trials tried, and which of them studies of evidence train with."""

import numpy as np
import pytest

from experiments.analysis import figures, tables
from experiments.specs.lookup import planned_study
from experiments.specs.trials import taken_by
from experiments.store import reference
from experiments.store.collect import curves_table, records_table

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
    found = taken_rates("spdf_tuning")
    assert found[("llama-0.2m", "e2e-nlg", "dense-dense")] == [
        (0.02, 225, "spdf"),
    ]  # fmt: skip
    # By the first phase's masks too: each of these rates is another arm's.
    assert found[("llama-1m", "e2e-nlg", "dense-dense")] == [(0.005, 750, "spdf")]
    assert found[("llama-1m", "e2e-nlg", "spdf-75")] == [(0.0025, 750, "spdf")]
    assert ("llama-0.2m", "webnlg-2017", "dense-dense") not in found  # no study has it
    # Evidence by another recipe that its study shows, at twice the steps and in bfloat16.
    found = taken_rates("sparse_ift_vision_tuning")
    assert found[("resnet-4mf", "cifar100", "dense")] == [(0.2, 5625, "sparse_ift_vision")]


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


def test_curves_of_one_method_are_told_apart_by_the_sparsity_of_their_masks():
    panels = figures.load("tuning").draw(*committed("sparse_ift_vision_tuning")).axes
    [panel] = [
        panel for panel in panels if panel.get_title() == "resnet-4mf on cifar100, 5,625 steps"
    ]
    labels = {text.get_text() for text in panel.texts}
    assert {f"Sparse-Wide RigL {level}%" for level in (49, 75, 90)} <= labels


def test_trials_of_other_lengths_are_not_compared_and_bleu_stands_beside():
    frames = committed("spdf_tuning")
    assert set(frames[0][frames[0]["metric"] == "bleu"]["split"]) == {"validation"}
    rows = tables.load("tuning_trials").make(*frames).query("model == 'llama-0.2m'")
    dense = rows[(rows["dataset"] == "e2e-nlg") & (rows["method"] == "dense-dense")]
    for steps, rate, bleu in ((750, 0.01, 27.4446), (225, 0.02, 15.9791)):
        [best] = dense[(dense["steps"] == steps) & (dense["above best"] == 0)].to_dict("records")
        assert best["learning rate"] == rate
        assert best["BLEU"] == pytest.approx(bleu, abs=0.01)
    webnlg = rows[(rows["dataset"] == "webnlg-2017") & (rows["method"] == "dense-dense")]
    assert len(webnlg) and (webnlg["taken by"] == "").all()
    assert "BLEU" not in tables.load("tuning_trials").make(*committed("sparsity_library_tuning"))
