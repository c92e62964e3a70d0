"""A study of several sizes, corpora, sparsities and budgets: nothing mixes what must stay apart."""

import numpy as np
import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

from experiments import published
from experiments.analysis import figures, tables
from experiments.analysis import select as selection
from experiments.analysis.claims import comparison, words
from experiments.analysis.claims import ledger as claims
from experiments.analysis.figures import scaling
from experiments.analysis.methods import Methods
from experiments.cli.app import app
from experiments.specs.expand import study_runs
from experiments.specs.lookup import planned_study
from experiments.specs.read import load_study
from experiments.specs.run import Run, Transform
from experiments.specs.schema import ClaimTest
from experiments.store import tidy
from experiments.store.record import make_record
from tests.experiments.analysis import grids, synthetic
from tests.experiments.specs.edit import edited

WORKLOAD = tidy.Workload("llama-64", "enwiki-slice")


@pytest.fixture(scope="module")
def study():
    return grids.load()


@pytest.fixture(scope="module")
def full(study):
    return grids.frames(study)


def ledger(frames):
    return claims.evaluate(frames[0], frames[2]).set_index("id")


def perplexities(rows, method, cell=WORKLOAD):
    own = tidy.in_workload(tidy.validation_perplexity(rows), cell)
    return own[own["method"] == method].set_index("seed")["value"]


def test_headline_runs_are_those_of_the_methods_own_recipes(full):
    rows = selection.headline(full[0], full[2])
    assert set(rows["recipe"]) == {"half-batch"}
    assert full[0]["run"].nunique() - rows["run"].nunique() == 3


def test_other_budgets_stay_out_of_tables_and_figures(full, tmp_path):
    written = tables.write("perplexity", *full, tmp_path)
    table = tidy.pd.read_csv(written)
    row = table[(table["method"] == "static") & (table["dataset"] == "enwiki-slice")].iloc[0]
    own = perplexities(selection.headline(full[0], full[2]), "static")
    assert row["seeds"] == 3 and row["perplexity"] == pytest.approx(own.mean())
    figures.write("perplexity_by_method", *full, tmp_path)
    shown = tidy.pd.read_csv(tmp_path / "perplexity_by_method.csv")
    assert not shown["run"].str.contains("__quarter__").any()


def test_the_difference_to_static_is_at_equal_sparsity(full, tmp_path):
    table = tidy.pd.read_csv(tables.write("perplexity", *full, tmp_path)).set_index("method")
    rows = selection.headline(full[0], full[2])
    gap = (perplexities(rows, "rigl90") - perplexities(rows, "static90")).mean()
    assert table.loc["rigl90", "minus Static"] == pytest.approx(gap)
    assert np.isnan(table.loc["static90", "minus Static"])


def test_the_difference_of_widened_models_is_to_the_dense_one(full):
    rows = selection.headline(full[0], full[2])
    methods = dict(full[2].methods)
    transform = Transform(family="wide", sparsity=0.8)
    methods["rigl"] = methods["rigl"].model_copy(update={"transform": transform})
    study = full[2].changed(methods=methods)
    widened = rows["family"].mask(rows["method"] == "rigl", "wide")
    table = tables.load("perplexity").make(rows.assign(family=widened), full[1], study)
    own = tidy.in_workload(table, WORKLOAD).set_index("method").loc["rigl"]
    gap = (perplexities(rows, "rigl") - perplexities(rows, "dense-control")).mean()
    assert own["minus Dense"] == pytest.approx(gap) and np.isnan(own["minus Static"])
    assert "minus Dense" not in tables.load("perplexity").make(*full)


def test_a_method_looks_the_same_at_every_sparsity():
    looks = Methods(planned_study(grids.load(), "small"))
    assert looks["static90"].color == looks["static"].color
    assert looks["dense-control"].name == "Dense control"


# Claims


@pytest.fixture
def every_seed(monkeypatch):
    """Claims are read at all seeds, whatever is registered."""
    monkeypatch.setattr(claims, "registered_seeds", lambda _: None)


@pytest.mark.usefixtures("every_seed")
def test_the_verdict_is_that_of_the_first_workload(full):
    row = ledger(full).loc["C001"]
    own = selection.headline(full[0], full[2])
    effect = (perplexities(own, "set") - perplexities(own, "static")).mean()
    assert row["effect"] == pytest.approx(effect)
    assert row["num_seeds"] == 3  # the other corpus has five
    assert row["verdict"] == "inconclusive" and "a verdict needs 5" in row["reason"]
    assert row["replications"].startswith("llama-64 on wikitext-2: holds, -")
    assert row["replications"].endswith("5 seeds")
    assert "quarter" not in row["runs"] and "wikitext" not in row["runs"]


