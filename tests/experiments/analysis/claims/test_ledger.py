"""Verdicts on records whose truth is known, and the completeness of the published files."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binomtest

from experiments import published
from experiments.analysis import costs, stats
from experiments.analysis.claims import comparison, exact, policy, words
from experiments.analysis.claims import ledger as claims
from experiments.analysis.claims.links import links_of, namer
from experiments.specs.lookup import planned_study
from experiments.specs.planned import NO_STUDY
from experiments.specs.read import claim_tests, load_study, study_names
from experiments.specs.run import FirstPhase, Run
from experiments.specs.schema import ClaimTest
from experiments.store import tidy
from experiments.store.collect import records_table
from experiments.store.record import make_record
from tests.experiments.analysis import synthetic
from tests.experiments.specs.edit import edited

NULL = dict.fromkeys(synthetic.METHODS, 0.0)


def ledger(**options):
    made = synthetic.make(make_record, **options)
    study = synthetic.study(made)
    table = claims.evaluate(records_table(made, study), study)
    return table.set_index("id")


def test_a_true_effect_holds_and_its_opposite_is_contradicted():
    table = ledger(seeds=5)
    assert table.loc["C001", "verdict"] == "holds"
    assert table.loc["C001", "role"] == "primary"
    assert table.loc["C002", "effect"] < 0
    assert table.loc["C077", "verdict"] == "suggests against"


def test_two_seeds_never_hold():
    table = ledger(seeds=2, noise=1e-6)
    tested = table[table["num_seeds"] > 0]
    tested = tested[tested["role"] != claims.OPEN]
    assert len(tested) and set(tested["verdict"]) == {"inconclusive"}


def test_a_question_that_the_source_leaves_open_is_measured_without_a_verdict():
    row = ledger(seeds=5).loc["C004"]
    assert row["role"] == claims.OPEN and row["verdict"] == "open question"
    assert row["p"] < 0.05 and row["interval"] and "the source takes no side" in row["reason"]
    # The alternative is two-sided, so its p is printed as it is.
    assert f"two-sided p = {row['p']:.2g}" in row["reason"]
    assert "C004" not in {test.name for test in claims.evidence(ledger(seeds=5).reset_index())}


def test_what_a_test_changes_is_said_beside_it():
    test, empty = claim_tests()["C078"], records_table([], synthetic.study([]))
    assert comparison.compare(test, empty).tested_as.endswith(f" ({test.note})")


@pytest.mark.parametrize(
    ("p", "p_opposite", "word"),
    [(0.02, 0.98, "holds"), (0.04, 0.96, "inconclusive"), (0.98, 0.02, "contradicted")],
)
def test_a_comparison_alone_needs_the_interval_in_both_directions(p, p_opposite, word):
    assert words.alone(stats.Paired(5, 0.1, -0.1, 0.3, p, p_opposite)) == word


def test_the_means_of_both_sides_stand_beside_their_difference():
    made = synthetic.make(make_record, seeds=5)
    study = synthetic.study(made)
    records = records_table(made, study)
    row = claims.evaluate(records, study).set_index("id").loc["C002"]
    scores = records[(records["metric"] == "perplexity") & (records["split"] == "validation")]
    means = scores.groupby("method")["value"].mean()
    found = [float(mean) for mean in row["means"].split(" against ")]
    assert found == pytest.approx([means["rigl"], means["static"]], abs=0.05)
    assert found[0] - found[1] == pytest.approx(row["effect"], abs=0.1)
    assert row["unit"] == ""  # the metric's name says it


@pytest.mark.parametrize(
    ("a", "b", "text"),
    [
        ([0.16, 0.18, 0.5], [0.14, 0.1403, 0.2], "0.28 against 0.16"),
        ([2.3451], [2.16249], "2.35 against 2.16"),
        ([54.0, 55.0], [46.0, 46.9], "54.5 against 46.5"),
        ([1000.0], [800.0], "1000.0 against 800.0"),
        ([0.3121], [0.31236], "0.31210 against 0.31236"),
        ([1.5], [1.5], "1.5000 against 1.5000"),
    ],
)
def test_means_have_the_digits_that_their_difference_needs(a, b, text):
    pair = stats.paired(dict(enumerate(a)), dict(enumerate(b)))
    assert words.means_of(pair) == text
    assert f"({text})" in words.effect_of(pair)


def test_means_are_of_the_seeds_that_both_sides_have():
    assert stats.paired({0: 1.0, 1: 3.0, 2: 100.0}, {0: 0.0, 1: 1.0, 9: 50.0}).means == (2.0, 0.5)
    assert words.means_of(stats.binomial(3, 5, 0.2)) == ""


def test_every_published_claim_has_a_row_and_a_reason():
    table = ledger(seeds=1)
    assert len(table) == len(published.claims()) >= 87
    assert set(table["verdict"]) <= set(policy.VERDICTS)
    assert (table["reason"].str.len() > 0).all()
    assert set(claim_tests()) == set(table.index)


def test_missing_methods_are_named():
    table = ledger(seeds=3, methods=["dense", "static", "rigl"])
    assert table.loc["C001", "verdict"] == "not tested"
    assert "no finished run of SET 80% with" in table.loc["C001", "reason"]


def test_a_claim_without_its_runs_says_what_they_are_expected_to_cost():
    """Five seeds of SET at half an hour each; Static's runs are there, and C002 needs no SET."""
    made = synthetic.make(make_record, seeds=5)
    study = synthetic.study(made)
    study = study.changed(runs=tuple(dataclasses.replace(r, core_seconds=1800) for r in study.runs))
    records = records_table([row for row in made if row["spec"]["method"] != "set"], study)
    table = claims.evaluate(records, study).set_index("id")
    assert table.loc["C001", "verdict"] == "not tested"
    assert "; 5 runs missing, about 2.5 core-hours planned" in table.loc["C001", "reason"]
    assert "missing" not in table.loc["C002", "reason"]
    prose = {name for name, test in claim_tests().items() if test.not_tested is not None}
    assert not table.loc[sorted(prose), "reason"].str.contains("missing").any()


