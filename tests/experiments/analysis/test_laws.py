"""Fitted laws meet known ones."""

import numpy as np
import pytest

from experiments.analysis.laws import (
    SparsityLaw,
    fit_power_law,
    fit_sparsity_law,
    gradual_cost,
)


def test_a_known_law_is_recovered_through_three_points():
    budgets = np.array([1e11, 1e12, 8e12])
    law = fit_power_law(budgets, 2.0 + 3.0 * (budgets / 1e11) ** -0.4)
    for budget in (1e11, 3e11, 5e12):
        assert law(budget) == pytest.approx(2.0 + 3.0 * (budget / 1e11) ** -0.4, abs=1e-4)
    assert law.floor == pytest.approx(2.0, abs=0.01) and law.exponent == pytest.approx(
        0.4, abs=0.01
    )


def test_a_convex_curve_lies_below_its_chord():
    budgets, losses = [1.0, 4.0, 8.0], [4.33, 3.72, 3.60]
    chord = np.interp(np.log(2.0), np.log(budgets[:2]), losses[:2])
    assert fit_power_law(budgets, losses)(2.0) < chord - 0.02


def test_nothing_is_extrapolated_and_nothing_fitted_where_nothing_falls():
    law = fit_power_law([1.0, 2.0, 4.0], [3.0, 2.5, 2.2])
    assert np.isnan(law(0.9)) and np.isnan(law(4.1)) and not np.isnan(law(4.0))
    assert fit_power_law([1.0, 2.0], [3.0, 2.0]) is None
    assert fit_power_law([1.0, 2.0, 4.0], [2.0, 2.5, 3.0]) is None


def test_a_known_joint_law_is_recovered_from_noisy_points():
    generator = np.random.default_rng(0)
    true = SparsityLaw(0.6, 0.8, 0.9, 0.25, 0.2, 0.4, 1.2, unit_n=1e7, unit_d=1e5)
    grid = [
        (s, n, d) for s in (0, 0.5, 0.75, 0.9) for n in (1e6, 1e7, 1e8) for d in (2e4, 1e5, 5e5)
    ]
    s, n, d = (np.array(column) for column in zip(*grid))
    loss = true(s, n, d) * np.exp(generator.normal(0, 0.001, len(s)))
    found = fit_sparsity_law(s, n, d, loss)
    assert found(s, n, d) == pytest.approx(true(s, n, d), rel=0.003)
    # A dense model of 1 / (1 - 0.75)^x times the weights: the definition, solved by hand.
    by_hand = ((0.6 * 0.25**0.8 + 0.9) / 1.5) ** (-1 / 0.25)
    assert true.multiplier(0.75) == pytest.approx(by_hand)
    assert found.multiplier(0.75) == pytest.approx(by_hand, rel=0.1)
    assert true(0.75, 1e7, 1e5) == pytest.approx(true(0.0, 1e7 * by_hand, 1e5))


def test_gradual_pruning_costs_what_its_ramp_integrates_to():
    steps = (np.arange(100_000) + 0.5) / 100_000
    ramp = np.clip((steps - 0.25) / 0.5, 0, 1)
    level = 0.8 * (1 - (1 - ramp) ** 3)
    assert gradual_cost(0.8) == pytest.approx(((1 - level) / 0.2).mean(), rel=1e-4)


def test_too_few_runs_fit_no_joint_law():
    with pytest.raises(ValueError, match="seven coefficients"):
        fit_sparsity_law([0] * 7, [1e6] * 7, [1e5] * 7, [2.0] * 7)


def test_a_sparse_model_is_worth_the_dense_one_of_equal_loss():
    law = SparsityLaw(0.6, 0.8, 0.9, 0.25, 0.2, 0.4, 1.2, unit_n=1e7, unit_d=1e5, b_x=0.3)
    worth = law.worth(0.75, 1e6, 2e5)
    assert law(0.0, worth * 1e6, 2e5) == pytest.approx(float(law(0.75, 1e6, 2e5)))
    # With all the data there are, only capacity counts.
    assert law.worth(0.75, 1e6, 1e15) == pytest.approx(law.multiplier(0.75), rel=1e-2)
    fast = SparsityLaw(0.0, 0.0, 1e-3, 0.25, 0.2, 0.4, 1.2, unit_n=1e7, unit_d=1e5, b_x=-1.0)
    assert fast.worth(0.75, 1e6, 1e4) == np.inf  # no dense model is that good


def test_where_size_slows_learning_the_smallest_dense_model_of_a_loss_is_named():
    law = SparsityLaw(0.6, 0.8, 0.9, 0.25, 0.2, 0.4, 1.2, unit_n=1e6, unit_d=1e5, b_x=0.3, b_m=-0.3)
    seen = 2e5 * 0.25**0.3 * (1e6 * 0.3 / 1e6) ** -0.3
    size = (0.6 * 0.25**0.8 + 0.9) * 0.3**-0.25
    assert law(0.75, 3e5, 2e5) == pytest.approx(size + (0.2 * 1e5 / seen) ** 0.4 + 1.2)
    loss = float(law(0.0, 4e5, 2e5))
    assert law.dense_size(loss, 2e5) == pytest.approx(4e5, rel=1e-3)
    sizes = np.geomspace(1e3, 1e12, 2000)
    assert law.dense_size(float(law(0.0, sizes, 2e5).min()) - 1e-3, 2e5) == np.inf
