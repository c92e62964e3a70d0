"""Estimates and words against scipy and against numbers worked out by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from experiments.findings.estimate import (
    NO_TEST,
    OPEN,
    OPPOSITE,
    SAME,
    SMALLER,
    Arm,
    correlation,
    estimate,
    judge,
    pooled,
)
from experiments.findings.pool import Effect, random_effects


def arm(name, model="m"):
    return Arm(model, name, "recipe", 0.1)


def cells(**arms):
    return {arm(name): dict(enumerate(values)) for name, values in arms.items()}


def test_two_arms_give_the_t_interval_of_scipy_with_a_deviation_pooled_over_all():
    a, b = [1.0, 1.4, 1.1, 1.3], [0.7, 0.9, 0.6]
    found = estimate(cells(a=a, b=b), [(arm("a"), arm("b"))], sign=1)
    ends = stats.ttest_ind(a, b).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((ends.low, ends.high))
    assert found.effect == pytest.approx(np.mean(a) - np.mean(b))
    assert found.seeds == (4, 3)
    found, freedom = pooled(cells(a=[0, 2], b=[0, 4], c=[5]))
    assert freedom == 2
    assert found == pytest.approx(math.sqrt((2 + 8) / 2))


def test_shared_seeds_pair_the_arms_and_a_fresh_draw_does_not():
    noise = np.random.default_rng(0).normal(size=8)
    rest = np.random.default_rng(1).normal(scale=0.1, size=(2, 8))
    paired = cells(a=1 + noise + rest[0], b=noise + rest[1])
    found = estimate(paired, [(arm("a"), arm("b"))], sign=1)
    assert found.paired
    expected = stats.ttest_1samp(1 + rest[0] - rest[1], 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    apart = cells(a=1 + noise, b=np.random.default_rng(2).normal(size=8))
    assert abs(correlation(apart)) < 0.3
    assert not estimate(apart, [(arm("a"), arm("b"))], sign=1).paired


PAIR = [(arm("a"), arm("b"))]


def test_strata_are_compared_within_each_model_and_being_better_counts_pairs():
    strata = [(arm("a", m), arm("b", m)) for m in ("small", "large")]
    means = zip((one for pair in strata for one in pair), (1.0, 0.0, 11.0, 10.0))
    both = {one: {0: mean, 1: mean + 0.2} for one, mean in means}
    assert estimate(both, strata).effect == pytest.approx(1.0)
    for sign, share in ((1, 3 / 4), (-1, 1 / 4)):
        found = estimate(cells(a=[1.0, 3.0], b=[2.0, 0.0]), PAIR, sign=sign)
        assert found.better == pytest.approx(share)


def interval(low, high):
    """An estimate with these ends."""
    mid = (low + high) / 2
    base = estimate(cells(a=[0.0, 1.0, 2.0], b=[0.0, 1.0, 2.0]), PAIR, sign=1)
    return replace(base, effect=mid, low=low, high=high)


@pytest.mark.parametrize(
    ("low", "high", "target", "word", "size"),
    [
        (0.5, 1.5, 1.0, SAME, "as large"),
        (0.1, 0.6, 1.0, SAME, "smaller"),
        (1.2, 2.0, 1.0, SAME, "larger"),
        (-1.0, -0.2, 1.0, OPPOSITE, ""),
        (-0.3, 0.4, 1.0, SMALLER, ""),
        (-0.3, 0.6, 1.0, OPEN, ""),
        (-1.5, -0.5, -1.0, SAME, "as large"),
        (0.2, 1.0, -1.0, OPPOSITE, ""),
        (-0.4, 0.3, -1.0, SMALLER, ""),
    ],
)
def test_word_follows_from_interval_zero_and_published_effect(low, high, target, word, size):
    found = judge(interval(low, high), target, published="published effect")
    assert (found.word, found.size) == (word, size)


def test_words_say_how_many_seeds_would_do_and_err_as_often_as_the_policy_says():
    found = judge(interval(-1, 1), 1.0, published="published effect")
    assert "32 seeds" in found.reason  # 2 * (4 * sd / effect)^2 at a deviation of 1
    found = estimate(cells(a=[1.0], b=[0.0]), PAIR)
    assert judge(found, 1.0, published="published effect").word == NO_TEST
    assert sum(directions(0.0, 0.25)) == pytest.approx(0.05, abs=0.03)
    assert directions(1.0, 0.25)[0] == pytest.approx(0.97, abs=0.03)
    assert directions(1.0, 0.5)[0] == pytest.approx(0.5, abs=0.07)


def directions(effect, error, seeds=5, draws=400):
    """Of how many draws the word is the published direction, and of how many the other one.

    Effect and standard error are multiples of the published effect; four further arms share the
    deviation.
    """
    arms, words = [arm(str(index)) for index in range(6)], []
    draw = np.random.default_rng(0).normal(0, error * math.sqrt(seeds / 2), (draws, 6, seeds))
    draw[:, 0] += effect
    for values in draw:
        drawn = {one: dict(enumerate(own)) for one, own in zip(arms, values, strict=True)}
        e = estimate(drawn, [(arms[0], arms[1])])
        words.append(judge(e, 1.0, published="published effect").word)
    return words.count(SAME) / draws, words.count(OPPOSITE) / draws


def test_effects_and_their_spread_are_pooled_as_of_dersimonian_and_laird():
    found = random_effects([Effect("a", -1.0, 0.2), Effect("b", -1.0, 0.4)])
    assert found.mean == pytest.approx(-1.0)
    assert found.spread == 0
    assert found.better == 2
    assert math.isnan(random_effects([Effect("a", 1.0, 0.1)]).low)  # no interval
    # Equal variances v: Q is sum (y - mean)^2 / v, the spread squared (Q - (k - 1)) v / (k - 1).
    values, v = [0.0, 1.0, 5.0], 0.25
    found = random_effects([Effect(str(y), y, math.sqrt(v)) for y in values])
    q = sum((y - 2) ** 2 for y in values) / v
    assert found.spread**2 == pytest.approx((q - 2) * v / 2)
    assert found.mean == pytest.approx(2.0)
    assert found.low < 2 < found.high
