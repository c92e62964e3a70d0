"""Scores before training against closed forms: a quadratic loss has its Hessian on paper."""

from functools import partial

import pytest
import torch

import sparse_lib as sl
from sparse_lib.masks import at_init
from tests.cases import messages, row


def quadratic(layer, hessian, linear):
    """``w H w / 2 + c w``: gradient ``H w + c``."""
    hessian, linear = torch.tensor(hessian), torch.tensor(linear)
    return lambda: layer.weight[0] @ hessian @ layer.weight[0] / 2 + linear @ layer.weight[0]


HESSIAN = [[2.0, 1.0, 0.0], [1.0, 3.0, 0.0], [0.0, 0.0, 1.0]]


def test_snip_and_grasp_by_hand():
    layer = row(1.0, -1.0, 2.0)
    loss = quadratic(layer, HESSIAN, [0.0, 0.0, 1.0])
    # g = (2 - 1, 1 - 3, 2 + 1) = (1, -2, 3); H g = (0, -5, 3).
    assert at_init.rank(layer, loss, "snip")["weight"].tolist() == [[1.0, 2.0, 6.0]]
    assert at_init.rank(layer, loss, "grasp")["weight"].tolist() == [[0.0, 5.0, 6.0]]
    assert layer.weight.tolist() == [[1.0, -1.0, 2.0]] and layer.weight.grad is None


@pytest.mark.parametrize("method", ["snip", "grasp", "force"])
def test_weights_that_the_loss_does_not_see_are_named(method):
    """A residual branch behind a gain of zero, as in residual networks that start as identities."""
    torch.manual_seed(0)
    sizes = {"inside": (4, 4), "gain": (1, 1), "out": (4, 2)}
    model = torch.nn.ModuleDict({name: torch.nn.Linear(*size) for name, size in sizes.items()})
    data = torch.randn(8, 4)

    def loss():
        branch = model["inside"](data) * model["gain"].weight[0, 0]
        return model["out"](data + branch).square().mean()

    options = {"sparsity": 0.5} if method == "force" else {}
    params = ["inside.weight", "out.weight"]
    ranked = partial(at_init.rank, model, loss, method, params=params, **options)
    assert messages(ranked) == []
    torch.nn.init.zeros_(model["gain"].weight)
    with pytest.warns(UserWarning, match="scores all of 'inside.weight' zero, and so 1 of 2"):
        ranked()


def test_force_sees_gradients_of_what_the_step_before_left_and_lets_weights_return():
    """Two steps to a quarter: two of four weights stay in the first, one in the second."""
    layer = row(1.0, 1.0, 1.0, 1.0)
    seen = []

    def loss():
        weight = layer.weight[0]
        seen.append(weight.tolist())
        whole = weight.detach().min() > 0  # of the dense network
        gradient = [4.0, 3.0, 1.0, 2.0] if whole else [1.0, 2.0, 9.0, 3.0]
        return torch.tensor(gradient) @ weight

    options = {"sparsity": 0.75, "num_steps": 2}
    force = at_init.rank(layer, loss, "force", **options)["weight"][0]
    assert seen == [[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0]]
    assert force.argmax() == 2  # removed in the first step, and back
    iterative = at_init.rank(layer, loss, "iterative-snip", **options)["weight"][0]
    assert iterative.tolist() == [1.0, 2.0, -1.0, -1.0]
    once = at_init.rank(layer, loss, "force", sparsity=0.75, num_steps=1)["weight"][0]
    assert once.tolist() == [4.0, 3.0, 1.0, 2.0]  # SNIP
    assert layer.weight.tolist() == [[1.0, 1.0, 1.0, 1.0]]


@pytest.mark.parametrize("method", at_init.METHODS)
@pytest.mark.parametrize("together", [True, False])
def test_masks_keep_the_highest_scores_of_all_tensors_or_of_each(method, together):
    torch.manual_seed(0)
    layers = torch.nn.Linear(6, 5, bias=False), torch.nn.Linear(5, 8, bias=False)
    model = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1])
    data = torch.randn(16, 6)
    options = {"sparsity": 0.7} if method in ("force", "iterative-snip") else {}
    scores = at_init.rank(model, lambda: model(data).square().mean(), method, **options)
    distribution = method if together else "uniform"
    sl.Static(0.7, init_method=method, distribution=distribution).apply(model)
    masks = {f"{i}.weight": model[i].weight_mask for i in (0, 2)}
    for pool in [list(masks)] if together else [[name] for name in masks]:
        score = torch.cat([scores[name].flatten() for name in pool])
        mask = torch.cat([masks[name].flatten() for name in pool])
        assert int(mask.sum()) == sl.masks.num_nonzero(0.7, mask.numel())
        assert score[mask].min() >= score[~mask].max()


def test_missing_scores_and_bad_arguments_are_one_sentence():
    layer = row(1.0, 2.0)

    def loss():
        return layer(torch.ones(1, 2)).sum()

    for _ in range(2):  # without scores, and with those of another method
        with pytest.raises(ValueError, match="rank.*'grasp'"):
            sl.Static(0.5, init_method="grasp").apply(layer)
        at_init.rank(layer, loss, "snip")
    for arguments, match in (
        ({"method": "grab"}, "grab"),
        ({"method": "snip", "params": ["bias"]}, "bias"),
        ({"method": "force"}, "sparsity"),
        ({"method": "force", "sparsity": 1.0}, "below 1"),
        ({"method": "snip", "num_steps": 2}, "num_steps"),
    ):
        with pytest.raises(ValueError, match=match):
            at_init.rank(layer, loss, **arguments)
