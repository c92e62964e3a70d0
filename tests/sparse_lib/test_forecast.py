"""The work that a forecast expects is what a training then does."""

import pytest
import torch
from torch import nn

import sparse_lib as sl
from sparse_lib.forecast import forecast

NUM_STEPS = 12
CONFIGS = {
    "rigl": {"update": {"freq": 4}, "drop_fraction": 0.5},
    "gmp": {"update": {"freq": 3}, "sparsity": {"type": "linear", "init": 0.2, "slope": 0.05}},
    "snfs": {"update": {"freq": 4}},
    "topkast": {"update": {"freq": 4}, "backward_sparsity": 0.5},
    "srste": {},
    "acdc": {"update": {"freq": 3, "start": 3, "stop": 11}},
    "topk": {},
}


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 5))


@pytest.mark.parametrize("name", CONFIGS)
def test_forecast_is_the_work_that_is_done(name):
    config = {"sparsity": 0.7, "algorithm": name, "seed": 0, **CONFIGS[name]}
    expected = forecast(make_model().to("meta"), config, NUM_STEPS)
    model, algorithm = make_model(), sl.configure(config)
    algorithm.apply(model)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    algorithm.apply(optimizer)
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    done = {n: sparse.count_work() for n, sparse in algorithm.sparse_params.items()}
    assert done == expected.work
    assert {n: int(s.mask.sum()) for n, s in algorithm.sparse_params.items()} == expected.kept