@pytest.mark.usefixtures("every_seed")
def test_a_replication_never_stands_in_for_the_first_workload(study):
    frames = grids.frames(study, keep=lambda run: "wikitext" in run.id or run.spec.method == "rigl")
    row = ledger(frames).loc["C001"]
    assert row["verdict"] == "not tested"
    assert "llama-64 on enwiki-slice: this scale has no finished run of SET 80%" in row["reason"]
    assert row["replications"].startswith("llama-64 on wikitext-2: holds")


def test_trials_are_evidence_for_nothing(full):
    table = ledger((full[0], full[1], full[2].changed(trials=True)))
    assert set(table["verdict"]) == {"not tested"}
    assert set(table["reason"]) == {claims.TRIALS}


def compare(frames, **test):
    rows = selection.headline(frames[0], frames[2])
    test = ClaimTest(metric="perplexity", split="validation", **test)
    return comparison.compare(test, rows, frames[2])


def test_a_gap_is_a_difference_of_differences(full):
    rows = selection.headline(full[0], full[2])
    at90 = perplexities(rows, "static90") - perplexities(rows, "rigl90")
    at80 = perplexities(rows, "static") - perplexities(rows, "rigl")
    found = compare(
        full,
        gaps=[[{"method": "static90"}, {"method": "rigl90"}],
              [{"method": "static"}, {"method": "rigl"}]],
        direction="greater",
    )  # fmt: skip
    assert found.pair.effect == pytest.approx((at90 - at80).mean())
    assert words.alone(found.pair) == "holds"  # 0.12 against 0.08 nats, and a higher level
    assert "(Static 90% minus RigL 90%) > (Static 80% minus RigL 80%)" in found.tested_as
    assert len(found.runs.split()) == 12


def test_a_baseline_that_learned_nothing_decides_nothing(full, monkeypatch):
    test = {"a": {"method": "set"}, "b": {"method": "static"}, "direction": "less"}
    assert compare(full, **test).pair.num_seeds == 3
    strict = published.policy() | {"learned": {"perplexity": {"most": 2.0, "why": "of a test"}}}
    monkeypatch.setattr(published, "policy", lambda: strict)
    found = compare(full, **test)
    assert found.verdict == "not tested" and "above 2: of a test" in found.reason


def test_what_a_scale_does_not_train_is_left_out_only_where_allowed(full):
    links = [
        {"a": {"method": "set"}, "b": {"method": "static"}},
        {"a": {"method": "set95"}, "b": {"method": "static"}, "where_planned": True},
    ]
    found = compare(full, every=links, direction="less")
    assert found.pair.num_seeds == 3
    assert "without set95, which this scale does not train" in found.reason
    links[1].pop("where_planned")
    assert compare(full, every=links, direction="less").verdict == "not tested"
    chain = [{"method": "rigl"}, {"method": "gmp"}, {"method": "static"}]
    assert compare(full, order=chain).verdict == "not tested"
    found = compare(full, order=chain, where_planned=True)
    assert found.tested_as == "perplexity: RigL 80% < Static 80%" and "without GMP" in found.reason


def test_a_seed_that_lacks_one_of_two_methods_is_left_out(study):
    frames = grids.frames(
        study, keep=lambda run: not (run.spec.method == "rigl" and run.spec.seed == 1)
    )
    found = compare(frames, a={"method": ["set", "rigl"]}, b={"method": "static"}, direction="less")
    assert found.pair.num_seeds == 2


# Scaling, budgets, equal cost


@pytest.mark.parametrize(
    ("slope", "words"), [(-0.02, "it shrinks with size"), (0.02, "it grows with size")]
)
def test_the_trend_of_the_penalty_is_found(study, slope, words):
    frames = grids.frames(study, slope=slope)
    rows = scaling.data(selection.headline(frames[0], frames[2]), *frames[1:])
    assert set(rows["method"]) == {"dense-control", "rigl"}  # the others have one size
    assert rows["weights"].nunique() == 3
    assert rows["tokens per weight"].to_numpy() == pytest.approx(31.1, abs=0.2)
    found, low, high, _ = scaling.trend(scaling.penalties(rows, Methods(frames[2]), "rigl", 0.8))
    assert low < slope < high and found == pytest.approx(slope, abs=0.005)
    assert words in figures.caption("scaling", *frames)