def test_runs_that_a_claim_waits_for_include_their_first_phases():
    study = planned_study(load_study("spdf"), "small")
    test = claim_tests()["C029"]
    seeds = claims.registered_seeds("C029")
    missing = comparison.unfinished(test, study, set(), seeds)
    first = {run.id for run in missing if run.spec.starts_from is None}
    assert first and first == {run.spec.starts_from.run for run in missing if run.id not in first}
    assert {run.spec.seed for run in missing} == set(seeds)
    left = comparison.unfinished(test, study, first, seeds)
    assert {run.id for run in left} == {run.id for run in missing} - first
    assert comparison.unfinished(test, study, {run.id for run in missing}, seeds) == []


def test_a_study_may_not_name_an_unknown_claim():
    made = synthetic.make(make_record, seeds=1, methods=["dense"])
    study = synthetic.study(made, claims={"primary": ["C999"]})
    with pytest.raises(ValueError, match="C999"):
        claims.evaluate(records_table(made, study), study)


def claim_row(name, role, p, *, seeds=5, post_hoc=""):
    """A row of a study's tested claims."""
    row = dict.fromkeys(claims.COLUMNS, "")
    row |= {"id": name, "role": role, "p": p, "p_opposite": 1 - p, "num_seeds": seeds}
    return row | {"post_hoc": post_hoc, "p_adjusted": np.nan, "num_registered": 5}


def judged(row):
    return claims.judge(pd.DataFrame([row])).iloc[0]


