"""Handling of models by users around sparsity: copies, surgery, other optimizers, odd names."""

import copy

import pytest
import torch
from torch import nn

import sparse_lib as sl
from tests.cases import driven, fit


def trained(model, optimizer, steps, inputs=None):
    inputs = torch.randn(16, 8) if inputs is None else inputs
    fit(model, optimizer, [inputs] * steps)


def test_an_average_of_weights_alone_is_not_cut_by_its_old_mask():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8, bias=False))
    algorithm = sl.SET(0.5, update=1, drop_fraction=0.3, seed=0)
    optimizer = driven(algorithm, model)
    average = copy.deepcopy(model).requires_grad_(False)
    for _ in range(5):
        trained(model, optimizer, 1)
        with torch.no_grad():
            average[0].weight.lerp_(model[0].weight, 0.5)
    before = average[0].weight.clone()
    assert int((before != 0).sum()) > int((model[0].weight != 0).sum())
    inputs = torch.randn(4, 8)
    assert torch.equal(average(inputs), inputs @ before.T)
    assert torch.equal(average[0].weight, before)


def test_functional_calls_leave_the_tensors_they_are_given():
    model = nn.Linear(8, 8)
    sl.Static(0.5, seed=0).apply(model)
    given = {"weight": torch.ones(8, 8), "bias": torch.zeros(8)}
    out = torch.func.functional_call(model, given, (torch.ones(1, 8),))
    assert int(given["weight"].sum()) == 64 and torch.equal(out, torch.full((1, 8), 8.0))
    params, inputs = dict(model.named_parameters()), torch.randn(3, 8)
    loss = model(inputs).square().sum()
    gradients = torch.autograd.grad(loss, [*params.values()], create_graph=True)
    stepped = {key: params[key] - 0.1 * g for key, g in zip(params, gradients, strict=True)}
    torch.func.functional_call(model, stepped, (inputs,)).sum().backward()
    assert model.weight.grad is not None


def test_lists_go_on_at_manual_updates_and_for_each_member_by_itself():
    model = nn.Linear(16, 16, bias=False)
    algorithm = sl.GMP([0.125, 0.25, 0.5, 0.75], update=1, seed=0, init_method="topk")
    optimizer = driven(algorithm, model)
    algorithm.autoupdate = False
    seen = []
    for _ in range(3):
        trained(model, optimizer, 1, torch.randn(4, 16))
        algorithm.update()
        seen.append(algorithm.metrics()["sparsity"])
    assert seen == pytest.approx([0.25, 0.5, 0.75])
    shared = sl.schedules.Cycling([0.125, 0.25, 0.5, 0.75], repeat=False)
    model = nn.ModuleDict({"a": nn.Linear(16, 16), "b": nn.Linear(16, 16)})
    group = sl.Group({f"{key}.*": sl.GMP(shared, update=1, seed=0) for key in "ab"})
    optimizer = driven(group, model)
    for _ in range(2):
        optimizer.zero_grad()
        model["b"](model["a"](torch.randn(4, 16))).square().mean().backward()
        optimizer.step()
    levels = {name: t["sparsity"] for name, t in group.metrics()["tensors"].items()}
    assert levels["a.weight"] == levels["b.weight"] == pytest.approx(0.5)


def test_counts_and_switches_of_a_wrong_type_are_refused():
    for algorithm in (sl.RigL(0.5), sl.Group({"*": sl.RigL(0.5)})):
        for name, value in (("step", -3), ("step", "3"), ("step", 1.5), ("autoupdate", "false")):
            with pytest.raises(ValueError, match=f"{name} must be"):
                setattr(algorithm, name, value)


def test_a_tied_weight_that_requires_dense_under_one_name_stays_dense():
    model = nn.Module()
    model.first, model.head = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
    model.head.weight, model.head.requires_dense = model.first.weight, True
    sl.Static(0.5).apply(model)
    assert bool((model.head.weight != 0).all())


def test_another_optimizer_can_take_over():
    model, algorithm = nn.Linear(8, 8), sl.GMP(sl.schedules.Linear(0.0, 0.1), update=1, seed=0)
    optimizer = driven(algorithm, model)
    trained(model, optimizer, 3)
    before = algorithm.state_dict()
    other = torch.optim.AdamW(model.parameters())
    with pytest.raises(ValueError, match=r"detach\(optimizer\)"):
        algorithm.apply(other)
    with pytest.raises(ValueError, match="another optimizer"):
        algorithm.detach(other)
    algorithm.detach(optimizer)
    algorithm.apply(other)
    after = algorithm.state_dict()
    assert after["step"] == before["step"] == 3
    assert after["params"]["weight"]["target"] == before["params"]["weight"]["target"]
    trained(model, other, 1)
    assert algorithm.step == 4 and algorithm.metrics()["sparsity"] == pytest.approx(0.4, abs=0.02)
    trained(model, optimizer, 1)
    assert algorithm.step == 4


def test_surgery_after_apply():
    model = nn.Sequential(nn.Linear(8, 8))
    algorithm = sl.Static(0.5, seed=0)
    optimizer = driven(algorithm, model)
    torch.nn.utils.parametrizations.weight_norm(model[0])
    model(torch.randn(2, 8)).sum().backward()
    with pytest.raises(RuntimeError, match="'0.weight' was taken out of its module"):
        optimizer.step()


@pytest.mark.parametrize("drives", [True, False])
def test_weights_tied_after_apply(drives):
    model, algorithm = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), sl.SET(0.5, update=2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    algorithm.apply(model)
    if drives:
        algorithm.apply(optimizer)
    model[1].weight = model[0].weight
    model(torch.randn(2, 8)).sum().backward()
    said = "^'1.weight' was tied to '0.weight' after sparsity was applied, .*; tie weights first"
    with pytest.raises(RuntimeError, match=said):
        optimizer.step() if drives else algorithm.apply(optimizer)
    assert algorithm.drives_optimizer is drives


@pytest.mark.parametrize(
    ("parametrize", "fills"),
    [
        (nn.utils.parametrizations.orthogonal, True),
        (nn.utils.parametrizations.spectral_norm, False),
        (nn.utils.parametrizations.weight_norm, False),
    ],
)
def test_parametrizations_that_fill_zeros_are_told(parametrize, fills, recwarn):
    torch.manual_seed(0)
    model = parametrize(nn.Linear(8, 8))
    state = copy.deepcopy(model.state_dict())
    sl.configure({"algorithm": "rigl", "sparsity": 0.5, "seed": 0}).apply(model)
    told = [w for w in recwarn if "_Orthogonal fills masked zeros of 'para" in str(w.message)]
    assert bool(told) == fills
    for name, tensor in model.state_dict().items():  # vectors of spectral_norm stay
        assert name.endswith(("original", "original1", "mask")) or torch.equal(tensor, state[name])
    assert int((model.weight == 0).sum()) == (0 if fills else 32)
