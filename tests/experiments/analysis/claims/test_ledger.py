"""Verdicts on records whose truth is known, and the completeness of the published files."""

import numpy as np
import pandas as pd
import pytest

from experiments import published
from experiments.analysis import stats
from experiments.analysis.claims import comparison, exact
from experiments.analysis.claims import ledger as claims
from experiments.specs import plan
from experiments.store import tidy
from experiments.store.collect import records_table
from experiments.store.record import make_record
from tests.experiments.analysis import synthetic

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
    assert table.loc["C077", "verdict"] == "contradicted"


def test_two_seeds_never_hold():
    table = ledger(seeds=2, noise=1e-6)
    tested = table[table["num_seeds"] > 0]
    tested = tested[tested["role"] != claims.OPEN]
    assert len(tested) and set(tested["verdict"]) == {"inconclusive"}


def test_a_question_that_the_source_leaves_open_is_measured_without_a_verdict():
    row = ledger(seeds=5).loc["C004"]
    assert row["role"] == claims.OPEN and row["verdict"] == "not tested"
    assert row["p"] < 0.05 and row["interval"] and "the source takes no side" in row["reason"]


def test_what_a_test_changes_is_said_beside_it():
    test, empty = published.tests()["C078"], records_table([], synthetic.study([]))
    assert comparison.compare(test, empty).tested_as.endswith(f" ({test['note']})")


@pytest.mark.parametrize(
    ("p", "p_opposite", "word"),
    [(0.04, 0.96, "holds"), (0.96, 0.04, "inconclusive"), (0.98, 0.02, "contradicted")],
)
def test_a_contradiction_needs_the_interval_too(p, p_opposite, word):
    assert comparison.verdict(stats.Paired(3, 0.1, -0.1, 0.3, p, p_opposite))[0] == word


def test_every_published_claim_has_a_row_and_a_reason():
    table = ledger(seeds=1)
    assert len(table) == len(published.claims()) >= 87
    assert set(table["verdict"]) <= set(claims.VERDICTS)
    assert (table["reason"].str.len() > 0).all()
    assert set(published.tests()) == set(table.index)


def test_missing_methods_are_named():
    table = ledger(seeds=3, methods=["dense", "static", "rigl"])
    assert table.loc["C001", "verdict"] == "not tested"
    assert "set 0.8" in table.loc["C001", "reason"]


def test_a_study_may_not_name_an_unknown_claim():
    made = synthetic.make(make_record, seeds=1, methods=["dense"])
    study = synthetic.study(made, claims={"primary": ["C999"]})
    with pytest.raises(ValueError, match="C999"):
        claims.evaluate(records_table(made, study), study)


def test_primary_claims_are_corrected_together():
    table = ledger(seeds=5, noise=0.05)
    for name in ("C001", "C002"):
        row = table.loc[name]
        assert row["p"] <= row["p_adjusted"] <= min(1.0, 2 * row["p"] + 1e-12) or np.isnan(row["p"])


@pytest.mark.parametrize("num_seeds", [3, 5])
def test_false_positives_stay_at_five_percent(num_seeds):
    rng = np.random.default_rng(1)
    holds = 0
    for _ in range(1000):
        a, b = rng.normal(size=(2, num_seeds))
        pair = stats.paired(dict(enumerate(a)), dict(enumerate(b)), direction="less")
        holds += comparison.verdict(pair)[0] == "holds"
    # 1,000 draws at 5%: mean 50, standard deviation 6.9
    assert holds <= 65


def null_pairs(rng, *, direction="less", num_seeds=3, sides=2):
    """A comparison of treatments that do not differ; four sides compare two differences."""
    values = [dict(enumerate(rng.normal(size=num_seeds))) for _ in range(sides)]
    if sides == 4:
        first, second = (
            {seed: a[seed] - b[seed] for seed in a} for a, b in (values[:2], values[2:])
        )
        values = [first, second]
    return stats.paired(*values, direction=direction)


def rate(found):
    """Share of wrong verdicts; of 1,000 draws at 5% the standard deviation is 6.9."""
    return sum(found) / len(found)


@pytest.mark.parametrize("options", [{"direction": "differ"}, {"direction": "less", "sides": 4}])
def test_nulls_of_open_questions_and_gaps(options):
    rng = np.random.default_rng(2)
    found = [comparison.verdict(null_pairs(rng, **options))[0] for _ in range(1000)]
    assert rate([word == "holds" for word in found]) <= 0.065


