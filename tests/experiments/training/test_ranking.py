"""Scores at initialisation see through residual branches that start closed."""

import warnings
from types import SimpleNamespace

import pytest
import torch

from experiments.training.ranking import rank_weights
from sparse_lib.masks.init import score_of


class Block(torch.nn.Module):
    """A residual block whose last norm starts at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = torch.nn.Linear(6, 6)
        self.norm = torch.nn.LayerNorm(6)
        self.out = torch.nn.Linear(6, 3)
        torch.nn.init.zeros_(self.norm.weight)

    def forward(self, x):
        return self.out(x + self.norm(self.inside(x)))


TASK = SimpleNamespace(
    batch=lambda step: torch.randn(8, 6, generator=torch.Generator().manual_seed(step)),
    loss=lambda model, batch: model(batch).square().mean(),
)


@pytest.mark.parametrize("method", ["snip", "grasp", "force"])
def test_weights_inside_of_a_closed_branch_are_ranked(method):
    torch.manual_seed(1)
    model = Block()
    config = {"algorithm": "static", "sparsity": 0.5}
    config |= {"init_method": method, "distribution": method}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rank_weights(model, config, TASK, torch.device("cpu"))
    opened = Block()
    opened.load_state_dict(model.state_dict())
    torch.nn.init.ones_(opened.norm.weight)
    scores = score_of(model.inside.weight, method)
    assert len(scores.unique()) > 30
    if method == "snip":  # by hand, on the same batches
        loss = sum(TASK.loss(opened, TASK.batch(step)) for step in range(8)) / 8
        (gradient,) = torch.autograd.grad(loss, [opened.inside.weight])
        assert torch.allclose(scores, (opened.inside.weight * gradient).abs(), atol=1e-7)
    assert not model.norm.weight.any()  # the model stays as it is
