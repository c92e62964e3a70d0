"""Verdicts follow the policy: families, levels, seeds, and what was registered."""

import dataclasses
import math

import numpy as np
import pytest

from experiments import published
from experiments.analysis import stats
from experiments.analysis.claims import ledger, policy
from experiments.analysis.claims.policy import Evidence
from experiments.specs.read import claim_tests, load_study, study_names


def words(*tests, **sizes):
    return {name: verdict.word for name, verdict in policy.verdicts(tests, **sizes).items()}


def test_both_directions_are_judged_at_the_same_level():
    for p, primary, exploratory in ((0.024, policy.HOLDS, policy.SUGGESTS),):
        claim = Evidence("a", True, p, 1 - p, 5)
        assert words(claim) == {"a": primary}
        assert words(Evidence("a", True, 1 - p, p, 5)) == {"a": policy.CONTRADICTED}
        assert words(Evidence("a", False, p, 1 - p, 5)) == {"a": exploratory}
        assert words(Evidence("a", False, 1 - p, p, 5)) == {"a": policy.SUGGESTS_AGAINST}
    assert words(Evidence("a", True, 0.026, 0.974, 5)) == {"a": policy.INCONCLUSIVE}


def test_a_verdict_agrees_with_the_two_sided_interval_that_is_shown():
    generator = np.random.default_rng(0)
    seen = set()
    for _ in range(300):
        differences = dict(enumerate(generator.normal(0.8, 1.0, 6)))
        pair = stats.paired(differences, dict.fromkeys(differences, 0.0), direction="greater")
        word = words(Evidence("a", True, pair.p, pair.p_opposite, pair.num_seeds))["a"]
        assert (word == policy.INCONCLUSIVE) == (pair.low < 0 < pair.high)
        seen.add(word)
    assert seen >= {policy.HOLDS, policy.INCONCLUSIVE}


def test_primary_claims_are_one_family_by_hand():
    # Holm: 3 * 2 * 0.004 = 0.024, 2 * 2 * 0.012 = 0.048, 1 * 2 * 0.02 = 0.04, which may not be
    # smaller than the one before it.
    tests = [Evidence(name, True, p, 1 - p, 5) for name, p in zip("abc", (0.004, 0.012, 0.02))]
    found = policy.verdicts(tests)
    assert [round(found[name].p_adjusted, 6) for name in "abc"] == [0.024, 0.048, 0.048]
    assert words(*tests, num_primary=4)["b"] == policy.INCONCLUSIVE


def test_exploratory_claims_are_another_by_hand():
    # Benjamini-Hochberg of 0.01, 0.03, 0.04, 0.2: 0.04, 0.16 / 3, 0.16 / 3, 0.2.
    tests = [
        Evidence(name, False, p / 2, 1 - p / 2, 5)
        for name, p in zip("abcd", (0.01, 0.03, 0.04, 0.2))
    ]
    found = policy.verdicts(tests)
    expected = [0.04, 0.16 / 3, 0.16 / 3, 0.2]
    assert [found[name].p_adjusted for name in "abcd"] == pytest.approx(expected)
    assert [found[name].word for name in "ab"] == [policy.SUGGESTS, policy.INCONCLUSIVE]


@pytest.mark.parametrize("primary", [True, False])
def test_claims_with_one_test_count_once_and_share_its_p_value(primary):
    p_values = {"a": 0.004, "b": 0.012, "c": 0.018}
    once = [
        Evidence(name, primary, p / 2, 1 - p / 2, 5, test=f"test of {name}")
        for name, p in p_values.items()
    ]
    twin = dataclasses.replace(once[0], name="twin")
    alone = policy.verdicts(once, num_primary=5, num_exploratory=5)
    found = policy.verdicts([twin, *once], num_primary=5, num_exploratory=5)
    assert {name: found[name] for name in alone} == alone
    assert found["twin"] == found["a"]
    # As a member of its own the twin would change the ranks of the others.
    own_tests = [dataclasses.replace(test, test="") for test in (twin, *once)]
    apart = policy.verdicts(own_tests, num_primary=5, num_exploratory=5)
    assert apart["b"] != alone["b"]


def test_a_family_counts_each_test_once(monkeypatch):
    tests = dict.fromkeys(("C001", "C003", "C009"), claim_tests()["C001"])
    tests["C002"] = claim_tests()["C002"]
    monkeypatch.setattr(ledger, "claim_tests", lambda: tests)
    assert ledger.members(set(tests)) == {"C001", "C002"}


