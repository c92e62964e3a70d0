"""Scripts that make the calls of the Cerebras documents, and the older, optimizer-style API."""

import copy

import pytest
import torch
from torch import nn

from sparse_lib import schedules
from sparse_lib.algorithms.set import SET
from sparse_lib.compat import cstorch
from sparse_lib.compat.optimizers import (
    BaseHyperParameter,
    BaseSparsityOptimizer,
    StaticSparsityOptimizer,
)
from sparse_lib.compat.wrapper import configure_sparsity_optimizer, configure_sparsity_wrapper
from sparse_lib.schedules import make_hyperparameter_schedule
from tests.cases import assert_enforced, assert_equal, driven, fit, make_model, snapshot, train


@pytest.mark.parametrize("kind", ["CPU", "CSX"])
@pytest.mark.parametrize("compile_first", [True, False])
def test_a_script_for_static_sparsity(kind, compile_first):
    backend = cstorch.backend(kind)
    with backend.device:
        model = nn.Sequential(nn.Linear(25, 20), nn.ReLU(), nn.Linear(20, 10))
    sparsity = cstorch.sparse.Static(sparsity=0.3)
    if not compile_first:
        model.apply(sparsity)
    compiled = cstorch.compile(model, backend)
    if compile_first:
        model.apply(sparsity)
    found = {name: round(s.sparsity, 6) for name, s in sparsity.sparse_params.items()}
    assert found == dict.fromkeys(("0.weight", "0.bias", "2.weight", "2.bias"), 0.3)
    optimizer = cstorch.optim.AdamW(model.parameters(), lr=0.01)
    optimizer.apply(sparsity)
    before = {name: s.mask.clone() for name, s in sparsity.sparse_params.items()}
    fit(compiled, optimizer, torch.randn(3, 8, 25))
    assert_enforced(sparsity, optimizer)
    assert all(torch.equal(before[n], s.mask) for n, s in sparsity.sparse_params.items())


class ShiftMasks(cstorch.sparse.SparsityAlgorithm):
    """An algorithm with settings of its own and the one abstract method."""

    def __init__(self, shift=1, **kwargs):
        self.shift = shift
        super().__init__(**kwargs)

    def update(self):
        for sparse_param in self.sparse_params.values():
            assert sparse_param.data.shape == sparse_param.mask.shape
            sparse_param.mask = sparse_param.mask.roll(self.shift, 0)


def test_a_custom_algorithm_directly_and_by_name():
    config = {"algorithm": "ShiftMasks", "shift": 2, "sparsity": 0.5, "param_filter": "*"}
    for made in (ShiftMasks(shift=2, sparsity=0.5), cstorch.sparse.configure(config)):
        optimizer = driven(made, model := make_model(), cstorch.optim.SGD)
        before = model[0].weight_mask.clone()
        train(model, optimizer, 2, after=lambda made=made: assert_enforced(made))
        assert torch.equal(model[0].weight_mask, before.roll(4, 0))


def test_backends_by_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cstorch.backend("csx").torch_device.type == "cpu"
    assert repr(cstorch.backend("CPU", compile_dir=".")) == "Backend('CPU')"
    for name, words in (("GPU", "needs a CUDA device"), ("TPU", "'CPU', 'GPU' or 'CSX'")):
        with pytest.raises(ValueError, match=words):
            cstorch.backend(name)
    with pytest.raises(TypeError, match="torch module"):
        cstorch.compile(lambda x: x, cstorch.backend())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert cstorch.backend("GPU").torch_device.type == "cuda"


