"""First masks: of pruned models, by functions of users, and of tensors without elements."""

import math

import pytest
import torch
from torch import nn

import sparse_lib as sl
from tests.cases import ALGORITHMS, driven, fit, make


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_layer_of_width_zero_is_left_out(name):
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 0), nn.Linear(0, 4), nn.Linear(8, 4)])
    algorithm = make(name)
    algorithm.apply(model)
    assert set(algorithm.sparse_params) == {"0.weight", "0.bias", "2.bias", "3.weight", "3.bias"}
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    algorithm.apply(optimizer)
    for step in range(4):
        optimizer.zero_grad()
        hidden = model[0](torch.ones(2, 8) + step)
        wide = model[2](model[1](hidden)) + model[3](hidden)
        wide.square().sum().backward()
        optimizer.step()
    assert algorithm.step == 4
    assert all(not s.param[~s.mask].any() for s in algorithm.sparse_params.values())


def pruned(sparsity=0.7):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64, bias=False), nn.ReLU(), nn.Linear(64, 32, bias=False))
    sl.Static(sparsity, "topk").apply(model)
    sl.finalize(model)
    return model


def test_a_pruned_model_becomes_2_4_and_keeps_its_zeros():
    model = pruned()
    before = [param.detach().clone() for param in model.parameters()]
    algorithm = sl.Static(init_method="from_zeros", score_shaper="2:4")
    optimizer = driven(algorithm, model)
    fit(model, optimizer, (torch.randn(16, 32) for _ in range(3)))
    for weight, sparse in zip(before, algorithm.sparse_params.values(), strict=True):
        groups = weight.abs().view(-1, 4)
        largest = torch.zeros_like(groups, dtype=torch.bool)
        largest.scatter_(1, groups.topk(2).indices, True)
        expected = largest.view_as(weight) & (weight != 0)
        assert torch.equal(sparse.mask, expected)
        assert not sparse.param[weight == 0].any()


def test_a_second_algorithm_on_masks_says_how_to_go_on_from_the_zeros():
    model = pruned()
    sl.Static(init_method="from_zeros").apply(model)
    second = sl.GMP(0.9, init_method="from_zeros")
    said = (
        r"already sparsified by Static; .*finalize\(model\) .*init_method='from_zeros'; .*densify"
    )
    with pytest.raises(ValueError, match=said):
        second.apply(model)
    third = sl.GMP(0.5, score_shaper="2:4")
    sl.keep_zeros(unowned := pruned()).detach()
    with pytest.raises(ValueError, match=r"already, which is not 2:4; .*finalize\(model\)"):
        third.apply(unowned)
    sl.finalize(model)
    zeros = [param == 0 for param in model.parameters()]
    second.apply(model)
    for zero, sparse in zip(zeros, second.sparse_params.values(), strict=True):
        assert torch.equal(sparse.mask, ~zero)


@pytest.mark.parametrize("settings", [{}, {"distribution": "global"}])
def test_weights_that_are_nan_stay_for_the_loss_to_show(settings):
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    with torch.no_grad():
        model[0].weight[3, 1:6] = math.nan
    sl.Static(0.5, "topk", **settings).apply(model)
    assert model[0].weight_mask[3, 1:6].all() and model(torch.ones(1, 8)).isnan().all()
    assert sum(int(layer.weight_mask.sum()) for layer in model) == 64
