"""Random effects and orders against worked-out numbers."""

import math

import pytest

from experiments.findings.pool import Effect, kendall, random_effects


def test_equal_effects_pool_to_themselves_without_spread():
    found = random_effects([Effect("a", -1.0, 0.2), Effect("b", -1.0, 0.4)])
    assert found.mean == pytest.approx(-1.0)
    assert found.spread == 0
    assert found.better == 2


def test_spread_between_workloads_is_that_of_dersimonian_and_laird():
    # Equal variances v: Q is sum (y - mean)^2 / v, the spread squared (Q - (k - 1)) v / (k - 1).
    values, v = [0.0, 1.0, 5.0], 0.25
    found = random_effects([Effect(str(y), y, math.sqrt(v)) for y in values])
    q = sum((y - 2) ** 2 for y in values) / v
    assert found.spread**2 == pytest.approx((q - 2) * v / 2)
    assert found.mean == pytest.approx(2.0)
    assert found.low < 2 < found.high


def test_one_workload_has_no_interval():
    assert math.isnan(random_effects([Effect("a", 1.0, 0.1)]).low)


def test_order_of_methods_is_a_rank_correlation():
    means = {"static": 70.0, "set": 72.0, "rigl": 74.0, "gmp": 73.0}
    tau, _ = kendall(["static", "set", "rigl", "gmp"], means, 1)
    assert tau == pytest.approx(4 / 6)  # one of six pairs is turned round
    assert kendall(["static", "set", "rigl", "gmp"], means, -1)[0] == pytest.approx(-4 / 6)
    assert math.isnan(kendall(["static", "set"], means, 1)[0])
