"""Behaviour of SparsityAlgorithm."""

import gc
import warnings
import weakref

import pytest
import torch
from torch import nn

from sparse_lib.algorithms.gmp import GMP
from sparse_lib.algorithms.rigl import RigL
from sparse_lib.algorithms.set import SET
from sparse_lib.algorithms.static import Static
from sparse_lib.core.algorithm import SparsityAlgorithm
from sparse_lib.core.dynamic import DynamicSparsityAlgorithm
from sparse_lib.core.group import Group
from sparse_lib.schedules import Constant
from tests.sparse_lib.algorithm_cases import (
    assert_enforced,
    assert_equal,
    driven,
    make_model,
    snapshot,
    train,
)


def applied(algorithm, model=None, lr=0.1):
    model = make_model() if model is None else model
    optimizer = driven(algorithm, model, torch.optim.SGD, lr, momentum=0.9)
    return model, optimizer


def test_every_parameter_is_sparse_without_a_filter_and_zero_at_once():
    model = make_model()
    algorithm = Static(sparsity=0.3)
    model.apply(algorithm)
    counts = {n: int(s.mask.sum()) for n, s in algorithm.sparse_params.items()}
    assert counts == {"0.weight": 134, "0.bias": 11, "2.weight": 67}  # half-up of 0.7 n
    assert {k for k in model.state_dict() if k.endswith("_mask")} == {f"{n}_mask" for n in counts}
    assert model[0].weight_mask.dtype == torch.bool
    assert_enforced(algorithm)  # no forward, no initialize() yet
    algorithm.initialize()
    assert algorithm.num_sparse_params == 3


def test_names_have_no_wrapper_prefix():
    plain, wrapped = make_model(), make_model()
    one, two = Static(0.5, seed=1), Static(0.5, seed=1)
    one.apply(plain)
    two.apply(nn.DataParallel(wrapped))
    assert list(one.sparse_params) == list(two.sparse_params)
    assert torch.equal(plain[0].weight_mask, wrapped[0].weight_mask)


def test_setting_a_mask_by_hand():
    model, algorithm = make_model(), Static(0.5)
    algorithm.apply(model)
    sparse = algorithm.get_sparse_params(model[0].weight)
    sparse.mask = torch.eye(16, 12)
    assert int(model[0].weight_mask.sum()) == 12
    assert_enforced(algorithm)
    with pytest.raises(ValueError, match="shape"):
        sparse.mask = torch.ones(3)
    assert [s.name for s in algorithm.get_sparse_params(model[0])] == ["0.weight", "0.bias"]
    assert algorithm.get_sparse_params(torch.ones(1)) is None
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    assert len(algorithm.get_sparse_params(optimizer)) == algorithm.num_sparse_params == 3
    assert sparse is algorithm.sparse_params["0.weight"] and sparse.name == "0.weight"
    assert sparse.module is model[0] and sparse.param is model[0].weight
    assert torch.equal(sparse.data, model[0].weight.detach())


def test_misuse_is_one_sentence():
    model, algorithm = make_model(), Static(0.5)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(ValueError, match="model before its optimizer"):
        algorithm.apply(optimizer)
    with pytest.raises(TypeError, match="module or optimizer"):
        algorithm.apply(3)
    algorithm.apply(model)
    with pytest.raises(ValueError, match="none of the sparse parameters"):
        algorithm.apply(torch.optim.SGD(make_model().parameters(), 0.1))
    algorithm.apply(optimizer)
    with pytest.raises(ValueError, match="another optimizer"):
        algorithm.apply(torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(ValueError, match="another model"):
        algorithm.apply(make_model())
    with pytest.raises(ValueError, match="needs a sparsity"):
        RigL()
    with pytest.raises(ValueError, match="sparsity or schedule, not both"):
        GMP(0.5, schedule=0.5)
    with pytest.raises(TypeError, match="abstract"):
        SparsityAlgorithm(0.5)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Static(0.5).apply(nn.ReLU())
    assert "no parameter" in str(caught[0].message)


def test_a_new_optimizer_after_the_old_one_is_gone():
    algorithm = RigL(0.5, update=1)
    model, optimizer = applied(algorithm)
    train(model, optimizer, 2)
    del optimizer
    gc.collect()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    algorithm.apply(optimizer)
    train(model, optimizer, 2, after=lambda: assert_enforced(algorithm, optimizer))
    assert algorithm.step == algorithm.num_updates == 4


def test_a_dropped_algorithm_is_freed_and_lets_its_masks_go_on():
    algorithm = RigL(0.5, update=1)
    model, optimizer = applied(algorithm)
    train(model, optimizer, 1)
    reference = weakref.ref(algorithm)
    optimizer._optimizer_step_pre_hooks.clear()
    optimizer._optimizer_step_post_hooks.clear()
    del algorithm
    gc.collect()
    assert reference() is None  # though it was waiting for the next dense gradient
    train(model, optimizer, 2)
    assert not model[0].weight.detach()[~model[0].weight_mask].any()


@pytest.mark.parametrize("spec", [0.5, [0.5], {"type": "constant", "value": 0.5}, Constant(0.5)])
def test_an_algorithm_of_update_alone_takes_sparsity_in_every_form(spec):
    class Frozen(SparsityAlgorithm):
        in_registry = False

        def update(self, optimizer):
            self.seen = optimizer

    algorithm = Frozen(sparsity=spec)
    model, optimizer = applied(algorithm)
    train(model, optimizer, 1)
    assert algorithm.seen is optimizer
    assert int(model[0].weight_mask.sum()) == 96


@pytest.mark.parametrize(("sparsity", "count"), [(0, 192), (0.5, 96), (1, 0)])
def test_static_masks_up_to_both_ends(sparsity, count):
    model, optimizer = applied(Static(sparsity))
    train(model, optimizer, 2)
    assert int(model[0].weight_mask.sum()) == int(model[0].weight.count_nonzero()) == count


def test_a_new_sparsity_holds_from_the_next_update_on():
    algorithm = SET({"0.*": 0.25, "*": 0.5}, 1)
    model, optimizer = applied(algorithm)
    train(model, optimizer, 1)
    assert algorithm.sparsity[model[0].weight](0) == 0.25
    algorithm.sparsity = {model[0].weight: 0.75, "*": 0.5}
    train(model, optimizer, 1)
    assert int(model[0].weight_mask.sum()) == 48


def test_masks_are_made_from_updated_weights_at_the_step_of_the_optimizer():
    seen = []

    class Watch(DynamicSparsityAlgorithm):
        in_registry = False

        def update_mask(self, p, mask, sparsity):
            seen.append((self.step, float(p.sum()), sparsity, torch.is_grad_enabled()))
            return mask

    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 1.0)
    _, optimizer = applied(Watch(sparsity=lambda step: step / 100, update={"freq": 2}), model, 0.25)
    for _ in range(4):
        model.weight.grad = torch.ones(1, 1)
        optimizer.state.clear()  # no momentum
        optimizer.step()
    assert seen == [(2, 0.5, 0.02, False), (4, 0.0, 0.04, False)]