@pytest.mark.parametrize(
    ("name", "options", "states"),
    [
        ("SGD", {"lr": 0.1}, []),
        ("SGD", {"lr": 0.1, "momentum": 0.9}, ["momentum_buffer"]),
        ("AdamW", {}, ["exp_avg", "exp_avg_sq"]),
        ("Adam", {"amsgrad": True}, ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"]),
        ("Adagrad", {}, ["sum"]),
        ("SparseAdam", {}, ["exp_avg", "exp_avg_sq"]),
        ("LBFGS", {}, []),
    ],
)
def test_optimizers_name_the_states_that_become_sparse(name, options, states):
    model, sparsity = make_model(), cstorch.sparse.Static(sparsity=0.5)
    model.apply(sparsity)
    optimizer = getattr(cstorch.optim, name)(model.parameters(), **options)
    assert optimizer.state_names_to_sparsify() == states
    assert all(not state for state in optimizer.state.values()) or name == "Adagrad"
    assert optimizer.apply(sparsity) is optimizer and sparsity.drives_optimizer
    with pytest.raises(TypeError, match="apply takes a sparsity algorithm, not 3"):
        optimizer.apply(3)


@pytest.mark.parametrize("name", ["static", "gmp", "set", "rigl"])
def test_a_sparsity_optimizer_and_a_wrapper_by_name(name):
    sparsity = [0.5] if name == "gmp" else 0.5
    model, other = make_model(), make_model()
    by_hand = configure_sparsity_optimizer(name, model.named_parameters(), sparsity=sparsity)
    assert type(by_hand).__name__.lower() == f"{name}sparsityoptimizer"
    by_hand.hook_module(model)
    by_hand.apply_sparsity()
    train(model, torch.optim.SGD(model.parameters(), 0.1), 2, after=by_hand.step)
    inner = torch.optim.SGD(other.parameters(), 0.1)
    wrapper = configure_sparsity_wrapper(other, inner, sparsity_type=name, sparsity=sparsity)
    train(other, wrapper, 2)
    assert_equal(snapshot(model), snapshot(other))
    for group in (by_hand.sparsity, wrapper.sparsity):
        counts = {name: int(s.mask.sum()) for name, s in group.sparse_params.items()}
        assert counts == {"0.weight": 96, "2.weight": 48}
        assert_enforced(group)


def test_a_hyperparameter_with_state_slots_is_called_once_per_step_and_saved():
    class Ratchet(cstorch.sparse.BaseHyperParameter):
        TYPE = "ratchet_type"
        __state_slots__ = ("level",)

        def __init__(self, start):
            self.level = torch.tensor(start)

        def __call__(self, step: torch.Tensor, is_update_step: torch.Tensor):
            assert step.dtype == torch.int64 and is_update_step.dtype == torch.bool
            self.level += 0.125 * is_update_step
            return self.level

    algorithm = SET({"type": "ratchet_type", "start": 0.5}, update=2)
    model = make_model()
    optimizer = driven(algorithm, model)
    counts = []
    train(model, optimizer, 4, after=lambda: counts.append(int(model[0].weight_mask.sum())))
    assert counts == [72, 48, 48, 24]
    state = algorithm.state_dict()["sparsity"]
    again = make_hyperparameter_schedule({"type": "ratchet", "start": 0.0})
    again.load_state_dict(state[0])
    assert float(again(9, False)) == float(state[0]["level"]) == 0.875
    for name in ("Constant", "Linear", "Exp", "Power", "Cosine", "Cycling", "Lambda"):
        assert issubclass(getattr(schedules, name), BaseHyperParameter)
        assert getattr(schedules, name).TYPE == name.lower()


class HalfSparsityOptimizer(BaseSparsityOptimizer):
    """A user's own, with the two methods that the base asks for."""

    def _get_target_sparsity_level_of_group(self, group):
        return group["level"]

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["mask"] = ~self.state[p]["mask"]


def test_an_old_style_sparsity_optimizer():
    model = make_model()
    weights = [(name, p) for name, p in model.named_parameters() if name.endswith("weight")]
    sparsity = HalfSparsityOptimizer(weights, defaults={"level": 0.5})
    with pytest.raises(RuntimeError, match="apply_sparsity"):
        sparsity.step()
    sparsity.hook_module(model)
    sparsity.apply_sparsity()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    sparsity.manage_optimizer_state_sparsity(optimizer)
    for step in range(3):
        before = model[0].weight_mask.clone()
        assert int(before.sum()) == 96
        train(model, optimizer, 1, start=step)
        sparsity.step()
        assert torch.equal(model[0].weight_mask, ~before)
        assert_enforced(sparsity.sparsity, optimizer)
    assert sparsity.num_steps == 3
    assert model[0].bias.all()


def test_only_the_named_states_are_sparse():
    model = make_model()
    sparsity = StaticSparsityOptimizer(model, sparsity=0.5)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    sparsity.manage_optimizer_state_sparsity(optimizer, ["exp_avg"])
    sparsity.apply_sparsity()
    dense = torch.full_like(model[0].weight, 3.0)
    train(model, optimizer, 1)
    state, off = optimizer.state[model[0].weight], ~model[0].weight_mask
    state["exp_avg"].copy_(dense)
    state["exp_avg_sq"].copy_(dense)
    train(model, optimizer, 1, start=1)
    assert not state["exp_avg"][off].any() and state["exp_avg_sq"][off].all()


def test_state_by_names_resumes_masks_and_steps():
    def build():
        model = make_model()
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        return model, configure_sparsity_wrapper(
            model, optimizer, "set", sparsity=0.5, schedule=2, drop_fraction=0.5
        )

    one, optimizer = build()
    train(one, optimizer, 3)
    saved, weights = copy.deepcopy(optimizer.state_dict()), snapshot(one)
    assert list(saved["sparsity"]["state"]) == ["0.weight", "2.weight"]
    assert saved["sparsity"]["step"] == 3
    train(one, optimizer, 3, start=3)
    two, other = build()
    two.load_state_dict(weights)
    other.load_state_dict(saved)
    train(two, other, 3, start=3)
    assert_equal(snapshot(one), snapshot(two))
    old = {key: value for key, value in saved["sparsity"].items() if key != "sparsity"}
    other.load_state_dict({**saved, "sparsity": old})
    assert [a.step for a in other.sparsity] == [3]
    with pytest.raises(ValueError, match="parameter groups"):
        other.sparsity_optimizer.load_state_dict({**old, "param_groups": []})
    with pytest.raises(ValueError, match="dense optimizer"):
        other.load_state_dict(other.optimizer.state_dict())


def test_the_wrapper_is_an_optimizer_to_schedulers_and_scalers():
    model = make_model()
    inner = torch.optim.SGD(model.parameters(), 1.0, momentum=0.9)
    optimizer = configure_sparsity_wrapper(model, inner, "set", sparsity=0.5, schedule=1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    masks = []
    for step in range(3):
        optimizer.zero_grad()
        loss = model(torch.ones(1, 12)).sum() * (float("inf") if step == 1 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        masks.append(model[0].weight_mask.clone())
    assert [group["lr"] for group in inner.param_groups] == [0.25]
    assert optimizer.sparsity.step == 2  # the step that overflowed is none
    assert torch.equal(masks[0], masks[1]) and not torch.equal(masks[1], masks[2])
    assert optimizer.param_groups is inner.param_groups
    assert {"momentum_buffer", "mask"} == set(optimizer.state[model[0].weight])
    assert isinstance(optimizer, torch.optim.Optimizer)
    with pytest.raises(TypeError, match="state_dict"):
        copy.deepcopy(optimizer)


def test_sparsity_optimizers_by_name_and_pattern():
    model = make_model()
    half = configure_sparsity_optimizer("half", model, level=0.25)
    assert type(half) is HalfSparsityOptimizer
    patterns = {"^0": {"sparsity": 0.75}, "weight": {}}
    params = model.named_parameters()
    sparsity = configure_sparsity_optimizer("static", params, "topk", patterns, sparsity=0.5)
    assert type(sparsity) is StaticSparsityOptimizer
    names = [group["param_names"] for group in sparsity.param_groups]
    assert names == [["0.weight", "0.bias"], ["2.weight"]]
    with pytest.raises(RuntimeError, match="hook_module"):
        sparsity.apply_sparsity()
    sparsity.hook_module(model)
    sparsity.apply_sparsity()
    levels = [round(s.sparsity, 3) for s in sparsity.sparsity.sparse_params.values()]
    assert levels == [0.75, 0.75, 0.5]
    granet = configure_sparsity_optimizer("granet", model, sparsity=[0.1, 0.2], schedule=[0, 3])
    assert [granet.sparsity[0].is_update_step(t) for t in range(4)] == [True, False, False, True]
    rigl = configure_sparsity_optimizer("rigl", model, sparsity=0.5)
    assert not rigl.sparsity[0].is_update_step(999) and rigl.sparsity[0].is_update_step(1000)
    sideband = configure_sparsity_optimizer("sideband", model, sparsity=0.5)
    assert sideband.sparsity[0].init_method == "topk"
    seen = []
    sparsity.visit_state(lambda tensor: seen.append(tensor.shape))
    assert len(seen) == 3
    sparsity.visit_state(torch.zeros_like)
    assert not model[0].weight.any()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("rigle", make_model()), "did you mean 'rigl'"),
        ((3, make_model()), "must be a name"),
        (("static", make_model(), None, "nothing"), "matches no parameter"),
        (("static", make_model(), None, {}), "empty"),
        (("static", make_model(), None, {"0": 0.5}), "must be a dict"),
        (("static", make_model(), None, "0", len), "not both"),
        (("static", make_model(), None, None, lambda name, param: False), "no parameter is left"),
        (("static", make_model()), "needs a sparsity"),
        (("static", [make_model()[0].weight]), "pairs"),
    ],
)
def test_misuse_of_sparsity_optimizers(arguments, words):
    with pytest.raises((ValueError, TypeError), match=words):
        configure_sparsity_optimizer(*arguments)


def test_an_optimizer_of_another_model_is_refused_before_anything_is_masked():
    model, before = make_model(), snapshot(make_model())
    optimizer = torch.optim.SGD(make_model().parameters(), 0.1)
    with pytest.raises(ValueError, match="holds none of the sparse parameters"):
        configure_sparsity_wrapper(model, optimizer, "set", sparsity=0.5)
    assert_equal(snapshot(model), before)