def test_nulls_of_several_comparisons():
    """All links must hold, and each of three may contradict: neither happens by chance."""
    rng = np.random.default_rng(3)
    found = []
    for _ in range(1000):
        _, pair = comparison.weakest_link([null_pairs(rng, num_seeds=5) for _ in range(3)])
        found.append(comparison.verdict(pair)[0])
    assert rate([word == "holds" for word in found]) <= 0.01  # 0.05 to the third power
    assert rate([word == "contradicted" for word in found]) <= 0.065


def test_nulls_of_primary_claims_share_one_error_rate():
    rng = np.random.default_rng(4)
    found = []
    for _ in range(1000):
        adjusted = stats.holm({name: null_pairs(rng).p for name in "abc"})
        found.append(min(adjusted.values()) < comparison.ALPHA)
    assert rate(found) <= 0.065


def test_counter_evidence_points_at_claims_that_exist():
    for name, test in published.tests().items():
        for other in test.get("concerns", []):
            assert other in published.tests(), (name, other)


EXACT = {name: test for name, test in published.tests().items() if "exact" in test}
LIBRARY = [name for name, test in EXACT.items() if test["exact"] == "property"]


def check_of(claim, study):
    return exact.CHECKS[EXACT[claim]["exact"]](None, study, {"claim": claim, **EXACT[claim]})


@pytest.mark.parametrize(
    "claim", [name for name in EXACT if name not in LIBRARY and name != "C050"]
)
def test_arithmetic_of_the_sources(claim, computed):
    computations = [{"name": name} for name in ("flops", "device")]
    check = check_of(claim, {"scale": "quick", "computations": computations})
    assert check.holds is True, check.reason


@pytest.mark.parametrize("claim", LIBRARY)
def test_the_library_is_as_its_sources_say(claim, computed, monkeypatch):
    study = synthetic.study([], computations=[{"name": "library"}])
    check = check_of(claim, study)
    assert check.holds is True, check.reason
    assert check_of(claim, synthetic.study([])).holds is None
    rows = tidy.computed("quick", "library", "properties")
    wrong = rows.assign(found=rows["found"] + 1, met=False)
    monkeypatch.setattr(tidy, "computed", lambda *_: wrong)
    check = check_of(claim, study)
    assert check.holds is False and "cases differ" in check.reason


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([1.03, 1.04, 1.05], "holds"),
        ([1.25, 1.26, 1.27], "contradicted"),
        ([1.00, 1.10, 1.20], "inconclusive"),
        ([1.05], "inconclusive"),
    ],
)
def test_overhead_is_judged_by_its_interval(monkeypatch, ratios, verdict):
    rows = pd.DataFrame({"method": "Static", "round": range(len(ratios)), "ratio": ratios})
    monkeypatch.setattr(tidy, "computed", lambda *_: rows)
    study = synthetic.study(
        [], computations=[{"name": "library"}], claims={"exploratory": ["C007"]}
    )
    table = claims.evaluate(records_table([], study), study).set_index("id")
    assert table.loc["C007", "verdict"] == verdict and table.loc["C007", "role"] == "measured"


def test_the_update_flops_are_checked_on_the_counted_schedule(computed):
    study = synthetic.study([], computations=[{"name": "flops"}])
    check = exact.CHECKS["update_flops"](records_table([], study), study)
    assert check.holds is True and "closed form" in check.reason
    made = synthetic.make(make_record, seeds=1)
    table = records_table(made, study)
    both = exact.CHECKS["update_flops"](table, study)
    assert both.holds is True and "RigL executes 1.00% more" in both.reason
    table.loc[(table["method"] == "set") & (table["metric"] == "flops_executed"), "value"] *= 2
    assert exact.CHECKS["update_flops"](table, study).holds is False
    assert exact.CHECKS["update_flops"](table.iloc[:0], {"scale": "quick"}).holds is None


def test_nothing_published_was_dropped():
    assert len(published.results()) == 983
    assert published.value("CB_SPARSITY_LIB", metric="peak LR") == "2e-4"
    assert published.value("CB_SPARSITY_LIB", metric="validation perplexity") == published.UNKNOWN


def test_without_any_run_only_arithmetic_gets_a_verdict():
    study = synthetic.study([], claims={"exploratory": list(published.tests())})
    table = claims.evaluate(records_table([], study), study)
    assert set(table[table["verdict"] != "not tested"]["role"]) == {"exact"}
    assert table[table["role"] == "measured"]["verdict"].tolist() == ["not tested"]


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
        for study in map(plan.load_study, plan.study_names())
        for name in (*study.claims.primary, *study.claims.exploratory)
    ]
    tests = published.tests()
    assert {name for name, test in tests.items() if "not_tested" not in test} <= set(listed)
    for name in set(listed):
        assert listed.count(name) == 1 or "exact" in tests[name], name
