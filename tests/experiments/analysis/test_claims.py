"""Verdicts on records whose truth is known, and the completeness of the published files."""

import numpy as np
import pytest

from experiments.analysis import claims, exact, published, records, stats
from tests.experiments.analysis import synthetic

NULL = dict.fromkeys(synthetic.METHODS, 0.0)


def ledger(**options):
    made = synthetic.make(records.make_record, **options)
    study = synthetic.study(made)
    table = claims.evaluate(records.records_table(made, study), study)
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
    assert len(tested) and set(tested["verdict"]) == {"inconclusive"}


def test_every_published_claim_has_a_row_and_a_reason():
    table = ledger(seeds=1)
    assert len(table) == len(published.claims()) == 87
    assert set(table["verdict"]) <= set(claims.VERDICTS)
    assert (table["reason"].str.len() > 0).all()
    assert set(published.tests()) == set(table.index)


def test_missing_methods_are_named():
    table = ledger(seeds=3, methods=["dense", "static", "rigl"])
    assert table.loc["C001", "verdict"] == "not tested"
    assert "set 0.8" in table.loc["C001", "reason"]


def test_a_study_may_not_name_an_unknown_claim():
    made = synthetic.make(records.make_record, seeds=1, methods=["dense"])
    study = synthetic.study(made, claims={"primary": ["C999"]})
    with pytest.raises(ValueError, match="C999"):
        claims.evaluate(records.records_table(made, study), study)


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
        holds += claims.verdict(pair)[0] == "holds"
    # 1,000 draws at 5%: mean 50, standard deviation 6.9
    assert holds <= 65


def test_counter_evidence_points_at_claims_that_exist():
    for name, test in published.tests().items():
        for other in test.get("concerns", []):
            assert other in published.tests(), (name, other)


@pytest.mark.parametrize("name", sorted(set(exact.CHECKS) - {"update_flops"}))
def test_arithmetic_of_the_sources(name):
    assert exact.CHECKS[name](None, {}).holds is True


def test_cs2_curve_at_its_ends():
    assert exact.cs2_speedup(0.0) == 1.0
    assert exact.cs2_speedup(0.5) == pytest.approx(1 / 0.5104)


def test_nothing_published_was_dropped():
    assert len(published.results()) == 983
    assert published.value("CB_SPARSITY_LIB", metric="peak LR") == "2e-4"
    assert published.value("CB_SPARSITY_LIB", metric="validation perplexity") == published.UNKNOWN


def test_without_any_run_only_arithmetic_gets_a_verdict():
    study = synthetic.study([])
    table = claims.evaluate(records.records_table([], study), study)
    assert set(table[table["verdict"] != "not tested"]["role"]) == {"exact"}
