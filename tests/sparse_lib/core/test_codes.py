"""Optimizers whose states are codes: masked by the code of zero, or left alone and told."""

import copy
import re
import types
from collections import deque

import pytest
import torch
from torch import nn

import sparse_lib as sl
from tests.cases import descend, driven, fit, messages

#: A signed table as bitsandbytes has it: code 0 is the most negative value, zero stands at 127.
TABLE = torch.linspace(-1, 1, 256).index_fill(0, torch.tensor([127]), 0.0)


def encoded(values, scale):
    return (values / scale).clamp(-1, 1).unsqueeze(-1).sub(TABLE).abs().argmin(-1).to(torch.uint8)


class Momentum8bit(torch.optim.Optimizer):
    """Momentum in bitsandbytes' layout: codes in ``state1``, their table in ``qmap1``."""

    def __init__(self, params, lr, known=True):
        super().__init__(params, {"lr": lr})
        self.known = known

    def momentum(self, param):
        state = self.state[param]
        return TABLE[state["state1"].long()] * state["absmax1"]

    def step(self, closure=None):
        for param in self.param_groups[0]["params"]:
            if not self.state[param]:
                codes = torch.full(param.shape, 127, dtype=torch.uint8)
                self.state[param] = {"state1": codes, "absmax1": torch.ones(())}
                if self.known:
                    self.state[param]["qmap1"] = TABLE
            state = self.state[param]
            momentum = 0.9 * self.momentum(param) + param.grad
            state["absmax1"] = momentum.abs().max()
            state["state1"].copy_(encoded(momentum, state["absmax1"]))
            param.data.sub_(0.1 * self.momentum(param))


class Coded(torch.Tensor):
    """A state in torchao's layout: a tensor class with ``codes``, ``scale`` and ``qmap``."""

    @staticmethod
    def __new__(cls, codes, scale, qmap):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)

    def __init__(self, codes, scale, qmap):
        self.codes, self.scale, self.qmap = codes, scale, qmap

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(func)  # as torchao's for what it does not know


def trained(optimizer_class, steps=6, size=(16, 16), sparsity=0.75, **options):
    """Model and optimizer after some steps with SET, and the weights that the last one grew."""
    torch.manual_seed(0)
    model = nn.Linear(*size, bias=False)
    optimizer = driven(sl.SET(sparsity, update=2, seed=0), model, optimizer_class, **options)
    for _ in range(steps):
        before = model.weight_mask.clone()
        fit(model, optimizer, [torch.randn(8, size[0])])
    return model, optimizer, model.weight_mask & ~before


def holding(states):
    """Makes an SGD that holds the states that a function gives for the weight's shape."""

    def make(params, lr):
        optimizer = torch.optim.SGD(params, lr)
        (param,) = optimizer.param_groups[0]["params"]
        optimizer.state[param].update(states(param.shape))
        return optimizer

    return make


def test_grown_weights_begin_without_momentum_and_absent_ones_stay_zero_once_dense():
    model, optimizer, grown = trained(Momentum8bit)
    momentum, absent = optimizer.momentum(model.weight), ~model.weight_mask
    assert int(grown.sum()) > 0
    assert not momentum[grown].any() and not momentum[absent].any()
    assert momentum[model.weight_mask & ~grown].any()
    sl.densify(model)
    model.weight.grad = torch.zeros_like(model.weight)
    optimizer.step()
    assert not model.weight[absent].any()


def codes(*shape):
    return torch.randint(0, 256, shape, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("states", "zero"),
    [
        (lambda shape: {"exp_avg": Coded(codes(*shape), torch.ones(1), TABLE.clone())}, 127),
        (lambda shape: {"state1": codes(2, *shape), "qmap1": TABLE.clone()}, 127),
        (lambda shape: {"state1": codes(2, *shape) + 0.5}, 0),
    ],
)
def test_each_state_of_codes_or_in_a_stack_is_masked(states, zero):
    model, optimizer, _ = trained(holding(states), steps=2)
    state, absent = optimizer.state[model.weight], ~model.weight_mask
    stack = state["state1"] if "state1" in state else state["exp_avg"].codes
    assert set(stack[..., absent].flatten().tolist()) == {zero}
    assert all(len(set(plane[~absent].tolist())) > 10 for plane in stack.view(-1, 16, 16))


