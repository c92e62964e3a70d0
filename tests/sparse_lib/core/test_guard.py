"""Masks stay enforced through whatever is done to a model."""

import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

import sparse_lib as sl
from tests.cases import (
    ALGORITHMS,
    assert_enforced,
    assert_equal,
    descend,
    driven,
    fit,
    make,
    make_model,
    snapshot,
    train,
)


def start(algorithm, model=None, **options):
    model = make_model() if model is None else model
    return model, driven(algorithm, model, torch.optim.AdamW, 0.01, **options)


class Checkpointed(nn.Module):
    def __init__(self, model, use_reentrant):
        super().__init__()
        self.model, self.use_reentrant = model, use_reentrant

    def forward(self, data):
        data = data.requires_grad_()  # the older, reentrant form needs it
        return checkpoint(self.model, data, use_reentrant=self.use_reentrant)


WAYS = {
    "compiled": lambda model: torch.compile(model, backend="eager"),
    "compiled by AOT": lambda model: torch.compile(model, backend="aot_eager"),
    "checkpointed": lambda model: Checkpointed(model, use_reentrant=False),
    "checkpointed, reentrant": lambda model: Checkpointed(model, use_reentrant=True),
}


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("way", WAYS)
def test_training_in_another_way_is_the_same(name, way):
    results = []
    for wrap in (lambda model: model, WAYS[way]):
        algorithm = make(name)
        model, optim = start(algorithm, foreach=False)
        wrapped = wrap(model)
        for step in range(5):
            train(wrapped, optim, 1, start=step)
            assert_enforced(algorithm, optim)
        results.append(snapshot(model))
    assert_equal(*results)


def test_a_compiled_model_is_one_graph_whatever_the_masks_do():
    torch._dynamo.reset()
    model, optim = start(sl.RigL(0.5, update=1, seed=1))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch._dynamo.utils.counters.clear()
    train(compiled, optim, 4)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("assign", [False, True])
def test_loaded_weights_obey_loaded_masks(assign):
    source = make_model(1)
    sl.Static(0.7, seed=5).apply(source)
    state = copy.deepcopy(source.state_dict())
    state["0.weight"].fill_(float("nan"))
    model = make_model()
    algorithm = sl.Static(0.5)
    algorithm.apply(model)
    model.load_state_dict(state, assign=assign)
    off = ~source[0].weight_mask
    assert torch.equal(model[0].weight_mask, source[0].weight_mask)
    assert not model[0].weight.detach()[off].any() and model[0].weight[~off].isnan().all()
    model[0].weight.data.fill_(1.0)
    train(model, torch.optim.AdamW(model.parameters(), 0.1), 2)
    assert not model[0].weight.detach()[off].any() and not model[0].weight.grad[off].any()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_moving_average_follows_the_masks(name):
    algorithm = make(name)
    model, optim = start(algorithm)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    by_hand = [p.detach().clone() for p in model.parameters()]
    data = torch.ones(2, 12)

    def update():
        average.update_parameters(model)
        for value, param in zip(by_hand, model.parameters()):
            value.lerp_(param.detach(), 0.5)

    update()
    by_hand = [p.detach().clone() for p in model.parameters()]  # the first call copies
    for step in range(4):
        train(model, optim, 1, start=step)
        update()
        with torch.no_grad():
            output = average(data)
        twin = average.module
        for layer, own in ((twin[0], model[0]), (twin[2], model[2])):
            assert torch.equal(layer.weight_mask, own.weight_mask)
        # The stored average goes on as if nobody had looked at it.
        for value, param in zip(by_hand, twin.parameters(), strict=True):
            torch.testing.assert_close(param, value, rtol=0, atol=0)
        first, bias, second = (
            value.where(mask, torch.zeros(()))
            for value, mask in zip(
                by_hand, (model[0].weight_mask, model[0].bias_mask, model[2].weight_mask)
            )
        )
        expected = nn.functional.linear(nn.functional.linear(data, first, bias).tanh(), second)
        torch.testing.assert_close(output, expected)
        dense = sl.checkpoint.export_dense(twin)
        assert torch.equal(dense["0.weight"], first) and torch.equal(dense["2.weight"], second)
    assert algorithm.step == 4


