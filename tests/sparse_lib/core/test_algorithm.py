"""Behaviour of SparsityAlgorithm."""

import gc
import warnings
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from sparse_lib.algorithms.gmp import GMP
from sparse_lib.algorithms.rigl import RigL
from sparse_lib.algorithms.set import SET
from sparse_lib.algorithms.static import Static
from sparse_lib.core.group import Group
from tests.sparse_lib.algorithm_cases import (
    assert_enforced,
    assert_equal,
    make_model,
    snapshot,
    train,
)


def applied(algorithm, model=None, lr=0.1):
    model = make_model() if model is None else model
    algorithm.apply(model)
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9)
    algorithm.apply(optimizer)
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


def test_before_or_after_compile_is_the_same():
    results = []
    for late in (False, True):
        model, algorithm = make_model(), RigL(0.5, 2, seed=1)
        if not late:
            algorithm.apply(model)
        compiled = torch.compile(model, backend="eager")
        if late:
            compiled.apply(algorithm)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        algorithm.apply(optimizer)
        train(compiled, optimizer, 5)
        assert list(algorithm.sparse_params) == ["0.weight", "0.bias", "2.weight"]
        results.append(snapshot(model))
    assert all(torch.equal(results[0][k], results[1][k]) for k in results[0])


def test_applying_twice_changes_nothing():
    model, algorithm = make_model(), Static(0.5)
    algorithm.apply(model)
    before = snapshot(model)
    model.apply(algorithm)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_hooks_report_targets_by_common_prefix_and_can_be_removed():
    algorithm = GMP({"type": "linear", "init": 0.0, "slope": 0.1}, update=1)
    model, optimizer = applied(algorithm)
    seen = []
    handle = algorithm.register_target_sparsity_hook(lambda alg, name, t: seen.append((name, t)))
    train(model, optimizer, 2)
    handle.remove()
    train(model, optimizer, 1)
    assert seen == [("*", pytest.approx(0.1)), ("*", pytest.approx(0.2))]


def test_loading_dense_weights_masks_them_at_once():
    model, algorithm = make_model(), Static(0.5)
    algorithm.apply(model)
    model.load_state_dict(make_model(5).state_dict(), strict=False)
    assert_enforced(algorithm)


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


def test_autoupdate_off_keeps_masks_and_masking():
    algorithm = SET(0.5, update=1)
    model, optimizer = applied(algorithm)
    algorithm.autoupdate = False
    before = model[0].weight_mask.clone()
    train(model, optimizer, 3, after=lambda: assert_enforced(algorithm, optimizer))
    assert torch.equal(before, model[0].weight_mask)
    algorithm.update()
    assert not torch.equal(before, model[0].weight_mask)


def test_rigl_by_hand_has_its_dense_gradient():
    algorithm = RigL(0.5, update=1)
    model, optimizer = applied(algorithm)
    algorithm.autoupdate = False
    assert algorithm.needs_dense_gradient
    for step in range(3):
        train(model, optimizer, 1, start=step)
        before = model[0].weight_mask.clone()
        algorithm.update()
        assert not torch.equal(before, model[0].weight_mask)
        assert_enforced(algorithm, optimizer)


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
    with pytest.raises(ValueError, match="needs a sparsity"):
        RigL()
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


def test_what_only_looks_like_an_optimizer_is_refused():
    model, algorithm = make_model(), Static(0.5)
    algorithm.apply(model)
    with pytest.raises(TypeError, match="torch optimizer, not Strange"):
        algorithm.apply(type("Strange", (), {"param_groups": [{"params": []}]})())


def test_two_algorithms_on_disjoint_parts():
    model = make_model()
    Static(0.5).apply(model[0])
    Static(0.25).apply(model[2])
    assert model[0].weight_mask.float().mean() == 0.5
    assert model[2].weight_mask.float().mean() == 0.75


def test_sparsity_by_parameter():
    model = make_model()
    algorithm = Static({"0.*": 0.5, "*": 0.25})
    algorithm.apply(model)
    assert algorithm.sparsity[model[2].weight](0) == 0.25
    assert model[0].weight_mask.float().mean() == 0.5
    assert model[2].weight_mask.float().mean() == 0.75


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


def test_numpy_integers_are_seeds():
    assert type(Static(0.5, seed=np.int64(3)).seed) is int
    with pytest.raises(TypeError, match="seed must be an integer or None, not 3.0"):
        Static(0.5, seed=3.0)


def test_applying_the_class_is_refused():
    with pytest.raises(TypeError, match="sparsity must be a number"):
        make_model().apply(Static)