def test_choices_and_codes_of_unknown_meaning_are_left_alone_and_told():
    with pytest.warns(UserWarning, match="Momentum8bit keeps 'state1' as Tensor of"):
        model, optimizer, _ = trained(Momentum8bit, known=False)

    def states(shape):
        codes = torch.full(shape, 3, dtype=torch.uint8)
        return {"mask": codes.bool(), "exp_avg::quantized": codes}

    with pytest.warns(UserWarning, match="SGD keeps 'exp_avg::quantized' as Tensor of torch.uint8"):
        model, optimizer, _ = trained(holding(states), steps=2)
    state = optimizer.state[model.weight]
    assert state["mask"].all() and bool((state["exp_avg::quantized"] == 3).all())


class RMSpropTF(torch.optim.SGD):
    """As timm's: mean squares begin at 1."""

    @torch.no_grad()
    def step(self, closure=None):
        (param,) = self.param_groups[0]["params"]
        squares = self.state[param].setdefault("square_avg", torch.ones_like(param))
        squares.lerp_(param.grad.square(), 0.1)
        param.sub_(0.1 * param.grad / squares.sqrt())


@pytest.mark.parametrize(
    ("make", "options", "first"),
    [
        (torch.optim.Rprop, {}, lambda g: 0.1 * g.sign()),
        (
            torch.optim.Adagrad,
            {"initial_accumulator_value": 0.5, "eps": 0.0},
            lambda g: 0.1 * g / (0.5 + g.square()).sqrt(),
        ),
        (RMSpropTF, {}, lambda g: 0.1 * g / (0.9 + 0.1 * g.square()).sqrt()),
    ],
)
def test_grown_weights_take_the_first_step_of_new_ones(make, options, first):
    model, optimizer, grown = trained(make, **options)
    absent = ~model.weight_mask
    optimizer.zero_grad()
    model(torch.randn(8, 16)).square().mean().backward()
    expected = -first(model.weight.grad[grown])
    optimizer.step()
    assert int(expected.count_nonzero()) > 5
    torch.testing.assert_close(model.weight[grown].detach(), expected)
    assert not model.weight[absent].any()


class Shampoo(torch.optim.Optimizer):
    def step(self, closure=None):
        for param in self.param_groups[0]["params"]:
            state, gradient = self.state[param], param.grad.clone()
            for number, factor in enumerate((gradient @ gradient.T, gradient.T @ gradient)):
                before = state.setdefault(f"precond_{number}", 0.1 * torch.eye(len(factor)))
                before += factor
            state["momentum"] = state.get("momentum", 0) + 1e-9 * gradient
            param.data.sub_(0.1 * torch.linalg.pinv(state["precond_0"]) @ gradient)


def checkerboard(p, sparsity, **_):
    rows, columns = map(torch.arange, p.shape)
    return (rows[:, None] + columns) % 2 == 0


def test_states_in_dicts_are_masked():
    class AggMo(torch.optim.SGD):
        """A momentum for each of several factors (Lucas et al. 2019)."""

        @torch.no_grad()
        def step(self, closure=None):
            for param in self.param_groups[0]["params"]:
                new = {factor: torch.zeros_like(param) for factor in (0.0, 0.9)}
                for factor, momentum in self.state[param].setdefault("momentum", new).items():
                    param.sub_(0.1 * momentum.mul_(factor).add_(param.grad))

    model, optimizer, grown = trained(AggMo)
    momentum = optimizer.state[model.weight]["momentum"][0.9]
    assert int(grown.sum()) > 0 and not momentum[grown | ~model.weight_mask].any()
    assert momentum[model.weight_mask & ~grown].any()


@pytest.mark.parametrize("listed", [True, False])
def test_states_of_optimizers_inside_another_are_masked(listed):
    class Parts(torch.optim.Optimizer):
        """Each optimizer steps a part of the parameters, as on a rank of ZeRO."""

        def __init__(self, params, lr):
            super().__init__(params, {})
            weight, bias = self.param_groups[0]["params"]
            parts = [torch.optim.SGD([p], 0.1, momentum=0.9) for p in (weight, bias)]
            self.__dict__ |= {"parts": parts} if listed else {"first": parts[0], "last": parts[1]}
            self.steps = [part.step for part in parts]

        def step(self, closure=None):
            for step in self.steps:
                step()

    torch.manual_seed(0)
    model, sparsity = nn.Linear(16, 16), sl.Group({"weight": sl.SET(0.75, update=2, seed=0)})
    optimizer = driven(sparsity, model, Parts)
    fit(model, optimizer, (torch.randn(8, 16) for _ in range(4)))
    inner = optimizer.parts[0] if listed else optimizer.first
    momentum = inner.state[model.weight]["momentum_buffer"]
    assert momentum.any() and not momentum[~model.weight_mask].any()


