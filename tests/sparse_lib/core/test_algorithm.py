"""Behaviour of SparsityAlgorithm."""

import warnings

import pytest
import torch
from torch import nn

import sparse_lib as sl
from sparse_lib.schedules import Constant
from tests.cases import assert_enforced, assert_equal, driven, make_model, snapshot, train


def applied(algorithm):
    return (model := make_model()), driven(algorithm, model, momentum=0.9)


def test_every_parameter_is_sparse_at_once_under_its_name_without_wrappers():
    model = make_model()
    algorithm = sl.Static(sparsity=0.3)
    model.apply(algorithm)
    counts = {n: int(s.mask.sum()) for n, s in algorithm.sparse_params.items()}
    assert counts == {"0.weight": 134, "0.bias": 11, "2.weight": 67}  # half-up of 0.7 n
    assert {k for k in model.state_dict() if k.endswith("_mask")} == {f"{n}_mask" for n in counts}
    assert model[0].weight_mask.dtype == torch.bool
    assert_enforced(algorithm)  # no forward, no initialize() yet
    algorithm.initialize()
    assert algorithm.num_sparse_params == 3
    plain, wrapped = make_model(), make_model()
    one, two = sl.Static(0.5, seed=1), sl.Static(0.5, seed=1)
    one.apply(plain)
    two.apply(nn.DataParallel(wrapped))
    assert list(one.sparse_params) == list(two.sparse_params)
    assert torch.equal(plain[0].weight_mask, wrapped[0].weight_mask)


def test_setting_a_mask_by_hand():
    model, algorithm = make_model(), sl.Static(0.5)
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
    model, algorithm = make_model(), sl.Static(0.5)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(ValueError, match="model before its optimizer"):
        algorithm.apply(optimizer)
    algorithm.apply(model)
    with pytest.raises(ValueError, match="none of the sparse parameters"):
        algorithm.apply(torch.optim.SGD(make_model().parameters(), 0.1))
    algorithm.apply(optimizer)
    for call, words in (
        (lambda: algorithm.apply(3), "module or optimizer"),
        (lambda: make_model().apply(sl.Static), "sparsity must be a number"),
        (lambda: algorithm.apply(torch.optim.SGD(model.parameters(), 0.1)), "another optimizer"),
        (lambda: algorithm.apply(make_model()), "another model"),
        (sl.RigL, "needs a sparsity"),
        (lambda: sl.GMP(0.5, schedule=0.5), "sparsity or schedule, not both"),
        (lambda: sl.SparsityAlgorithm(0.5), "abstract"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            call()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sl.Static(0.5).apply(nn.ReLU())
    assert "no parameter" in str(caught[0].message)


@pytest.mark.parametrize("spec", [0.5, [0.5], {"type": "constant", "value": 0.5}, Constant(0.5)])
def test_an_algorithm_of_update_alone_takes_sparsity_in_every_form(spec):
    class Frozen(sl.SparsityAlgorithm):
        in_registry = False

        def update(self, optimizer):
            self.seen = optimizer

    algorithm = Frozen(sparsity=spec)
    model, optimizer = applied(algorithm)
    train(model, optimizer, 1)
    assert algorithm.seen is optimizer
    assert int(model[0].weight_mask.sum()) == 96


def test_a_new_sparsity_holds_from_the_next_update_on():
    algorithm = sl.SET({"0.*": 0.25, "*": 0.5}, 1)
    model, optimizer = applied(algorithm)
    train(model, optimizer, 1)
    assert algorithm.sparsity[model[0].weight](0) == 0.25
    algorithm.sparsity = {model[0].weight: 0.75, "*": 0.5}
    train(model, optimizer, 1)
    assert int(model[0].weight_mask.sum()) == 48


@pytest.mark.parametrize(
    "make",
    [
        lambda: sl.RigL(0.5, balance_out_groups=7),
        lambda: sl.Static({"0.weight": 0.5}),
        lambda: sl.Static(0.5, init_method="snip"),
        lambda: sl.Group(
            {"0*": sl.Static(0.5), "2*": sl.Static(0.5, init_method=lambda p, s: p[:1])}
        ),
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
    sl.Static(0.5).apply(model)
    with pytest.raises(ValueError, match="already sparsified by Static"):
        sl.Group({"*": sl.Static(0.5)}).apply(model)
    assert model[0].weight_mask.sum() == 96


def test_two_draws_of_an_update_differ_if_they_are_of_one_generator():
    algorithm, model = sl.SET(0.5, seed=3), nn.Linear(6, 6, bias=False)
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
