"""Statistics against hand-computed values and SciPy's own paired test."""

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from experiments.analysis import stats


def test_interval_of_three_values_by_hand():
    # mean 2, sd 1, t(0.975, 2) = 4.30265
    mean, low, high = stats.t_interval([1.0, 2.0, 3.0])
    assert (mean, high - mean) == (2.0, pytest.approx(4.30265 / math.sqrt(3), rel=1e-5))
    assert mean - low == pytest.approx(high - mean)


def test_interval_of_one_or_no_value():
    assert stats.t_interval([5.0])[0] == 5.0
    assert math.isnan(stats.t_interval([5.0])[1])
    assert math.isnan(stats.t_interval([])[0])


@pytest.mark.parametrize(
    ("direction", "alternative"),
    [("less", "less"), ("greater", "greater"), ("differ", "two-sided")],
)
def test_paired_equals_scipy(direction, alternative):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=5), rng.normal(size=5)
    found = stats.paired(dict(enumerate(a)), dict(enumerate(b)), direction=direction)
    assert found.p == pytest.approx(scipy_stats.ttest_rel(a, b, alternative=alternative).pvalue)
    assert found.effect == pytest.approx((a - b).mean())


def test_only_shared_seeds_count():
    found = stats.paired({0: 1.0, 1: 2.0, 7: 99.0}, {0: 0.0, 1: 0.5, 3: 9.0})
    assert (found.num_seeds, found.effect) == (2, 1.25)


def test_a_margin_must_be_exceeded():
    a, b = {0: 1.0, 1: 1.1, 2: 0.9}, {0: 0.0, 1: 0.0, 2: 0.0}
    assert stats.paired(a, b, direction="greater", margin=0.2).p < 0.05
    assert stats.paired(a, b, direction="greater", margin=2.0).p > 0.5


def test_equal_differences_have_no_t_test():
    assert math.isnan(stats.paired({0: 1.0, 1: 2.0, 2: 3.0}, {0: 0.0, 1: 1.0, 2: 2.0}).p)


def test_a_negative_margin_allows_a_loss():
    b = {0: 0.0, 1: 0.0, 2: 0.0}
    small = stats.paired({0: -0.2, 1: -0.1, 2: -0.3}, b, direction="greater", margin=-1.0)
    assert small.p < 0.05 and small.p_opposite > 0.5
    large = stats.paired({0: -2.0, 1: -2.1, 2: -1.9}, b, direction="greater", margin=-1.0)
    assert large.p > 0.5 and large.p_opposite < 0.05


def test_an_unknown_direction_is_named():
    with pytest.raises(ValueError, match="direction is 'smaller'"):
        stats.paired({}, {}, direction="smaller")


def test_holm_by_hand():
    # sorted .01 .03 .04: 3 x .01, max(.03, 2 x .03), max(.06, .04)
    adjusted = stats.holm({"a": 0.04, "b": 0.01, "c": 0.03})
    assert adjusted == pytest.approx({"a": 0.06, "b": 0.03, "c": 0.06})


def test_holm_counts_a_test_without_p():
    adjusted = stats.holm({"a": 0.02, "b": math.nan})
    assert adjusted["a"] == 0.04 and math.isnan(adjusted["b"])


def test_chance():
    assert stats.distinguishable(0.53, 0.02, 0.5) is False
    assert stats.distinguishable(0.55, 0.02, 0.5) is True
    assert stats.distinguishable(0.55, None, 0.5) is None


def test_a_score_without_spread_is_judged_by_what_guessing_spreads():
    """None of 4 right where a quarter is chance: a guesser does that with probability 0.32."""
    assert stats.distinguishable(0.0, 0.0, 0.25, num_items=4) is False
    assert stats.distinguishable(0.0, 0.0, 0.25, num_items=100) is True
    assert stats.distinguishable(1.0, 0.0, 0.5, num_items=2) is False
    assert stats.distinguishable(1.0, 0.1, 0.5, num_items=2) is True
    assert stats.distinguishable(0.3, None, 0.5, num_items=2) is None