def test_primary_claims_of_all_studies_are_one_family(tmp_path):
    first = pd.DataFrame([claim_row("C001", "primary", 0.004)])
    rows = [claim_row("C015", "primary", 0.012), claim_row("C016", "exploratory", 0.012)]
    second = pd.DataFrame(rows)
    own = claims.judge(first, claims.evidence(second))
    assert own["p_adjusted"].tolist() == pytest.approx([0.016])
    other = claims.judge(second, claims.evidence(first))
    assert other["p_adjusted"].tolist() == pytest.approx([0.024, 0.024])
    assert other["verdict"].tolist() == ["holds", "suggests"]
    alone = claims.judge(first, num_primary=7).iloc[0]
    assert alone["p_adjusted"] == pytest.approx(7 * 0.008) and alone["verdict"] == "inconclusive"


def test_a_planned_claim_without_runs_counts_in_its_family():
    """Of nine planned, the only tested one has nine times its p; a second result helps it."""
    row = claim_row("C015", "exploratory", 0.002)
    alone = claims.judge(pd.DataFrame([row]), num_exploratory=9).iloc[0]
    assert alone["p_adjusted"] == pytest.approx(9 * 0.004)
    other = claims.evidence(pd.DataFrame([claim_row("C016", "exploratory", 0.001)]))
    both = claims.judge(pd.DataFrame([row]), other, num_exploratory=9).iloc[0]
    assert both["p_adjusted"] == pytest.approx(9 * 0.004 / 2)


def test_the_families_are_what_studies_list_for_trained_runs_to_decide():
    studies = [load_study(name) for name in study_names()]
    found = claims.families(studies)
    tests = claim_tests()
    assert "C001" in found["primary"] and not found["primary"] & found["exploratory"]
    assert "C004" not in found["primary"] | found["exploratory"]  # an open question
    listed = {claim for study in studies for claim in study.claims.exploratory}
    assert found["exploratory"] == {
        claim for claim in listed if tests[claim].is_comparison and not tests[claim].open
    }


def test_the_ledger_tells_in_what_the_sides_differ():
    """Dense reads as many tokens for 9 / 4 of the FLOPs; only GMP has another rate."""
    made = synthetic.make(make_record, seeds=5, methods=["dense", "static", "gmp"])
    study = synthetic.study(made)
    runs = [
        Run(edited(run.spec, lambda spec: spec["recipe"].update(learning_rate=0.02)))
        if run.spec.method == "gmp"
        else run
        for run in study.runs
    ]
    test = ClaimTest(
        metric="perplexity",
        split="validation",
        held_equal=["tokens"],
        order=[{"method": "gmp"}, {"method": "static"}, {"method": "dense"}],
    )
    records = records_table(made, study)
    found = comparison.compare(test, records, study.changed(runs=tuple(runs))).sides
    assert (
        "executed training FLOPs, the least as 1: GMP 80% = 1, Static 80% = 1, Dense = 2.25"
        in found
    )
    assert "learning rates: GMP 80% = 0.02, Static 80% = 0.005, Dense = 0.005" in found
    assert "read" not in found
    same = test.model_copy(update={"order": [{"method": "static"}, {"method": "static"}]})
    assert "FLOPs" not in comparison.compare(same, records, study).sides


def test_sides_are_named_as_figures_name_them():
    """Labels with their sparsity, unless they tell one; unlabelled methods by their key."""
    methods = {
        "rigl-i1-d30": {"sparsity": {"algorithm": "rigl"}, "label": "RigL 1% / 30%"},
        "set80": {"sparsity": {"algorithm": "set"}},
        "set80-long": {"sparsity": {"algorithm": "set"}, "label": "SET long"},
        "dense": {},
        "dense-too": {"label": "Dense"},
    }
    for own in methods.values():
        own |= {"recipe": "full", "final_sparsity": 0.8 if "sparsity" in own else 0.0}
    study = synthetic.study([], methods=methods)
    keys = {"metric": "accuracy", "direction": "less"}

    def named(*methods, **more):
        test = ClaimTest(**keys, a={"method": methods[0]} | more, b={"method": methods[1]})
        return words.describe(links_of(test)[0], namer(test, study))

    assert named("rigl-i1-d30", "set80-long") == "accuracy: RigL 1% / 30% < SET long 80%"
    assert named("set80", "dense", model="larger") == "accuracy: SET 80% larger < Dense"
    assert named(["set80", "unknown"], "dense") == "accuracy: SET 80% and unknown < Dense"
    assert named("static", "dense", sparsity=0.9) == "accuracy: Static 90% < Dense"
    # One label for both sides would name nothing.
    assert named("dense-too", "dense") == "accuracy: dense-too < dense"


