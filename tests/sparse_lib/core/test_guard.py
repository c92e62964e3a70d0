"""Masks stay enforced through whatever is done to a model."""

import copy
import io
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

import sparse_lib as sl
from sparse_lib.algorithms.rigl import RigL
from sparse_lib.algorithms.set import SET
from sparse_lib.algorithms.snfs import SNFS
from sparse_lib.algorithms.srste import SRSTE
from sparse_lib.algorithms.static import Static
from sparse_lib.algorithms.topkast import TopKAST
from sparse_lib.core import guard as guard_module
from sparse_lib.core.group import Group
from sparse_lib.core.guard import guards
from tests.sparse_lib.algorithm_cases import (
    ALGORITHMS,
    assert_enforced,
    assert_equal,
    make,
    make_model,
    snapshot,
    train,
)


def start(algorithm, model=None, **options):
    model = make_model() if model is None else model
    algorithm.apply(model)
    optim = torch.optim.AdamW(model.parameters(), 0.01, **options)
    algorithm.apply(optim)
    return model, optim


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "torch.save": saved,
    "a copy's copy": lambda model: copy.deepcopy(pickle.loads(pickle.dumps(model))),
}


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("clone", COPIES)
def test_a_copy_trains_sparse_and_leaves_the_original_alone(name, clone):
    algorithm = make(name)
    model, optim = start(algorithm)
    train(model, optim, 3)
    before = snapshot(model)
    twin = COPIES[clone](model)
    assert_equal(before, snapshot(twin))
    assert not any(hasattr(p, "_needs_dense_gradient") for p in twin.parameters())
    train(twin, torch.optim.AdamW(twin.parameters(), 0.1), 3)
    for layer in (twin[0], twin[2]):
        assert not layer.weight.detach()[~layer.weight_mask].any()
    assert_equal(before, snapshot(model))
    second = make(name)
    second.apply(twin)  # a copy belongs to no algorithm: another may go on with its masks
    assert torch.equal(twin[0].weight_mask, before["0.weight_mask"])


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_training_is_the_same(name, backend):
    results = []
    for compiled in (False, True):
        algorithm = make(name)
        model, optim = start(algorithm, foreach=False)
        trained = torch.compile(model, backend=backend) if compiled else model
        for step in range(5):
            train(trained, optim, 1, start=step)
            assert_enforced(algorithm, optim)
        results.append(snapshot(model))
    assert_equal(*results)


def test_a_compiled_model_is_one_graph_whatever_the_masks_do():
    torch._dynamo.reset()
    model, optim = start(RigL(0.5, update=1, seed=1))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch._dynamo.utils.counters.clear()
    train(compiled, optim, 4)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("assign", [False, True])
def test_loaded_weights_obey_loaded_masks(assign):
    source = make_model(1)
    Static(0.7, seed=5).apply(source)
    state = copy.deepcopy(source.state_dict())
    state["0.weight"].fill_(float("nan"))
    model = make_model()
    algorithm = Static(0.5)
    algorithm.apply(model)
    model.load_state_dict(state, assign=assign)
    off = ~source[0].weight_mask
    assert torch.equal(model[0].weight_mask, source[0].weight_mask)
    assert not model[0].weight.detach()[off].any() and model[0].weight.isnan().any()
    model[0].weight.data.fill_(1.0)
    train(model, torch.optim.AdamW(model.parameters(), 0.1), 2)
    assert not model[0].weight.detach()[off].any() and not model[0].weight.grad[off].any()


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpointing_is_the_same(name, use_reentrant):
    class Checkpointed(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, data):
            data = data.requires_grad_()  # the older, reentrant form needs it
            return checkpoint(self.model, data, use_reentrant=use_reentrant)

    results = []
    for wrap in (lambda model: model, Checkpointed):
        algorithm = make(name)
        model, optim = start(algorithm)
        wrapped = wrap(model)
        for step in range(5):
            train(wrapped, optim, 1, start=step)
            assert_enforced(algorithm, optim)
        results.append(snapshot(model))
    assert_equal(*results)


def test_a_module_inside_an_activation_checkpoint_wrapper_keeps_its_name():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    plain, wrapped = make_model(), make_model()
    wrapped[0] = checkpoint_wrapper(wrapped[0])
    first, second = Static(0.5, seed=1), Static(0.5, seed=1)
    first.apply(plain)
    second.apply(wrapped)
    assert list(first.sparse_params) == list(second.sparse_params)
    for name, sparse in first.sparse_params.items():
        assert torch.equal(sparse.mask, second.sparse_params[name].mask)


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


