"""``optimizer.step(closure)``: bits of the plain loop, and masked weights in each evaluation."""

import copy

import pytest
import torch
from torch import nn

import sparse_lib as sl
from tests.cases import ALGORITHMS, driven, loss_of, make, make_model, same

OPTIMIZERS = {"AdamW": {}, "SGD": {"momentum": 0.9, "weight_decay": 0.1}}

SETTINGS = {
    "skipped weight updates": lambda: sl.RigL(0.6, 2, seed=1, skip_update_on_mask_steps=True),
    "clipped root mean square": lambda: sl.TopK(0.6, gradient_rms=1e-3),
    "2:4": lambda: sl.Group({"*.weight": sl.SRSTE(0.5, 2, score_shaper="2:4", decay=0.1)}),
    "exploration": lambda: sl.TopKAST(0.8, 3, backward_sparsity=0.5, regularization=0.01),
    "a group": lambda: sl.Group(
        {
            "0.bias": sl.TopK(0.5, gradient_rms=1e-3),
            "0.weight": sl.RigL(0.5, 2, seed=1, skip_update_on_mask_steps=True),
            "2.weight": sl.SRSTE(0.5, decay=0.1),
        }
    ),
}


def trained(algorithm, optimizer, *, closes, micro_batches=1, steps=6):
    """States of all after some steps, and the share of masked weights that a pass computed with."""
    model, kind, stray = make_model(), getattr(torch.optim, optimizer), []
    optim = driven(algorithm, model, kind, 0.02, **OPTIMIZERS[optimizer])
    for step in range(steps):
        optim.zero_grad()

        def closure(batch, step=step):
            for sparse in algorithm.sparse_params.values():
                stray.append(int(sparse.param[~sparse.mask].count_nonzero()))
            loss = loss_of(model, 100 * batch + step)
            loss.backward()
            return loss

        for batch in range(micro_batches - 1):
            closure(batch)
        if closes:
            loss = optim.step(lambda: closure(micro_batches - 1))
            assert loss.requires_grad
        else:
            closure(micro_batches - 1)
            optim.step()
    assert stray and not any(stray)
    return [model.state_dict(), optim.state_dict(), algorithm.state_dict()]


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", [*ALGORITHMS, *SETTINGS])
def test_a_closure_gives_the_bits_of_the_plain_loop(name, optimizer, micro_batches):
    make_it, options = SETTINGS.get(name, lambda: make(name)), {"micro_batches": micro_batches}
    assert same(*(trained(make_it(), optimizer, closes=c, **options) for c in (False, True)))


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_lbfgs_trains_all_weights_by_the_sparse_loss(line_search, decay):
    """Against LBFGS on a plain tensor, whose loss and gradient are written out.

    In float64: a line search makes much of a rounding, which differs between processors.
    """
    algorithm = sl.SRSTE(0.5, {"steps": [100]}, score_shaper="2:4", decay=decay)
    torch.manual_seed(0)
    algorithm.apply(model := nn.Linear(12, 8, bias=False, dtype=torch.float64))
    data, target = (torch.randn(32, size, dtype=torch.float64) for size in (12, 8))
    whole = nn.Parameter(algorithm.hidden_weight(model.weight).clone())
    mask = model.weight_mask.clone()
    options = {"max_iter": 6, "line_search_fn": line_search, "lr": 0.5}

    written = torch.optim.LBFGS([whole], **options)
    expected = []

    def by_hand():
        sparse = (whole.detach() * mask).requires_grad_()
        loss = (data @ sparse.T - target).square().mean()
        loss.backward()
        whole.grad = sparse.grad + decay * (whole.detach() * ~mask)
        expected.append(loss.item())
        return loss

    optim = torch.optim.LBFGS(model.parameters(), **options)
    algorithm.apply(optim)
    losses = []

    def closure():
        optim.zero_grad()
        assert not model.weight[~mask].any()
        loss = (model(data) - target).square().mean()
        loss.backward()
        losses.append(loss.item())
        return loss

    for _ in range(3):
        written.step(by_hand)
        optim.step(closure)
        torch.testing.assert_close(model.weight, whole * mask)
        torch.testing.assert_close(algorithm.hidden_weight(model.weight), whole.detach())
    assert len(losses) > 10
    assert losses == pytest.approx(expected)


class Failing(torch.optim.SGD):
    def step(self, closure=None):
        raise KeyboardInterrupt


@pytest.mark.parametrize("kind", [torch.optim.SGD, Failing])
@pytest.mark.parametrize("cls", [sl.SRSTE, sl.TopKAST])
def test_a_closure_or_step_that_fails_leaves_weights_masked_and_hidden_ones_as_they_were(cls, kind):
    model, algorithm = make_model(), cls(0.5, seed=0)
    optim = driven(algorithm, model, kind)
    whole = algorithm.hidden_weight(model[0].weight).clone()
    state = copy.deepcopy(model.state_dict())

    def closure():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        optim.step(closure)
    if kind is Failing:  # which evaluates nothing: the next pass masks
        loss_of(model, 0)
    assert same({**state}, {**model.state_dict()}) and algorithm.step == 0
    assert torch.equal(algorithm.hidden_weight(model[0].weight), whole)