def test_costs_include_the_phase_that_weights_come_from():
    records = pd.DataFrame(
        {
            "run": ["first", "second", "lonely"],
            "metric": "flops_executed",
            "value": [5.0, 2.0, 3.0],
        }
    )
    made = synthetic.make(make_record, seeds=1, methods=["dense"])
    base = synthetic.study(made).runs[0].spec

    def run(name, first=None):
        start = first and FirstPhase(run=first, spec_hash="", densify=True)
        return Run(base.model_copy(update={"id": name, "starts_from": start}))

    runs = (run("first"), run("second", "first"), run("lonely", "elsewhere"))
    found = costs.executed(records, NO_STUDY.changed(runs=runs))
    assert found["first"] == 5 and found["second"] == 7 and np.isnan(found["lonely"])


def test_evidence_survives_its_file(tmp_path):
    made = synthetic.make(make_record, seeds=5)
    study = synthetic.study(made)
    table = records_table(made, study)
    claims.write_evidence(table, study, tmp_path / "evidence.csv")
    kept = claims.read_evidence(tmp_path / "evidence.csv")
    assert kept == claims.evidence(claims.tested_claims(table, study)) and len(kept) > 2


def test_a_claim_is_read_when_all_registered_seeds_are_there():
    row = claim_row("C001", "primary", 0.0001, seeds=9) | {"num_registered": 16}
    early = judged(row)
    assert early["verdict"] == "inconclusive" and "9 of the 16 seeds" in early["reason"]
    assert judged(row | {"num_seeds": 16})["verdict"] == "holds"


def test_what_has_a_verdict_already_keeps_it():
    row = claim_row("C008", "exact", np.nan) | {"verdict": "holds", "reason": "arithmetic"}
    assert judged(row)["verdict"] == "holds" and judged(row)["reason"] == "arithmetic"


def test_post_hoc_tests_only_suggest():
    found = judged(claim_row("C001", "primary", 0.0001, post_hoc="its margin was added later"))
    assert found["verdict"] == "suggests" and "its margin was added later" in found["reason"]


EXACT = {name: test for name, test in claim_tests().items() if test.exact}


def check_of(claim, study):
    return exact.CHECKS[EXACT[claim].exact](None, study, EXACT[claim], claim)


@pytest.mark.parametrize("claim", [name for name in EXACT if name != "C050"])
def test_arithmetic_of_the_sources(claim, computed):
    computations = [{"name": name} for name in ("flops", "device")]
    check = check_of(claim, synthetic.study([], computations=computations))
    assert check.holds is True, check.reason


def test_a_setting_against_itself_decides_nothing_and_says_so():
    made = synthetic.make(make_record, seeds=5)
    study = synthetic.study(made)
    records = records_table(made, study)
    twin = records[records["method"] == "static"].assign(
        method="twin", run=lambda r: r["run"] + "t"
    )
    records = pd.concat([records, twin], ignore_index=True)
    keys = {"metric": "perplexity", "split": "validation", "direction": "less"}
    links = [{"a": {"method": "set"}, "b": {"method": "static"}},
             {"a": {"method": "twin"}, "b": {"method": "static"}}]  # fmt: skip
    found = comparison.compare(ClaimTest(**keys, every=links), records, synthetic.study([]))
    assert found.verdict == "inconclusive" and found.pair is None
    assert "twin minus Static is 0 at every seed, one setting under two names" in found.reason
    assert "SET minus Static" in found.links


