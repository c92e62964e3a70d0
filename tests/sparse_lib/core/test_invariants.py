"""Two invariants over every algorithm and every torch optimizer, under whatever a user may do.

1. After every step, weights are exactly zero where the mask is, and optimizer states are what they
   begin with: zero for nearly all.
2. A NaN or an infinity at a masked position never reaches the optimizer.

Algorithms that leave gradients or states dense by design have tests of their own.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import sparse_lib as sl
from tests.cases import ALGORITHMS, OPTIMIZERS, SCHEDULES, driven, make, make_model, train

STARTS = {("Adagrad", "sum"): 0.1, ("Rprop", "step_size"): 0.01}
MASKING = [n for n in ALGORITHMS if (a := make(n)).masks_gradients and a.masks_states]
PATHS = {"single": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
FUSED = ("SGD", "Adam", "AdamW", "Adagrad")


def paths(optimizer):
    if optimizer == "LBFGS":
        return {"own": {}}
    return {k: v for k, v in PATHS.items() if k != "fused" or optimizer in FUSED}


COMBINATIONS = [(name, path) for name in OPTIMIZERS for path in paths(name)]


def build(algorithm, optimizer, path):
    model = make_model()
    options = OPTIMIZERS[optimizer] | paths(optimizer)[path]
    optim = driven(algorithm, model, getattr(torch.optim, optimizer), lr=0.01, **options)
    return model, optim


def check(algorithm, optim):
    for name, sparse in algorithm.sparse_params.items():
        off = ~sparse.mask
        assert not sparse.param.detach()[off].any(), name
        assert sparse.param.isfinite().all(), name
        for key, state in optim.state[sparse.param].items():
            if isinstance(state, torch.Tensor) and state.shape == sparse.param.shape:
                start = STARTS.get((type(optim).__name__, key), 0.0)
                assert (state[off] == start).all(), (name, key)
                assert state.isfinite().all(), (name, key)


def spoil(algorithm, where, value):
    for sparse in algorithm.sparse_params.values():
        if where == "gradient":
            sparse.param.grad[~sparse.mask] = value
        elif where == "weight":
            sparse.param.data[~sparse.mask] = value


@pytest.mark.parametrize(("optimizer", "path"), COMBINATIONS)
@settings(max_examples=6, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(MASKING),
    schedule=st.sampled_from(sorted(SCHEDULES)),
    seed=st.integers(0, 99),
    events=st.lists(
        st.tuples(
            st.sampled_from(["nothing", "gradient", "weight", "no gradient"]),
            st.sampled_from([float("nan"), float("inf"), -float("inf"), 1e38]),
            st.booleans(),
        ),
        min_size=4,
        max_size=6,
    ),
)
def test_invariants(optimizer, path, name, schedule, seed, events):
    algorithm = make(name, SCHEDULES[schedule], seed=seed)
    model, optim = build(algorithm, optimizer, path)
    check(algorithm, optim)
    for step, (event, value, set_to_none) in enumerate(events):
        data = torch.randn(8, 12, generator=torch.Generator().manual_seed(seed + step))

        def closure(data=data, set_to_none=set_to_none):
            optim.zero_grad(set_to_none=set_to_none)
            loss = model(data).pow(2).sum(1).sub(1).pow(2).mean()
            loss.backward()
            return loss

        if optimizer == "LBFGS":
            optim.step(closure)
        else:
            closure()
            if event == "no gradient":
                optim.zero_grad(set_to_none=set_to_none)
            elif event != "weight" or optimizer != "Adafactor":  # it scales by a weight's norm
                spoil(algorithm, event, value)
            optim.step()
        check(algorithm, optim)
    assert algorithm.step == len(events)


@pytest.mark.parametrize("name", MASKING)
def test_nan_from_the_backward_pass_stops_at_the_mask(name):
    model, optim = build(algorithm := make(name), "AdamW", "foreach")
    for _ in range(4):
        optim.zero_grad()
        weight, off = model[0].weight + 0, ~model[0].weight_mask
        weight.register_hook(lambda gradient, off=off: gradient.masked_fill(off, torch.nan))
        hidden = nn.functional.linear(torch.ones(2, 12), weight, model[0].bias)
        model[2](hidden.tanh()).pow(2).sum().backward()
        assert model[0].weight.grad.isfinite().all()  # also for who clips norms
        optim.step()
        check(algorithm, optim)


def test_lbfgs_forgets_its_curvature_when_masks_change_and_only_then():
    algorithm = make("set", update={"steps": [3]})
    model, optim = build(algorithm, "LBFGS", "own")

    def closure():
        optim.zero_grad()
        loss = model(torch.ones(2, 12)).sub(1).pow(2).sum()
        loss.backward()
        return loss

    first = next(model.parameters())
    iterations = []
    for _ in range(4):
        optim.step(closure)
        iterations.append(optim.state[first].get("n_iter", 0) if first in optim.state else 0)
    assert iterations[1] > iterations[0] > 0 and iterations[2] == 0 and iterations[3] > 0


def test_an_update_that_fails_leaves_no_weight_unmasked():
    class Fails(sl.SparsityAlgorithm):
        def update(self):
            for sparse in self.sparse_params.values():
                sparse.mask = sparse.mask.flatten().roll(1).view_as(sparse.mask)
            raise RuntimeError("mine")

    model, optimizer = build(algorithm := Fails(0.5), "SGD", "single")
    model(torch.ones(8, 12)).sum().backward()
    with pytest.raises(RuntimeError, match="mine"):
        optimizer.step()
    for module, name in ((model[0], "weight"), (model[2], "weight")):
        assert not getattr(module, name)[~getattr(module, f"{name}_mask")].any()
    assert algorithm.step == 1


class Operators(TorchDispatchMode):
    """Records the operators whose result has more than one element."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if not isinstance(result, torch.Tensor) or result.numel() > 1:
            self.names.append(func.overloadpacket.__name__)
        return result


def operators_of_a_step(algorithm):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, foreach=False)
    if algorithm is not None:
        algorithm.apply(model)
        algorithm.apply(optimizer)
    train(model, optimizer, 3)
    optimizer.zero_grad()
    with Operators() as operators, pytest.MonkeyPatch.context() as patch:
        for name in ("cpu", "tolist"):  # which the mode does not see of tensors that are here
            patch.setattr(torch.Tensor, name, None)
        model(torch.ones(2, 12)).sum().backward()
        optimizer.step()
    return operators.names


@pytest.mark.parametrize("name", ["static", "gmp", "set", "rigl", "granet"])
def test_between_updates_only_masking_is_computed_and_the_host_waits_for_nothing(name):
    options = {} if name == "static" else {"update": {"freq": 3}}  # none is due at step four
    ours = operators_of_a_step(make(name, **options))
    for operator in operators_of_a_step(None):
        ours.remove(operator)
    # Gradient, weight and momentum of three tensors: nine selections.
    views = {"detach", "view", "t", "alias"}
    assert [operator for operator in ours if operator not in views] == ["mul_"] * 9