def averaged_set(evaluates):
    torch.manual_seed(0)
    model = nn.Linear(8, 8, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    algorithm = sl.SET(0.5, update=1, seed=0)
    algorithm.apply(model)
    algorithm.apply(optimizer)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for step in range(10):
        data = torch.randn(8, 8, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        (model(data) - data).square().mean().backward()
        optimizer.step()
        average.update_parameters(model)
        if evaluates:
            with evaluates():
                average(data)
    return average


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_evaluating_a_moving_average_changes_nothing_of_it(mode):
    alone, looked_at = averaged_set(None), averaged_set(mode)
    assert torch.equal(alone.module.weight_mask, looked_at.module.weight_mask)
    assert torch.equal(alone.module.weight, looked_at.module.weight)
    with torch.no_grad():
        assert torch.equal(alone(torch.eye(8)), looked_at(torch.eye(8)))
    assert not looked_at.module._forward_hooks
    with pytest.raises(RuntimeError), torch.no_grad():
        looked_at(torch.ones(1, 3))  # a pass that fails leaves the weight whole, too
    assert torch.equal(alone.module.weight, looked_at.module.weight)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        masks = sl.finalize(looked_at)
    assert not looked_at.module.weight[~masks["weight"]].any()


def test_an_average_masks_the_projection_that_attention_reads_without_a_call():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    optimizer = torch.optim.AdamW(layer.parameters(), 1e-2)
    levels = {"type": "polynomial", "init": 0, "final": 0.9, "start": 0, "stop": 10}
    algorithm = sl.configure({"algorithm": "gmp", "sparsity": levels, "update": 1})
    algorithm.apply(layer)
    algorithm.apply(optimizer)
    average = AveragedModel(layer, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for step in range(12):
        data = torch.randn(8, 5, 16, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        (layer(data) - data).square().mean().backward()
        optimizer.step()
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
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first = nn.Linear(12, 12, bias=False)
            self.second = nn.Linear(12, 12, bias=False)
            self.second.weight = self.first.weight

        def forward(self, data):
            return self.second(self.first(data).tanh())

    algorithm = make(name)
    model, optim = start(algorithm, Tied())
    assert list(algorithm.sparse_params) == ["first.weight"]
    train(model, optim, 5, after=lambda: assert_enforced(algorithm, optim))
    assert model.second.weight is model.first.weight
    twin = copy.deepcopy(model)
    assert twin.second.weight is twin.first.weight
    train(twin, torch.optim.AdamW(twin.parameters(), 0.1), 2)
    assert not twin.second.weight.detach()[~twin.first.weight_mask].any()


def test_a_replaced_parameter_without_optimizer_hooks_is_masked_too():
    model = make_model()
    Static(0.5).apply(model)
    model[0].weight = nn.Parameter(torch.randn(16, 12))
    train(model, torch.optim.AdamW(model.parameters(), 0.1), 2)
    off = ~model[0].weight_mask
    assert not model[0].weight.detach()[off].any() and not model[0].weight.grad[off].any()


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


@pytest.mark.parametrize(
    "made",
    [
        lambda: SRSTE(0.5, {"steps": [100]}, decay=0.0),
        lambda: TopKAST(0.8, {"steps": [100]}),
        lambda: SNFS(0.5, {"steps": [100]}, momentum=0.7, seed=0),
    ],
    ids=["srste", "topkast", "snfs"],
)
def test_what_an_algorithm_keeps_follows_a_conversion(made):
    """Masked values and momenta, against tensors; steps are too small for float32."""

    def kept(model, algorithm):
        if isinstance(algorithm, SNFS):
            return algorithm.momentum_of(model.weight)
        return algorithm.hidden_weight(model.weight)

    def begun():
        torch.manual_seed(0)
        model, algorithm = nn.Linear(12, 4, bias=False), made()
        algorithm.apply(model)
        return model, algorithm

    model, algorithm = begun()
    optim = torch.optim.SGD(model.parameters(), lr=1e-9)
    algorithm.apply(optim)
    data = torch.randn(8, 12, generator=torch.Generator().manual_seed(0))
    mask, expected = model.weight_mask, kept(model, algorithm).clone()
    for dtype in (torch.float32, torch.float64, torch.float64):
        model.to(dtype)
        expected, data = expected.to(dtype), data.to(dtype)
        gradient = 2 * (data @ model.weight.detach().T).T @ data
        if isinstance(algorithm, SNFS):
            expected = 0.7 * expected + 0.3 * gradient
        else:
            expected = expected - 1e-9 * gradient
        optim.zero_grad()
        model(data).square().sum().backward()
        optim.step()
        bound = 1e-6 if dtype == torch.float32 else 1e-13
        torch.testing.assert_close(kept(model, algorithm), expected, rtol=bound, atol=bound)
    assert kept(model, algorithm)[~mask].any()
    twin, resumed = begun()
    twin.double().load_state_dict(model.state_dict())
    resumed.load_state_dict(algorithm.state_dict())
    assert torch.equal(kept(twin, resumed), kept(model, algorithm))


@pytest.mark.parametrize("from_the_start", [False, True])
def test_a_frozen_parameter_that_thaws(from_the_start):
    algorithm = RigL(0.5, update=1, seed=1)
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
    algorithm = SET(0.5, update=1, reset_momentum=True, seed=1)
    model, optim = start(algorithm)
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
        return Group({"*": RigL(0.5, update=1, seed=1)}) if grouped else RigL(0.5, 1, seed=1)

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
    fresh = make_model()
    algorithm.apply(fresh)  # not "another model" any more
    assert algorithm.num_sparse_params == 3


def test_detaching_a_part():
    algorithm = RigL(0.5, update=1, seed=1)
    model, optim = start(algorithm)
    algorithm.detach(model[0])
    assert list(algorithm.sparse_params) == ["2.weight"]
    first, second = model[0].weight_mask.clone(), model[2].weight_mask.clone()
    train(model, optim, 2)
    assert torch.equal(model[0].weight_mask, first)
    assert not torch.equal(model[2].weight_mask, second)


def test_a_forward_pass_leaves_enforced_weights_alone():
    algorithm = Static(0.5)
    model, optim = start(algorithm)
    versions = [param._version for param in model.parameters()]
    for _ in range(2):
        model(torch.ones(1, 12)).sum().backward()
    assert versions == [param._version for param in model.parameters()]


@torch.no_grad()
def by_hand(model):
    model[0].weight.copy_(torch.ones(16, 12))


@pytest.mark.parametrize(
    "write",
    [
        lambda model: model[0].reset_parameters(),
        lambda model: model.apply(lambda part: hasattr(part, "weight") and part.reset_parameters()),
        by_hand,
    ],
)
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("make", [lambda: RigL(0.5), lambda: Group({"*": SRSTE(0.5)})])
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


def test_a_functional_call_changes_no_parameter_that_it_is_given():
    model, optim = start(Static(0.5))
    train(model, optim, 1)
    given = {name: nn.Parameter(torch.ones_like(p)) for name, p in model.named_parameters()}
    torch.func.functional_call(model, given, (torch.ones(1, 12),))
    assert all(torch.equal(tensor, torch.ones_like(tensor)) for tensor in given.values())
    assert not model[0].weight.detach()[~model[0].weight_mask].any()


@pytest.mark.parametrize("grouped", [False, True])
def test_autoupdate_of_a_group_reaches_its_members(grouped):
    rigl = RigL(0.5, update=2, seed=1)
    algorithm = Group() if grouped else rigl
    algorithm.autoupdate = False
    if grouped:
        algorithm.add("*", rigl)
    model, optim = start(algorithm)
    mask = model[0].weight_mask.clone()
    train(model, optim, 3)
    assert algorithm.needs_dense_gradient and torch.equal(model[0].weight_mask, mask)
    algorithm.update()  # step 3 is no update step, and still its dense gradient was kept
    assert not torch.equal(model[0].weight_mask, mask)
    algorithm.autoupdate = True
    assert algorithm.needs_dense_gradient  # step 4 is one
    train(model, optim, 1, start=3)
    assert rigl.num_updates == 2


def test_a_closure_that_brings_the_gradients_leaves_nothing_to_warn_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for closes in (True, False):
            torch.manual_seed(0)
            model = nn.Linear(16, 16, bias=False)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            algorithm = RigL(0.5, update=2, seed=0)
            algorithm.apply(model)
            algorithm.apply(optimizer)
            data = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))

            def closure(model=model, optimizer=optimizer, data=data):
                optimizer.zero_grad()
                loss = (model(data) - 1).square().mean()
                loss.backward()
                return loss

            for _ in range(6):
                optimizer.step(closure) if closes else (closure(), optimizer.step())
            if closes:
                with_closure = model.weight.detach().clone()
    assert torch.equal(model.weight, with_closure)


def test_a_plain_average_of_buffers_may_copy_masks():
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    Static(0.5, seed=0).apply(model[0])

    def swa(average, new, count):
        return new if new.dtype is torch.bool else average + (new - average) / (count + 1)

    average = AveragedModel(model, use_buffers=True, avg_fn=swa)
    for _ in range(3):
        average.update_parameters(model)
    assert torch.equal(average.module[0].weight_mask, model[0].weight_mask)
    torch.testing.assert_close(average.module[0].weight, model[0].weight)


@pytest.mark.filterwarnings("ignore")  # torch says that tracing is old
def test_a_masked_model_can_be_traced():
    model = torch.nn.Sequential(torch.nn.Linear(6, 4))
    Static(0.5).apply(model)
    inputs = torch.ones(2, 6)
    assert torch.equal(torch.jit.trace(model, inputs)(inputs), model(inputs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("transposed", [False, True])
def test_large_tensors_are_masked_without_their_mask_in_words(dtype, transposed, monkeypatch):
    monkeypatch.setattr(guard_module, "_LARGE", 100)
    monkeypatch.setattr(guard_module, "_CHUNK", 64)
    layer = nn.Linear(17, 13, bias=False, dtype=dtype)
    Static(0.5, seed=0).apply(layer)
    (guard,) = guards(layer).values()
    guard._words.clear()
    state = torch.randn(17, 13, dtype=dtype).T if transposed else torch.randn(13, 17, dtype=dtype)
    state[0, :8], state[1, :8] = float("nan"), float("inf")
    expected = torch.where(layer.weight_mask, state, 0.0)
    guard.select(state)
    assert torch.equal(state.nan_to_num(nan=7.0), expected.nan_to_num(nan=7.0))
    assert not guard._words and not state[~layer.weight_mask].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64])
@pytest.mark.parametrize("layout", ["plain", "transposed", "sparse"])
def test_many_tensors_are_masked_together_as_each_alone_is(dtype, layout, monkeypatch):
    monkeypatch.setattr(guard_module, "_is_on_cpu", lambda tensor: False)  # as on a GPU
    monkeypatch.setattr(guard_module, "_LARGE", 200)
    model = nn.Sequential(*(nn.Linear(size, 13, bias=False) for size in (9, 14, 17)))
    Static(0.5, seed=0).apply(model)
    selections, expected = [], []
    for layer in model:
        # torch makes NaN of a sparse complex infinity on its own
        for value in (2.0,) if dtype.is_complex else (float("nan"), float("inf"), 2.0):
            tensor = torch.randn(layer.weight.shape, dtype=torch.float32)
            tensor[0, :8], tensor[1, :8] = value, -value
            tensor = tensor.to(dtype)
            if layout == "transposed":
                tensor = tensor.T.contiguous().T
            kept = torch.where(layer.weight_mask, tensor, torch.zeros((), dtype=dtype))
            expected.append(kept)
            tensor = tensor.to_sparse() if layout == "sparse" else tensor
            selections.append((*guards(layer).values(), tensor))
    versions = [tensor._version for _, tensor in selections]
    guard_module.select_together(selections)
    for (_, tensor), kept in zip(selections, expected, strict=True):
        found = tensor.to_dense() if layout == "sparse" else tensor
        assert torch.equal(torch.isnan(found), torch.isnan(kept))
        torch.testing.assert_close(found, kept, rtol=0, atol=0, equal_nan=True)
    if layout != "sparse":  # whoever looks at versions sees that they were written
        assert all(t._version > v for (_, t), v in zip(selections, versions, strict=True))


def test_words_of_a_changed_mask_are_followed_where_they_are_multiplied(monkeypatch):
    monkeypatch.setattr(guard_module, "_is_on_cpu", lambda tensor: False)
    layer = nn.Linear(8, 6, bias=False)
    algorithm = Static(0.5, seed=0)
    algorithm.apply(layer)
    (guard,) = guards(layer).values()
    for _ in range(2):
        layer.weight_mask.logical_not_()
        tensor = torch.ones(6, 8)
        guard_module.select_together([(guard, tensor)])
        assert torch.equal(tensor, layer.weight_mask.float())