def test_every_comparison_says_what_is_held_equal():
    known = {"tokens", "steps", "epochs", "batch", "data", "layer FLOPs", "whole-model FLOPs"}
    known |= {"wall time", "fine-tuning steps", "first phase", "tokens of the first phase"}
    known |= {"epochs of both phases", "sentences", "sparsity", "sparsity of the component"}
    known |= {"rate and initial values that were tuned dense"}
    for name, test in claim_tests().items():
        if not test.is_comparison:
            continue
        assert test.held_equal and set(test.held_equal) <= known, name
        # A claim of equal cost is compared with a control of equal cost.
        about = published.claims().set_index("claim_id").loc[name, "statement"].lower()
        if "iso-flop" in about or "equal flops" in about:
            assert {"layer FLOPs", "whole-model FLOPs"} & set(test.held_equal), name


def test_a_dense_control_is_trained_by_the_recipe_of_what_stands_beside_a_published_number():
    tests = {name: test for name, test in claim_tests().items() if test.dense_control}
    studies = [study for study in map(load_study, study_names()) if not study.trials]
    seen = set()
    for study in studies:
        for name in tests.keys() & {*study.claims.primary, *study.claims.exploratory}:
            control = tests[name].dense_control
            assert control in comparison.dense_methods(study), name
            compared = links_of(tests[name])
            sides = [link.a["method"] for link in compared if "published" in (link.b or {})]
            assert {study.methods[side].recipe for side in sides} == {
                study.methods[control].recipe
            }, name
            for grid in (grid for grids in study.scales.values() for grid in grids):
                assert control in grid.methods or not {*sides} & {*grid.methods}, name
            seen.add(name)
    assert seen == set(tests) and "C055" in seen


def test_every_margin_is_justified_in_writing():
    for name, test in claim_tests().items():
        if any(link.margin for link in [test, *(test.every or [])]):
            assert len(test.margin_why or "") > 10, name


def test_the_ledger_prints_what_is_held_equal_and_what_is_scaled_down():
    table = ledger(seeds=5)
    assert table.loc["C005", "held_equal"] == "tokens, batch, steps"
    assert "learning rate" in table.loc["C005", "not_equal"]
    # One rule for all: a claim on 1.3B or 6.7B is tested scaled down, and says so.
    assert table.loc["C005", "scaled_down"] == "1.3B"
    for test in claim_tests().values():
        assert not {"6.7B", "1.3B"} & set((test.not_tested or "").split())
    everything = claims.evaluate(records_table([], synthetic.study([])), synthetic.study([]))
    assert (everything[everything["role"] == "exact"]["held_equal"] != "").all()


@pytest.mark.parametrize("kept", ["fc4caf46", "00000000", None])
def test_runs_trained_under_another_test_make_it_post_hoc(kept):
    made = synthetic.make(make_record, seeds=5)
    for record in made:
        record["claim_tests"] = None if kept is None else {"C001": kept}
    study = synthetic.study(made)
    row = claims.evaluate(records_table(made, study), study).set_index("id").loc["C001"]
    now = claim_tests()["C001"].hash[:8]
    if kept in (now, None):
        assert row["post_hoc"] == "" and row["verdict"] == "holds"
    else:
        assert row["post_hoc"] == "10 of its 10 runs were trained before the test was as it is now"
        assert row["verdict"] == "suggests"


def test_a_changed_test_is_post_hoc_for_old_runs_until_new_seeds_decide(monkeypatch):
    made = synthetic.make(make_record, seeds=10)
    changed = claim_tests()["C001"].model_copy(update={"margin": 0.001})
    hashes = {"C001": changed.hash[:8]}
    for record in made:
        record["claim_tests"] = hashes if record["spec"]["seed"] >= 5 else {"C001": "fc4caf46"}
    table = records_table(made, synthetic.study([], name="any"))
    new = [r["run"] for r in made if r["spec"]["seed"] >= 5]
    every = " ".join(r["run"] for r in made)
    assert claims.trained_under_another("C001", changed, table, " ".join(new)) == ""
    assert claims.trained_under_another("C001", changed, table, every).startswith("30 of its 60")