def test_claims_with_one_test_are_read_from_the_same_runs():
    """Else their p values differ although the hash is one: in study, role or seeds."""
    places, entries = {}, published.registrations()
    for name in study_names():
        study = load_study(name)
        for role in ("primary", "exploratory"):
            for claim in getattr(study.claims, role):
                if claim in entries:
                    own = (name, role, str(ledger.registered_seeds(claim)))
                    places.setdefault(entries[claim]["test"], set()).add(own)
    assert len(places) > 40
    assert all(len(own) == 1 for own in places.values()), places


def test_few_seeds_and_post_hoc_tests_decide_nothing():
    assert words(Evidence("a", True, 1e-6, 1.0, 4)) == {"a": policy.INCONCLUSIVE}
    late = Evidence("a", True, 1e-6, 1.0, 9, post_hoc="the margin was added after the runs")
    verdict = policy.verdicts([late])["a"]
    assert verdict.word == policy.SUGGESTS
    assert "the margin was added after the runs" in verdict.why
    missing = Evidence("a", True, math.nan, math.nan, 9)
    assert words(missing) == {"a": policy.INCONCLUSIVE}


def test_seeds_that_were_announced_are_waited_for():
    early = Evidence("a", True, 1e-6, 1.0, 9, num_registered=16)
    assert words(early) == {"a": policy.INCONCLUSIVE}
    assert words(Evidence("a", True, 1e-6, 1.0, 16, num_registered=16)) == {"a": policy.HOLDS}


def test_what_is_not_whole_counts_as_if_it_had_no_run():
    """Else its interim p value could give another claim a verdict and take it back later."""
    for primary in (True, False):
        other = Evidence("other", primary, 0.02, 0.98, 5)
        for early in (
            Evidence("early", primary, 1e-9, 1.0, 4),
            Evidence("early", primary, 1e-9, 1.0, 9, num_registered=16),
        ):
            alone = policy.verdicts([other], num_primary=2, num_exploratory=2)["other"]
            found = policy.verdicts([early, other])
            assert found["other"] == alone and alone.word == policy.INCONCLUSIVE
            assert math.isnan(found["early"].p_adjusted)


def test_every_registered_test_is_as_it_was_registered():
    """A change of a test is shown as post hoc: register it anew, with the day and the reason."""
    for name, entry in published.registrations().items():
        found = claim_tests()[name].hash
        assert found == entry["test"], f"the test of {name} differs from its registration"


def test_every_comparison_is_registered():
    compared = {name for name, test in claim_tests().items() if test.is_comparison}
    assert compared == set(published.registrations())


def test_every_registration_fixes_its_seeds():
    for name, entry in published.registrations().items():
        assert entry["seeds"] and entry["why"], name
        assert len(ledger.registered_seeds(name)) >= policy.MIN_SEEDS, name
        if isinstance(entry["seeds"], list) and entry["seen"]:
            assert entry["post_hoc"], f"{name} is read at seeds that were seen"


def test_seeds_that_were_seen_do_not_count(monkeypatch):
    entries = {
        "topped up": {"seeds": 8, "seen": 3},
        "new": {"seeds": 5, "seen": 0},
        "listed": {"seeds": [3, 4], "seen": 0},
    }
    monkeypatch.setattr(published, "registrations", lambda: entries)
    assert ledger.registered_seeds("topped up") == [3, 4, 5, 6, 7]
    assert ledger.registered_seeds("new") == [0, 1, 2, 3, 4]
    assert ledger.registered_seeds("listed") == [3, 4]
    assert ledger.registered_seeds("free") is None


def test_a_changed_test_is_post_hoc():
    entry = {"C001": {"registered": "2026-01-01", "test": "abc"}}
    assert policy.registered("C001", "abc", entry) == ""
    assert "2026-01-01" in policy.registered("C001", "abd", entry)
    assert "not registered" in policy.registered("C002", "abc", entry)


@pytest.mark.parametrize("effect", (0.0, 0.9, 1.1, 3.0))
def test_equivalence_is_two_one_sided_tests(effect):
    scipy_stats = pytest.importorskip("scipy.stats")
    generator = np.random.default_rng(1)
    a = dict(enumerate(effect + generator.normal(0, 0.2, 8)))
    b = dict.fromkeys(a, 0.0)
    pair = stats.paired(a, b, direction="equal", margin=1.0)
    values = list(a.values())
    upper = scipy_stats.ttest_1samp(values, 1.0, alternative="less").pvalue
    lower = scipy_stats.ttest_1samp(values, -1.0, alternative="greater").pvalue
    assert pair.p == pytest.approx(max(upper, lower))
    assert pair.p_opposite == pytest.approx(
        min(
            scipy_stats.ttest_1samp(values, 1.0, alternative="greater").pvalue,
            scipy_stats.ttest_1samp(values, -1.0, alternative="less").pvalue,
        )
    )


def test_an_equivalence_needs_a_margin():
    with pytest.raises(ValueError, match="margin is 0.0"):
        stats.paired({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.5}, direction="equal")