@pytest.mark.parametrize("order", [["even", "odd", "tall"], ["tall", "odd", "even"]])
def test_a_state_that_happens_to_be_symmetric_is_masked(order):
    model = nn.ModuleDict({n: nn.Linear(8, 4 if n == "tall" else 8, bias=False) for n in order})
    factors = {n: torch.rand_like(layer.weight) for n, layer in model.items()}
    factors["even"] = torch.ones(8, 8)
    sparsity = sl.SET(0.5, update=2, init_method=checkerboard, seed=0)
    optimizer = driven(sparsity, model, torch.optim.Adam)
    for _ in range(4):
        descend(optimizer, sum((model[name].weight * factors[name]).sum() for name in order))
    for layer in model.values():
        states = optimizer.state[layer.weight]
        assert not torch.equal(layer.weight_mask, checkerboard(layer.weight, 0.5))
        assert not (states["exp_avg"] * ~layer.weight_mask).any()
        assert not (states["exp_avg_sq"] * ~layer.weight_mask).any()


@pytest.mark.parametrize("nested", [False, True])
def test_states_in_a_basis_of_the_optimizer_are_left_alone_and_told(nested):
    class Soap(torch.optim.SGD):
        """Second moments of gradients that the eigenvectors of their covariances have turned."""

        def step(self, closure=None):
            for param in self.param_groups[0]["params"]:
                state = self.state[param]
                state = state.setdefault(0, {}) if nested else state  # as heavyball's
                covariances = [param.grad @ param.grad.T, param.grad.T @ param.grad]
                left, right = (torch.linalg.eigh(matrix)[1] for matrix in covariances)
                state["Q"] = [left[None], right[None]] if nested else [left, right]
                turned = left.T @ param.grad @ right
                state["exp_avg_sq"] = state.get("exp_avg_sq", 0) + turned.square()
            super().step(closure)

    with pytest.warns(UserWarning, match="Soap keeps '(0.)?exp_avg_sq' in a basis of its own"):
        model, optimizer, _ = trained(Soap, 3, (8, 4), 0.5)
    state = optimizer.state[model.weight]
    assert (state[0] if nested else state)["exp_avg_sq"].all()
    assert not model.weight[~model.weight_mask].any()


@pytest.mark.parametrize("sizes", [(8, 8), (8, 4)])
@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda grad: {"U": torch.linalg.svd(grad)[0][:, :2]}, r"'U' in another shape, \(\d, 2\)"),
        (lambda grad: {"low": {"m": torch.ones(2, 2) @ grad[:2]}}, "'low.m' in another shape"),
        (lambda grad: {"blocks": [grad.reshape(-1, 2, 2)]}, "'blocks.0' in another shape"),
        (lambda grad: {"rows": grad.mean(1), "columns": grad.mean(0, keepdim=True)}, None),
        (lambda grad: {"left": grad @ grad.T, "right": [grad.T @ grad]}, None),
        (lambda grad: {"past": deque([grad + 1, grad + 2])}, None),
    ],
)
def test_values_of_weights_in_another_shape_are_told_and_sums_are_not(make, told, sizes):
    class Own(torch.optim.SGD):
        def step(self, closure=None):
            for param in self.param_groups[0]["params"]:
                self.state[param].update(make(param.grad))
            super().step(closure)

    ends = []
    said = messages(lambda: ends.extend(trained(Own, 3, sizes, 0.5)))
    found = [text for text in said if "cannot be masked" in text]
    assert len(found) == bool(told) and all(re.search(f"Own keeps {told},", text) for text in found)
    model, optimizer, _ = ends
    for gradient in optimizer.state[model.weight].get("past", ()):
        assert not gradient[~model.weight_mask].any() and gradient.any()


class Psgd(torch.optim.Optimizer):
    """Triangular factors (PSGD), stacked statistics (DASH), a state of no parameter (MADGRAD)."""

    @torch.no_grad()
    def step(self, closure=None):
        self.state["k"] = self.state.get("k", torch.zeros(1)) + 1
        for param in self.param_groups[0]["params"]:
            state, grad, unit = self.state[param], param.grad, torch.eye(8)
            rows = unit[: len(grad), : len(grad)]
            (factor,) = state.setdefault("Q", [(rows + grad @ grad.T).triu()])
            stack = state.setdefault("statistics", unit.expand(2, 8, 8).clone())
            stack += grad.T @ grad
            state["momentum"] = 0.9 * state.get("momentum", 0) + grad
            param.sub_(torch.linalg.solve(factor, state["momentum"]) @ stack.inverse()[1])