def test_the_interval_shown_is_of_the_link_that_decides():
    good = stats.Paired(5, 1.0, 0.9, 1.1, 0.0001, 0.9999)
    bad = stats.Paired(5, -1.0, -1.1, -0.9, 0.9999, 0.0001)
    unclear = stats.Paired(5, 0.0, -2.0, 2.0, 0.99999, 0.2)  # with a margin, p need not mirror
    at, shown = comparison.weakest_link([good, unclear, bad])
    assert at == 2 and shown.effect == -1.0 and shown.high < 0
    assert shown.p_opposite == pytest.approx(0.0003) and shown.p == 0.99999
    at, shown = comparison.weakest_link([good, stats.Paired(5, 0.5, 0.1, 0.9, 0.01, 0.99)])
    assert at == 1 and shown.p == 0.01


def test_the_update_flops_are_checked_on_the_counted_schedule(computed):
    study = synthetic.study([], computations=[{"name": "flops"}])
    check = exact.CHECKS["update_flops"](records_table([], study), study)
    assert check.holds is None and "closed form" in check.reason
    assert "SNFS is not counted" in check.reason
    whole = synthetic.study([], computations=[{"name": "flops"}, {"name": "update_flops"}])
    check = exact.CHECKS["update_flops"](records_table([], whole), whole)
    assert check.holds is True and "Static, SET, RigL, SNFS" in check.reason
    made = synthetic.make(make_record, seeds=1)
    table = records_table(made, study)
    study = whole
    both = exact.CHECKS["update_flops"](table, study)
    assert both.holds is True and "RigL executes 1.00% more" in both.reason
    table.loc[(table["method"] == "set") & (table["metric"] == "flops_executed"), "value"] *= 2
    assert exact.CHECKS["update_flops"](table, study).holds is False
    assert exact.CHECKS["update_flops"](table.iloc[:0], synthetic.study([])).holds is None


def test_nothing_published_was_dropped():
    assert len(published.results()) == 983
    assert published.value("CB_SPARSITY_LIB", metric="peak LR") == "2e-4"
    assert published.value("CB_SPARSITY_LIB", metric="validation perplexity") == published.UNKNOWN


def test_without_any_run_only_arithmetic_gets_a_verdict():
    study = synthetic.study([], claims={"exploratory": list(claim_tests())})
    table = claims.evaluate(records_table([], study), study)
    assert set(table[table["verdict"] != "not tested"]["role"]) == {"exact"}


def test_a_study_tests_only_what_it_lists():
    made = synthetic.make(make_record, seeds=3)
    study = synthetic.study(made, claims={"exploratory": ["C002"]})
    table = claims.evaluate(records_table(made, study), study).set_index("id")
    assert table.loc["C002", "num_seeds"] == 3 and table.loc["C002", "role"] == "exploratory"
    assert table.loc["C001", "verdict"] == "not tested" and table.loc["C001", "role"] == ""
    assert table.loc["C001", "reason"] == claims.ELSEWHERE


def test_each_claim_with_a_test_is_listed_by_a_study_and_each_comparison_by_one():
    listed = [
        name
        for study in map(load_study, study_names())
        for name in (*study.claims.primary, *study.claims.exploratory)
    ]
    tests = claim_tests()
    assert {name for name, test in tests.items() if test.not_tested is None} <= set(listed)
    for name in set(listed):
        assert listed.count(name) == 1 or tests[name].exact, name


