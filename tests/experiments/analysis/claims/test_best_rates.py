"""The best rate over sparsities, from a grid of trials whose answer is known."""

import math

import pandas as pd
import pytest

from experiments.analysis.claims.best_rates import check_transfer, grid, is_whole
from experiments.store import paths

RATES = [0.0025, 0.005, 0.01, 0.02, 0.04, 0.08]
SPARSITIES = [0.0, 0.5, 0.75, 0.875]


def made(standard, supar, noise=0.001):
    """Losses that rise with the squared distance from the best rate, in octaves; two seeds."""
    rows = []
    for rule, best in (("standard", standard), ("supar", supar)):
        for zeros, optimum in zip(SPARSITIES, best, strict=True):
            for rate in RATES:
                loss = 2 + 0.01 * math.log2(rate / optimum) ** 2
                rows += [(rule, zeros, rate, loss + sign * noise) for sign in (1, -1)]
    return pd.DataFrame(rows, columns=["rule", "sparsity", "rate", "loss"])


SAME, RISING = [0.01] * 4, [0.01, 0.02, 0.02, 0.04]


@pytest.mark.parametrize(
    ("standard", "supar", "holds"),
    [
        (RISING, SAME, True),
        (RISING, RISING, False),
        (RISING[::-1], SAME, False),
        (SAME, RISING, False),
    ],
)
def test_verdicts_of_known_grids(standard, supar, holds):
    check = check_transfer(made(standard, supar))
    assert check.holds is holds and not check.is_inconclusive
    assert "0.04 at 87.5%" in check.reason or standard is not RISING


def test_what_noise_hides_is_not_decided():
    check = check_transfer(made(RISING, SAME, noise=0.1))
    assert check.holds is None and check.is_inconclusive
    check = check_transfer(made(SAME, SAME))
    assert check.holds is None and check.is_inconclusive


def test_the_rates_that_tie_are_shown():
    """An octave costs 0.01 nats and two cost 0.04; without noise no other rate ties."""
    exact = check_transfer(made(RISING, SAME)).reason
    assert "at 0% {0.01}, at 87.5% {0.04}: the latter lie above" in exact
    assert "under supar, at every sparsity: {0.01}" in exact
    # Pairs at +-0.005 have a standard deviation of 0.0071, so means within 0.014 tie: an octave.
    noisy = check_transfer(made(RISING, SAME, noise=0.005)).reason
    assert "at 0% {0.005, 0.01, 0.02}, at 87.5% {0.02, 0.04, 0.08}: they overlap" in noisy
    assert "under supar, at every sparsity: {0.005, 0.01, 0.02}" in noisy
    assert "at every sparsity: none" in check_transfer(made(RISING, RISING)).reason
    assert "the latter lie below" in check_transfer(made(RISING[::-1], SAME)).reason


def test_a_best_rate_at_an_end_is_not_decided():
    check = check_transfer(made(RISING, [0.0025] * 4))
    assert check.holds is None and "at an end of what was tried" in check.reason


def test_part_of_the_grid_decides_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "REFERENCE_RUNS", tmp_path)
    found = grid()
    assert found.empty and not is_whole(found)