def test_without_a_trend_no_trend_is_claimed(study):
    frames = grids.frames(study, slope=0.0, noise=0.02)
    assert "these sizes cannot tell" in figures.caption("scaling", *frames)


def test_a_penalty_that_turns_back_does_not_grow():
    means = {10.0: 0.0, 20.0: 0.14, 40.0: 0.13}
    rows = pd.DataFrame(
        {"weights": size, "seed": seed, "penalty": mean + 0.001 * seed}
        for size, mean in means.items()
        for seed in range(3)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scaling, "penalties", lambda *_: rows)
        text = scaling._trend_sentence(rows, Methods(), "static", 0.8)
    assert "+0.001, +0.141, +0.131 nats" in text
    assert "does not change from each one to the next" in text


def test_models_at_other_tokens_per_weight_are_no_scaling_points(full):
    rows = full[0].copy()
    larger = (rows["model"] == "llama-48") & (rows["metric"] == "tokens")
    rows.loc[larger, "value"] *= 2
    assert scaling.data(selection.headline(rows, full[2]), *full[1:]).empty


def test_budgets_pair_seeds_and_state_the_gap(full):
    module = figures.load("budgets")
    rows = module.data(*full)
    assert set(rows["recipe"]) == {"half-batch", "quarter"}
    assert set(rows["method"]) == {"dense-control", "static", "rigl"}
    means = module.budget_means(rows[rows["method"] == "rigl"])
    assert list(means["tokens"]) == [768000, 3072000]
    long = perplexities(selection.headline(full[0], full[2]), "rigl")
    assert means["value"].iloc[1] == pytest.approx(long.mean()) and len(long) > 1
    assert "at 768,000 tokens (1 seed)" in figures.caption("budgets", *full)


def test_dense_at_equal_flops_follows_a_law_and_is_never_extrapolated(full, tmp_path):
    between = tables.load("dense_comparison").between
    flops, losses = tidy.pd.Series([1e9, 1e11]), tidy.pd.Series([5.0, 4.0])
    assert between(flops, losses, 1e10) == pytest.approx(4.5)
    assert np.isnan(between(flops, losses, 1e12)) and np.isnan(between(flops, losses, 1e8))
    column = "dense, finished at equal FLOPs"
    two = tables.load("dense_comparison").make(*full).set_index(["model", "dataset", "method"])
    assert np.isnan(two.loc[(*WORKLOAD, "static"), column])  # two budgets have no curvature
    content = yaml.safe_load(grids.FILE.read_text())
    content["recipes"]["double"] = {"batch_scale": 0.5, "budget_scale": 2}
    last = content["scales"]["small"][-1]
    content["scales"]["small"].append({**last, "variant": "double"})
    (tmp_path / "grids.yaml").write_text(yaml.safe_dump(content))
    three = grids.frames(load_study("grids", folder=tmp_path))
    table = tables.load("dense_comparison").make(*three).set_index(["model", "dataset", "method"])
    row = table.loc[(*WORKLOAD, "static")]
    # The law of the synthetic records at the sparse runs' FLOPs, and what evaluation adds to it
    # and the curve still has to fall.
    at = 3072e3 * (0.2 * 98816 + 65536) / (98816 + 65536)
    expected = 4 * 0.98816**-0.05 * (at / 98816 / 31) ** -0.05 + 0.01 + 3 * np.exp(-7)
    assert row[column] == pytest.approx(np.exp(expected), rel=0.01)
    assert row["smaller dense model"] == "llama-48" and row["its parameters"] == 153600
    assert row["non-zero parameters"] == pytest.approx(0.2 * 98816 + 131072, abs=1)
    assert row["paired seeds"] == 3
    small = table.loc[("llama-32", "enwiki-slice", "rigl")]
    assert np.isnan(small["dense, finished at equal FLOPs"])  # one budget only
    assert small["smaller dense model"] != small["smaller dense model"]  # none is as small


def test_from_rigl_to_granet_only_the_schedule_changes(full):
    table = tables.load("config_changes").make(*full)
    assert set(table["setting"].str.split(".").str[1]) == {"algorithm", "sparsity"}


def test_sizes_stand_beside_what_is_published(full):
    table = tables.load("architecture").make(*full).set_index("setting")
    assert table.loc["parameters", "ours, llama-64"] == "229,888"
    assert table.loc["of these in sparse layers", "ours, llama-64"] == "98,816"
    assert table.loc["context", "source (published)"] == "2048 tokens"
    assert table.loc["num layers", "source (published)"] == "no value that we hold"