class Conda(torch.optim.Optimizer):
    """Second moments in the basis of an object's matrix."""

    @torch.no_grad()
    def step(self, closure=None):
        for param in self.param_groups[0]["params"]:
            state, basis = self.state[param], torch.linalg.svd(param.grad)[0]
            basis = state.setdefault("projector", types.SimpleNamespace(matrix=basis)).matrix
            turned = basis.T @ param.grad
            squares = state["exp_avg_sq"] = 0.9 * state.get("exp_avg_sq", 0) + turned.square()
            param.sub_(0.1 * basis @ (turned / (squares.sqrt() + 1e-3)))


@pytest.mark.filterwarnings("ignore:.*in a basis of its own")
@pytest.mark.parametrize("make", [Psgd, Conda, Shampoo])
@pytest.mark.parametrize("sizes", [[(8, 8)], [(8, 8), (8, 4)]])
def test_factors_change_nothing_under_masks_that_stay(make, sizes):
    model = nn.Sequential(*(nn.Linear(*size, bias=False) for size in sizes))
    optimizer = driven(sl.Static(0.5, seed=0), model, make, {})
    masks, plain = [layer.weight_mask for layer in model], copy.deepcopy(model)
    sl.finalize(plain)
    other = make(plain.parameters(), {})
    for _ in range(6):
        inputs = torch.randn(8, 8)
        fit(model, optimizer, [inputs])
        other.zero_grad()
        plain(inputs).square().mean().backward()
        for param, mask in zip(plain.parameters(), masks):
            param.grad *= mask
        other.step()
        for param, mask in zip(plain.parameters(), masks):
            param.data *= mask
    for mine, theirs in zip(model.parameters(), plain.parameters()):
        assert int(mine.count_nonzero()) == mine.numel() // 2
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize(("algorithm", "masks"), [("set", True), ("gmp", True), ("set", False)])
def test_an_average_of_what_a_state_holds_has_the_masks_of_the_model(algorithm, masks):
    model, other = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)
    rising = {"type": "linear", "init": 0.5, "slope": 0.25 / 8}
    sparsity = sl.configure({"algorithm": algorithm, "sparsity": rising, "update": 2, "seed": 0})
    optimizer, average = driven(sparsity, model), copy.deepcopy(model)
    expected, floats = model.weight.detach().clone(), {}
    for _ in range(8):
        fit(model, optimizer, [torch.randn(8, 16)])
        for mine, theirs in zip(average.state_dict().values(), model.state_dict().values()):
            if masks or mine.is_floating_point():
                mine.copy_(0.5 * mine + 0.5 * theirs)
        expected = expected.lerp(model.weight.detach(), 0.5)
        floats = {n: 0.5 * floats.get(n, v) + 0.5 * v for n, v in model.state_dict().items()}
    assert torch.equal(average.state_dict()["weight_mask"], model.weight_mask)
    assert int(average.weight_mask.sum()) == 64
    inputs = torch.randn(4, 16)
    with torch.no_grad():
        torch.testing.assert_close(average(inputs), inputs @ (expected * model.weight_mask).T)
    with pytest.raises(RuntimeError, match="'weight_mask' has other values than 0 and 1"):
        model.load_state_dict(floats)
    average.load_state_dict(other.state_dict() | {"weight_mask": torch.ones(16, 16).bool()})
    assert torch.equal(average(inputs), other(inputs))


def test_complex_weights_are_masked_by_magnitude():
    model = nn.Linear(8, 8, bias=False, dtype=torch.complex64)
    largest = model.weight.abs().flatten().topk(32).indices
    sparsity = sl.RigL(0.5, update=2, init_method="topk", grown_init="gradient")
    sparsity.apply(model)
    assert set(model.weight_mask.flatten().nonzero().flatten().tolist()) == set(largest.tolist())
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    sparsity.apply(optimizer)
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8, dtype=torch.complex64)).abs().square().mean()
        (dense,) = torch.autograd.grad(loss, model.weight, retain_graph=True)
        loss.backward()
        norm, before = nn.utils.clip_grad_norm_(model.parameters(), 0.01), model.weight_mask.clone()
        optimizer.step()
        grown = model.weight_mask & ~before
        torch.testing.assert_close(model.weight[grown], -dense[grown] * 0.01 / (norm + 1e-6))
    assert int(grown.sum()) and int(model.weight_mask.sum()) == 32
    assert not model.weight[~model.weight_mask].any()
