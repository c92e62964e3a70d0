"""What holds for every registered algorithm, a user's included."""

import copy
import json
import pickle

import pytest
import torch

from sparse_lib.core.algorithm import algorithm_classes
from sparse_lib.core.dynamic import DynamicSparsityAlgorithm
from sparse_lib.masks.counts import num_nonzero
from tests.sparse_lib.algorithm_cases import (
    ALGORITHMS,
    SCHEDULES,
    assert_enforced,
    assert_equal,
    make,
    make_model,
    snapshot,
    train,
)

OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, 0.05, momentum=0.9, weight_decay=0.1),
    "adamw": lambda params: torch.optim.AdamW(params, 0.01, amsgrad=True),
    "adagrad": lambda params: torch.optim.Adagrad(params, 0.01, initial_accumulator_value=0.1),
    "adamax": lambda params: torch.optim.Adamax(params, 0.01),
    "rprop": lambda params: torch.optim.Rprop(params, 0.01),
}


def start(name, sparsity=0.6, optimizer="sgd", **options):
    model = make_model()
    algorithm = make(name, sparsity, **options)
    algorithm.apply(model)
    optim = OPTIMIZERS[optimizer](model.parameters())
    algorithm.apply(optim)
    return model, algorithm, optim


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_masked_positions_are_zero_after_every_step(name, optimizer):
    model, algorithm, optim = start(name, optimizer=optimizer)
    assert_enforced(algorithm)
    train(model, optim, 6, after=lambda: assert_enforced(algorithm, optim))
    assert algorithm.step == 6


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_counts_are_exact_at_every_update(name, schedule):
    model, algorithm, optim = start(name, SCHEDULES[schedule])
    if name in ("rolling", "static", "byhand"):  # they set no target, or lag behind one
        return

    def check():
        for sparse in algorithm.sparse_params.values():
            count = int(sparse.mask.sum())
            asked = num_nonzero(sparse.target, sparse.mask.numel())
            assert count == asked or (not algorithm.exact_counts and count < asked)

    train(model, optim, 8, after=check)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_nan_at_masked_positions_never_reaches_the_optimizer(name):
    model, algorithm, optim = start(name, update=None) if _is_dynamic(name) else start(name)
    if not algorithm.masks_gradients:
        return  # the next test says what it gets
    for value in (float("nan"), float("inf")):
        for sparse in algorithm.sparse_params.values():
            sparse.param.grad = torch.zeros_like(sparse.param).masked_fill(~sparse.mask, value)
        optim.step()
        assert_enforced(algorithm, optim)
        assert all(p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_optimizer_sees_the_gradients_that_the_algorithm_says(name):
    model, algorithm, optim = start(name, update=100) if _is_dynamic(name) else start(name)
    hidden = []
    optim.register_step_pre_hook(
        lambda *_: hidden.extend(
            bool(sparse.param.grad[~sparse.mask].any())
            for sparse in algorithm.sparse_params.values()
        )
    )
    train(model, optim, 1)
    assert hidden and any(hidden) is not algorithm.masks_gradients


def _is_dynamic(name):
    return issubclass(algorithm_classes()[name], DynamicSparsityAlgorithm)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_requires_dense_parameters_are_untouched(name):
    model = make_model()
    model[0].weight.requires_dense = True
    model[2].requires_dense = True
    before = snapshot(model)
    algorithm = make(name)
    algorithm.apply(model)
    assert list(algorithm.sparse_params) == ["0.bias"]
    assert torch.equal(model[0].weight, before["0.weight"])
    assert not hasattr(model[0], "weight_mask")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_model_apply_equals_algorithm_apply(name):
    first, second = make_model(), make_model()
    one, two = make(name), make(name)
    first.apply(one)
    two.apply(second)
    assert_equal(snapshot(first), snapshot(second))
    assert list(one.sparse_params) == list(two.sparse_params) == ["0.weight", "0.bias", "2.weight"]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_global_random_numbers_are_used(name):
    model = make_model()
    algorithm = make(name, seed=None)
    torch.manual_seed(11)
    state = torch.get_rng_state()
    algorithm.apply(model)
    optim = torch.optim.SGD(model.parameters(), 0.1)
    algorithm.apply(optim)
    train(model, optim, 4)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_masks_do_not_depend_on_other_layers(name):
    alone = torch.nn.ModuleDict({"old": torch.nn.Linear(9, 9)})
    joined = torch.nn.ModuleDict({"new": torch.nn.Linear(9, 9), "old": copy.deepcopy(alone["old"])})
    for model in (alone, joined):
        make(name).apply(model)
    assert torch.equal(alone["old"].weight_mask, joined["old"].weight_mask)
    if not joined["old"].weight_mask.all():  # some start dense
        assert not torch.equal(joined["new"].weight_mask, joined["old"].weight_mask)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_skipped_step_changes_nothing(name):
    model, algorithm, optim = start(name, update=None) if _is_dynamic(name) else start(name)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    before, step = snapshot(model), algorithm.step
    loss = model(torch.ones(2, 12)).sum()
    scaler.scale(loss * float("inf")).backward()
    scaler.step(optim)
    scaler.update()
    assert algorithm.step == step == 0
    assert_equal(before, snapshot(model))
    optim.zero_grad()
    scaler.scale(model(torch.ones(2, 12)).pow(2).sum()).backward()
    scaler.step(optim)
    scaler.update()
    assert algorithm.step == 1
    assert_enforced(algorithm, optim)
    assert all(p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("clone", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_stay_sparse_and_go_on_identically(name, clone):
    model, algorithm, optim = start(name)
    train(model, optim, 3)
    twin, twin_algorithm = clone((model, algorithm))
    assert_equal(snapshot(model), snapshot(twin))
    twin_optim = OPTIMIZERS["sgd"](twin.parameters())
    twin_algorithm.apply(twin_optim)
    twin_optim.load_state_dict(copy.deepcopy(optim.state_dict()))
    train(model, optim, 3, start=3)
    train(twin, twin_optim, 3, start=3)
    assert_equal(snapshot(model), snapshot(twin))
    assert algorithm.step == twin_algorithm.step == 6


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("stop", [3, 4, 5])
def test_a_resume_goes_on_identically_between_updates_too(name, stop):
    options = {"update": {"freq": 4}} if _is_dynamic(name) else {}
    model, algorithm, optim = start(name, optimizer="adamw", **options)
    train(model, optim, stop)
    saved = copy.deepcopy((model.state_dict(), algorithm.state_dict(), optim.state_dict()))
    twin, twin_algorithm, twin_optim = start(name, optimizer="adamw", **options)
    twin.load_state_dict(saved[0])
    twin_algorithm.load_state_dict(saved[1])
    twin_optim.load_state_dict(saved[2])
    train(model, optim, 6, start=stop)
    train(twin, twin_optim, 6, start=stop)
    assert_equal(snapshot(model), snapshot(twin))
    for mine, theirs in zip(*(o.state_dict()["state"].values() for o in (optim, twin_optim))):
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(torch.as_tensor(mine[k]), torch.as_tensor(theirs[k])) for k in mine)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_copied_model_alone_keeps_its_zeros(name):
    model, _, _ = start(name)
    twin = copy.deepcopy(model)
    optim = torch.optim.AdamW(twin.parameters(), 0.1)
    train(twin, optim, 3)
    for module in (twin[0], twin[2]):
        assert not module.weight.detach()[~module.weight_mask].any()
        assert module.weight.detach()[module.weight_mask].any()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_two_forwards_before_one_backward(name):
    model, algorithm, optim = start(name)
    for _ in range(4):
        optim.zero_grad()
        (model(torch.ones(2, 12)) - model(torch.zeros(2, 12)) - 1).pow(2).sum().backward()
        optim.step()
        assert_enforced(algorithm, optim)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_metrics_are_plain_numbers_and_true(name):
    model, algorithm, optim = start(name)
    train(model, optim, 4)
    metrics = algorithm.metrics()
    assert json.loads(json.dumps(metrics)) == metrics
    for sparse_name, values in metrics["tensors"].items():
        sparse = algorithm.sparse_params[sparse_name]
        assert values["sparsity"] == pytest.approx(1 - sparse.mask.float().mean().item())
        assert 0 <= values["churn"] <= 1 and values["itop"] >= 1 - values["sparsity"] - 1e-9