def test_a_published_number_is_a_side_of_a_comparison_and_links_have_metrics_of_their_own():
    made = synthetic.make(make_record, seeds=5)
    study = synthetic.study(made)
    records = records_table(made, study)
    perplexity = tidy.select(records, "perplexity", split="validation")
    low = perplexity[(perplexity["method"] == "set")]["value"].mean() - 10.0
    loss = tidy.select(records, "loss", split="train")
    gap = loss[loss["method"] == "set"]["value"].mean() - loss["value"].min() + 100.0
    test = ClaimTest(
        metric="perplexity",
        split="validation",
        direction="greater",
        every=[
            {"a": {"method": "set"}, "b": {"published": float(low)}},
            {
                "metric": "loss",
                "split": "train",
                "a": {"method": "set"},
                "b": {"method": "static"},
                "margin": -float(gap),
            },
        ],
        dense_control="dense",
    )
    found = comparison.compare(test, records, study)
    assert found.pair is not None and found.pair.num_seeds == 5 and found.pair.p < 0.05
    dense = perplexity[perplexity["method"] == "dense"]["value"].mean()
    assert found.reason.endswith(f"; Dense, by the same recipe, has {dense:.4g} perplexity")
    without = records[records["method"] != "dense"]
    assert comparison.compare(test, without, study).reason.endswith("has no finished run")
    none = test.model_copy(update={"dense_control": None, "no_dense_control": "it is too large"})
    assert comparison.compare(none, records, study).reason.endswith(
        "; without a dense control by the same recipe: it is too large"
    )
    first, second = found.links.split("; ")
    assert (
        first.startswith("perplexity: SET 80% minus the published")
        and "+10 (13.0 against 3.0) [" in first
    )
    assert second.startswith("loss: SET 80% minus Static 80%")
    turned = test.every[0].model_copy(update={"direction": "less"})
    opposite = comparison.compare(test.model_copy(update={"every": [turned]}), records, study)
    assert opposite.pair.p_opposite < 0.05


def test_a_side_that_did_not_train_decides_nothing_but_a_claim_of_collapse():
    made = synthetic.make(make_record, seeds=5)
    study = synthetic.study(made)
    records = records_table(made, study)
    own = (records["metric"] == "perplexity") & (records["split"] == "validation")
    records.loc[own & (records["method"] == "set"), "value"] = 5000.0
    keys = {"metric": "perplexity", "split": "validation", "a": {"method": "set"}}
    judged = ClaimTest(**keys, b={"method": "static"}, direction="less")
    found = comparison.compare(judged, records, study)
    assert found.pair is None and "SET 80% ends at 5e+03 perplexity, above 1024" in found.reason
    alone = ClaimTest(**keys, collapse={"below": 0.8, "rate": 0.2})
    assert comparison.compare(alone, records, study).pair is not None


def test_a_collapse_is_a_share_of_seeds_and_judged_by_exact_binomial_tests():
    made = synthetic.make(make_record, seeds=12)
    study = synthetic.study(made)
    records = records_table(made, study)
    own = (records["metric"] == "perplexity") & (records["split"] == "validation")
    own &= records["method"] == "set"
    scores = dict.fromkeys(range(12), 50.0) | {3: 30.0, 7: 20.0, 8: 40.1}
    records.loc[own, "value"] = records.loc[own, "seed"].map(scores)
    keys = {"metric": "perplexity", "split": "validation", "a": {"method": "set"}}
    test = ClaimTest(**keys, collapse={"below": 0.8, "rate": 0.2})
    found = comparison.compare(test, records, study)
    assert found.compared == "share of seeds of SET 80%"
    assert found.tested_as.endswith("perplexity below 0.8 of the median, above 0.2")
    pair, known = found.pair, binomtest(2, 12, 0.2, alternative="greater")
    assert (pair.num_seeds, pair.effect) == (12, 2 / 12)
    assert pair.p == pytest.approx(known.pvalue)
    assert pair.p_opposite == pytest.approx(binomtest(2, 12, 0.2, alternative="less").pvalue)
    interval = binomtest(2, 12).proportion_ci(0.95, method="exact")
    assert (pair.low, pair.high) == pytest.approx((interval.low, interval.high))
    # None of twenty leaves no doubt that one in five is too much, although all values are alike.
    none = stats.binomial(0, 20, 0.2)
    assert (none.low, none.p) == (0.0, 1.0) and none.p_opposite == pytest.approx(0.8**20)
    assert stats.binomial(20, 20, 0.2).high == 1.0