def test_methods_that_differ_within_a_recipe_are_named(full):
    def faster(spec):
        if spec["method"].startswith("rigl"):
            spec["recipe"]["learning_rate"] = 0.02

    runs = tuple(Run(edited(run.spec, faster)) for run in full[2].runs)
    table = tables.load("hyperparameters").make(*full[:2], full[2].changed(runs=runs))
    table = table.set_index("setting")
    shown = table.loc["learning_rate", "ours, half-batch"]
    assert shown == "0.005 (Dense control, Static, SET, GraNet); 0.02 (RigL)"
    assert table.loc["steps", "ours, half-batch"] == "1500"
    assert table.loc["learning_rate", "source (published)"] == "2e-4"


def test_the_configured_drop_fraction_is_drawn_where_none_was_logged(full):
    rows = full[1][full[1]["metric"] != "drop_fraction"]
    drawn = figures.load("schedules").data(selection.headline(full[0], full[2]), rows, full[2])
    drops = drawn[drawn["metric"] == "drop_fraction"]
    assert set(drops["method"]) == {"set", "rigl", "granet"}
    rigl = drops[drops["method"] == "rigl"].set_index("step")["value"]
    assert rigl.index.max() <= 1125  # updates stop at 75% of 1,500 steps
    # Cosine from 0.5 to 0 in 1,125 steps.
    assert rigl.loc[rigl.index[0]] == pytest.approx(
        0.25 * (1 + np.cos(np.pi * rigl.index[0] / 1125))
    )
    assert not drawn["run"].str.contains("90").any()


# Trials


def test_trials_name_the_best_settings_of_each_method(full):
    study = full[2].changed(trials=True)
    table = tables.load("tuning_trials").make(full[0], full[1], study)
    own = table[(table["model"] == "llama-64") & (table["dataset"] == "enwiki-slice")]
    own = own[own["steps"] == own["steps"].mode()[0]]  # trials of one length are compared
    best = own[own["above best"] == 0].groupby("sparsity")["method"].apply(sorted)
    assert best[0.0] == ["dense-control"] and best[0.8] == ["granet", "rigl", "set", "static"]
    assert best[0.9] == ["rigl", "set", "static"]
    assert (own["above best"] >= 0).all()
    rigl = own[own["method"] == "rigl"].iloc[0]
    assert rigl["drop fraction"] == 0.5 and rigl["learning rate"] == 0.005
    assert figures.load("tuning").data(*full).empty  # no study of trials
    widened = full[0].assign(method=full[0]["method"].replace("granet", "wide50-static"))
    assert "wide50-static" in set(figures.load("tuning").data(widened, full[1], study)["algorithm"])
    losses = full[0][full[0]["metric"] != "perplexity"]
    judged = tables.load("tuning_trials").make(losses, full[1], study)
    assert len(judged) == len(table) and judged["loss"].lt(10).all()
    assert "perplexity" not in judged
    alone = "One rate alone is tried: Dense control, 1,500 steps"
    assert alone in figures.load("tuning").caption(full[0], full[1], study)
    assert figures.load("budgets").data(full[0], full[1], study).empty


def test_the_records_of_the_law_are_what_they_say(study):
    run = study_runs(study, "small")[0]
    record = synthetic.planned_record(make_record, run)
    assert record["num_parameters"] == 229888 and len(record["curve"]) == 50


def test_a_figure_drawn_over_one_axis_is_the_same_as_among_all(full, tmp_path):
    every, own, other = tmp_path / "every", tmp_path / "own", tmp_path / "other"
    figures.write("budgets", *full, every)
    assert figures.x_axes("budgets") == ("tokens", "steps", "flops")
    figures.write("budgets", *full, own, x="tokens")
    assert {path.name for path in own.iterdir()} == {"budgets.svg", "budgets.png", "budgets.csv"}
    assert (own / "budgets.svg").read_text() == (every / "budgets.svg").read_text()
    figures.write("budgets", *full, other, x="flops")
    assert [path.name for path in other.iterdir()] == ["budgets-by-flops.svg"]
    assert "executed training FLOPs" in (other / "budgets-by-flops.svg").read_text()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("budgets", "x is 'epochs'"),
        ("perplexity_by_flops", "figure 'perplexity_by_flops' has no other axis than its own"),
    ],
)
def test_an_axis_that_a_figure_lacks_is_one_sentence(name, sentence):
    arguments = ["figure", name, "--study", "sparsity_library", "--x", "epochs"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code != 0
    assert sentence in str(result.exception)