def test_a_list_of_sparsities_stays_at_its_last_and_hooks_report_it():
    algorithm = GMP([0.25, 0.5], update={"freq": 2}, init_method="topk")
    model, optimizer = applied(algorithm)
    levels, targets = [], []
    algorithm.register_target_sparsity_hook(lambda a, name, target: targets.append(target))
    algorithm.register_computed_sparsity_hook(
        lambda a, name, level: levels.append(level) if name == "0.weight" else None
    )
    train(model, optimizer, 8)
    assert levels == targets == [0.25] + [0.5] * 7


@pytest.mark.parametrize("cls", [torch.optim.Adam, torch.optim.NAdam, torch.optim.Adadelta])
def test_scalars_of_the_optimizer_are_no_masked_states(cls):
    model = nn.ParameterDict({"scale": nn.Parameter(torch.tensor(2.0))})
    algorithm = Static(1.0)
    algorithm.apply(model)
    optimizer = cls(model.parameters())
    algorithm.apply(optimizer)
    for count in (1, 2):
        (model["scale"] * 3).backward()
        optimizer.step()
        state = optimizer.state[model["scale"]]
        assert state["step"] == count and float(model["scale"].detach()) == 0.0
        assert cls is not torch.optim.NAdam or float(state["mu_product"]) > 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: RigL(0.5, balance_out_groups=7),
        lambda: Static({"0.weight": 0.5}),
        lambda: Static(0.5, init_method="snip"),
        lambda: Group({"0*": Static(0.5), "2*": Static(0.5, init_method=lambda p, s: p[:1])}),
    ],
)
def test_a_refused_apply_leaves_the_model_as_it_was(make):
    model = make_model()
    before = snapshot(model)
    refused = make()
    with pytest.raises(ValueError):
        refused.apply(model)
    assert refused.num_sparse_params == 0
    assert_equal(snapshot(model), before)
    Static(0.5).apply(model)
    with pytest.raises(ValueError, match="already sparsified by Static"):
        Group({"*": Static(0.5)}).apply(model)
    assert model[0].weight_mask.sum() == 96


def test_applying_the_class_is_refused():
    with pytest.raises(TypeError, match="sparsity must be a number"):
        make_model().apply(Static)


def test_two_draws_of_an_update_differ_if_they_are_of_one_generator():
    algorithm, model = SET(0.5, seed=3), nn.Linear(6, 6, bias=False)
    algorithm.apply(model)

    def draw(of, count=4):
        source = algorithm.generator(of)
        return [torch.rand(5, generator=source) for _ in range(count)]

    first = draw(model.weight)
    assert not any(torch.equal(a, b) for i, a in enumerate(first) for b in first[:i])
    assert all(map(torch.equal, first, draw(model.weight)))  # each generator starts anew
    assert all(map(torch.equal, first, draw("weight")))
    assert not any(map(torch.equal, first, draw("weight/noise")))
    algorithm.num_updates += 1
    assert not any(map(torch.equal, first, draw(model.weight)))