def test_an_average_masks_the_projection_that_attention_reads_without_a_call():
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    levels = {"type": "polynomial", "init": 0, "final": 0.9, "start": 0, "stop": 10}
    algorithm = sl.configure({"algorithm": "gmp", "sparsity": levels, "update": 1})
    optimizer = driven(algorithm, layer, torch.optim.AdamW, 1e-2)
    average = AveragedModel(layer, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for step in range(12):
        data = torch.randn(8, 5, 16, generator=torch.Generator().manual_seed(step))
        descend(optimizer, (layer(data) - data).square().mean())
        average.update_parameters(layer)
    dense = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    dense.load_state_dict(sl.checkpoint.export_dense(average.module))
    for training in (True, False):
        with torch.no_grad():
            torch.testing.assert_close(dense.train(training)(data), average.train(training)(data))
    assert not sl.finalize(average.module)["self_attn.out_proj.weight"].all()
    assert not any(module._forward_pre_hooks for module in average.modules())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_tied_weights_train_as_one(name):
    model = nn.Sequential(*(nn.Linear(12, 12, bias=False) for _ in range(2)))
    model[1].weight = model[0].weight
    algorithm = make(name)
    model, optim = start(algorithm, model)
    assert list(algorithm.sparse_params) == ["0.weight"]
    train(model, optim, 5, after=lambda: assert_enforced(algorithm, optim))
    assert model[1].weight is model[0].weight
    twin = copy.deepcopy(model)
    assert twin[1].weight is twin[0].weight
    train(twin, torch.optim.AdamW(twin.parameters(), 0.1), 2)
    assert not twin[1].weight.detach()[~twin[0].weight_mask].any()


@pytest.mark.parametrize("how", ["in place", "overwriting", "swapping", "by hand"])
@pytest.mark.parametrize("name", ["static", "rigl"])
def test_parameters_converted_after_apply(how, name):
    model = make_model()
    algorithm = make(name)
    algorithm.apply(model)
    switches = {
        "overwriting": torch.__future__.set_overwrite_module_params_on_conversion,
        "swapping": torch.__future__.set_swap_module_params_on_conversion,
    }
    if how == "by hand":
        model[0].weight = nn.Parameter(torch.randn(16, 12, dtype=torch.bfloat16))
    elif how in switches:
        switches[how](True)
    try:
        model.to(torch.bfloat16)
    finally:
        for switch in switches.values():
            switch(False)
    model(torch.ones(1, 12, dtype=torch.bfloat16)).sum().backward()
    assert not model[0].weight.grad[~model[0].weight_mask].any()
    optim = torch.optim.AdamW(model.parameters(), 0.01)
    algorithm.apply(optim)
    assert model[0].weight.dtype == torch.bfloat16 and model[0].weight_mask.dtype == torch.bool
    assert not model[0].weight.detach()[~model[0].weight_mask].any()
    train(model, optim, 4, after=lambda: assert_enforced(algorithm, optim))
    off = ~model[0].weight_mask
    assert not model[0].weight.grad[off].any() or name == "rigl"
    assert all(sparse.param.isfinite().all() for sparse in algorithm.sparse_params.values())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_conversion_in_the_middle_of_training(name):
    algorithm = make(name)
    model, optim = start(algorithm)
    train(model, optim, 3)
    model.double()
    for state in optim.state.values():
        for key, value in state.items():
            if value.dim():
                state[key] = value.double()
    train(model, optim, 3, start=3, after=lambda: assert_enforced(algorithm, optim))
    assert algorithm.step == 6


@pytest.mark.parametrize("from_the_start", [False, True])
def test_a_frozen_parameter_that_thaws(from_the_start):
    algorithm = sl.RigL(0.5, update=1, seed=1)
    model = make_model()
    model[0].weight.requires_grad_(not from_the_start)
    model, optim = start(algorithm, model)
    model[0].weight.requires_grad_(False)
    frozen = model[0].weight_mask.clone()
    train(model, optim, 2, after=lambda: assert_enforced(algorithm, optim))
    assert torch.equal(model[0].weight_mask, frozen)
    model[0].weight.requires_grad_(True)
    train(model, optim, 1, start=2)
    if not from_the_start:  # its gradient was masked before one knew of it: the mask waits
        assert torch.equal(model[0].weight_mask, frozen)
    train(model, optim, 1, start=3, after=lambda: assert_enforced(algorithm, optim))
    assert not torch.equal(model[0].weight_mask, frozen)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_requires_dense_on_modules_and_states(name):
    model = make_model()
    model[2].requires_dense = True
    algorithm = make(name)
    model, optim = start(algorithm, model)
    assert set(algorithm.sparse_params) == {"0.weight", "0.bias"}
    train(model, optim, 1)
    state = optim.state[model[0].weight]
    state["exp_avg_sq"].requires_dense = True
    state["exp_avg_sq"].fill_(1.0)
    train(model, optim, 3, start=1)
    off = ~model[0].weight_mask
    assert state["exp_avg_sq"][off].all()
    assert bool(state["exp_avg"][off].any()) is not algorithm.masks_states
    assert not model[0].weight.detach()[off].any()
    assert model[2].weight.detach().all() and not hasattr(model[2], "weight_mask")


def test_reset_momentum_zeroes_dense_states_of_grown_weights():
    model, optim = start(sl.SET(0.5, update=1, reset_momentum=True, seed=1))
    train(model, optim, 1)
    state = optim.state[model[0].weight]["exp_avg_sq"]
    state.requires_dense = True
    state.fill_(1.0)
    before = model[0].weight_mask.clone()
    train(model, optim, 1, start=1)
    grown = model[0].weight_mask & ~before
    assert grown.any() and not state[grown].any() and state[~grown].all()


@pytest.mark.parametrize("grouped", [False, True])
def test_detached_algorithms_leave_the_optimizer_and_may_start_again(grouped):
    def build():
        return (
            sl.Group({"*": sl.RigL(0.5, update=1, seed=1)}) if grouped else sl.RigL(0.5, 1, seed=1)
        )

    algorithm = build()
    model, optim = start(algorithm)
    train(model, optim, 2)
    mask = model[0].weight_mask.clone()
    algorithm.detach()
    assert algorithm.num_sparse_params == 0 and algorithm.step == 2
    assert not optim._optimizer_step_pre_hooks and not optim._optimizer_step_post_hooks
    assert not any(param._backward_hooks for param in model.parameters())
    train(model, optim, 2)  # static from here on: gradients and states are masked
    assert torch.equal(model[0].weight_mask, mask) and algorithm.step == 2
    assert not model[0].weight.detach()[~mask].any()
    other = build()
    other.apply(model)
    other.apply(optim)
    assert torch.equal(model[0].weight_mask, mask)
    train(model, optim, 1, after=lambda: assert_enforced(other, optim))
    assert not torch.equal(model[0].weight_mask, mask)


@pytest.mark.parametrize(
    "write",
    [
        lambda model: model[0].reset_parameters(),
        lambda model: model.apply(lambda part: hasattr(part, "weight") and part.reset_parameters()),
        lambda model: nn.init.ones_(model[0].weight),
        lambda model: nn.utils.vector_to_parameters(torch.ones(1000), model.parameters()),
    ],
)
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("make", [lambda: sl.RigL(0.5), lambda: sl.Group({"*": sl.SRSTE(0.5)})])
def test_weights_written_between_steps_are_masked_before_they_are_used(make, mode, trained, write):
    model, optim = start(make())
    if trained:
        train(model, optim, 2)
    write(model)
    weights, mask = model[0].weight.detach().clone(), model[0].weight_mask
    assert weights[~mask].all()
    with mode():
        out = model[0](torch.eye(12))
    expected = (weights * mask).T + model[0].bias.detach()
    torch.testing.assert_close(out.detach(), expected)
    assert torch.equal(model[0].weight, weights * mask)
    version = model[0].weight._version
    model(torch.ones(1, 12))
    assert model[0].weight._version == version


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", ["srste", "topk", "topkast", "static"])
def test_weights_obey_masks_after_steps_that_enforce_none(name, fused):
    model = make_model()
    optim = torch.optim.AdamW(model.parameters(), 0.1, fused=fused)
    fit(model, optim, [torch.randn(2, 12)] * 2)
    make(name).apply(model)
    for _ in range(3):
        fit(model, optim, [torch.randn(2, 12)])
        assert model[0].weight[~model[0].weight_mask].any()
        model(torch.randn(2, 12))
        assert not model[0].weight[~model[0].weight_mask].any()


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList([torch.randn(8, 8)])

    def forward(self, data):
        return data @ self.weights[0]


def test_a_list_of_weights_is_masked_by_the_module_that_reads_it():
    sl.Static(0.5).apply(model := Listed())
    with torch.no_grad():
        model.weights[0].add_(1)
        masked = model.weights[0] * model.weights.get_buffer("0_mask")
        assert torch.equal(model(torch.eye(8)), masked)


def test_a_module_exchanged_after_apply_is_refused():
    sl.Static(0.5).apply(model := make_model())
    hooks, model[0] = model[0]._forward_pre_hooks, nn.Linear(12, 16)
    for hook in hooks.values():  # as `torch.ao.quantization.prepare_qat` does
        model[0].register_forward_pre_hook(hook)
    with pytest.raises(RuntimeError, match="Linear took the place of a masked module"):
        model(torch.ones(1, 12))


@pytest.mark.parametrize("decay", [None, 0.5])
def test_averages_of_buffers_copy_masks(decay):
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    algorithm = sl.SET(0.5, update=1, drop_fraction=0.5, seed=0)
    algorithm.apply(model[0])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    algorithm.apply(optimizer)
    averaging = None if decay is None else get_ema_multi_avg_fn(decay)
    average = AveragedModel(model, multi_avg_fn=averaging, use_buffers=True)
    expected = torch.zeros(8, 8)
    for count in range(4):
        fit(model, optimizer, [torch.randn(16, 8)], torch.sum)
        average.update_parameters(model)
        mask, weight = model[0].weight_mask, model[0].weight.detach()
        share = 1 / (count + 1) if decay is None or not count else 1 - decay
        expected = (expected + (weight - expected) * share) * mask
        assert torch.equal(average.module[0].weight_mask, mask) and int(mask.sum()) == 32
        torch.testing.assert_close(average.module[0].weight.detach(), expected)
    assert list(average.module.state_dict()) == list(model.state_dict())


@pytest.mark.parametrize("use_buffers", [False, True])
def test_an_average_without_masks_of_a_masked_model_is_refused(use_buffers):
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    average = AveragedModel(model, use_buffers=use_buffers)
    average.update_parameters(model)
    sl.Static(0.5).apply(model)
    with pytest.raises(ValueError, match="make AveragedModel after sparsity.apply"):
        average.update_parameters(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_tensors_are_masked_as_small_ones_are(dtype):
    layer = nn.Linear(1025, 1025, bias=False, dtype=dtype)
    before = layer.weight.detach().clone()
    optimizer = driven(sl.Static(0.5, seed=0), layer, torch.optim.SGD, 0.5, momentum=0.9)
    mask = layer.weight_mask
    layer.weight.grad = torch.where(mask, 1.0, torch.nan).to(dtype)
    optimizer.step()
    assert torch.equal(layer.weight, torch.where(mask, before - 0.5, 0.0))
    assert torch.equal(optimizer.state[layer.weight]["momentum_buffer"], mask.to(dtype))


@pytest.mark.filterwarnings("ignore")  # torch says that tracing is old
def test_a_masked_model_can_be_traced():
    model = torch.nn.Sequential(torch.nn.Linear(6, 4))
    sl.Static(0.5).apply(model)
    inputs = torch.ones(2, 6)
    assert torch.equal(torch.jit.trace(model, inputs)(inputs), model(inputs))
