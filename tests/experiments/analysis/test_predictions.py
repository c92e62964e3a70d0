"""What is registered beside a law's prediction, where crossings go, and coefficients at bounds."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from experiments.analysis import effects, law_fit, predictions
from experiments.analysis.laws import SparsityLaw


def runs(losses, method="dense", model="m"):
    """Rows of one method's model: losses by data and seed."""
    return pd.DataFrame(
        [
            {"method": method, "model": model, "data": data, "seed": seed, "loss": loss}
            for data, by_seed in losses.items()
            for seed, loss in by_seed.items()
        ]
    )


def test_a_line_goes_on_as_the_last_budgets_did():
    power = {data: dict.fromkeys((0, 1), 3.0 * data**-0.25) for data in (200, 400, 800)}
    rows = pd.concat([runs({100: {0: 0.1}} | power), runs({800: {0: 9.0}}, model="other")])
    cell = {"method": "dense", "model": "m", "data": 1600}
    assert predictions.by_a_line(rows, cell) == pytest.approx(3.0 * 1600**-0.25)
    assert predictions.by_a_line(rows, cell | {"model": "other"}) is None
    assert predictions.by_a_line(rows, cell | {"method": "wide"}) is None


def test_a_difference_is_carried_from_the_longest_common_budget():
    dense = runs({100: {0: 0.9, 1: 0.8}, 200: {0: 0.7, 1: 0.6, 2: 0.1}})
    wide = runs({100: {0: 0.5, 1: 0.5}, 200: {0: 0.6, 1: 0.6}, 400: {0: 0.3}}, method="wide")
    rows = pd.concat([dense, wide])
    one, other = {"method": "dense", "model": "m"}, {"method": "wide", "model": "m"}
    assert predictions.carried(rows, one, other) == {
        "difference": 0.05, "seeds": 2, "data": 200,
    }  # fmt: skip
    assert predictions.carried(rows, one, other | {"model": "larger"}) is None


def test_a_crossing_counts_the_draws_that_go_its_way():
    def line(root, side):
        return lambda data: side * np.log(data / root)

    def draws(data):
        return np.stack([line(30, 1)(data), line(50, 1)(data), line(20, -1)(data), data + 1.0])

    found = effects.crossing(line(40, 1), draws, (10.0, 100.0))
    assert found.data == pytest.approx(40, rel=0.01) and found.before == -1
    assert 29 < found.low < found.high < 51 and found.share == 0.5
    never = effects.crossing(lambda data: data, draws, (10.0, 100.0))
    assert np.isnan(never.data) and never.before == 0 and never.share == 0


def test_coefficients_at_an_end_of_their_range_are_named():
    law = SparsityLaw(0.2, 0.5, 0.4, 0.3, 0.12, 0.6, 1.2, 1e5, 1e6, 0.1)
    assert law_fit.at_bounds(law) == []
    low, high = law_fit._LOW, law_fit._HIGH
    bad = dataclasses.replace(law, b_s=low[1][1], floor=np.exp(low[0][4]), b_x=high[1][2])
    assert law_fit.at_bounds(bad) == ["floor", "b_s", "b_x"]
