"""Each algorithm against a hand-made truth."""

import copy
import math

import pytest
import torch
from torch import nn

import sparse_lib as sl
from sparse_lib.algorithms.snfs import allot
from tests.cases import (
    assert_equal,
    descend,
    driven,
    fit,
    make_model,
    messages,
    row,
    snapshot,
    train,
)

WEIGHTS = 0.0, 3.0, -1.0, 0.0, 2.0, -4.0, 0.0, 0.0
GRADIENT = torch.tensor([[5.0, 9.0, 8.0, -7.0, 0.0, 0.0, 6.0, math.nan]])


def one_update(algorithm, lr=0.0):
    """A row after an update, and the places of its mask."""
    model = row(*WEIGHTS)
    optimizer = driven(algorithm, model, lr=lr)
    model.weight.grad = GRADIENT.clone()
    optimizer.step()
    return model, model.weight_mask.nonzero()[:, 1].tolist()


@pytest.mark.parametrize("skips", [False, True])
def test_rigl_drops_the_smallest_and_grows_by_dense_gradient(skips):
    """Where the weight update of such a step is skipped, as in the paper, no rate matters."""
    options = {"update": 1, "drop_fraction": 0.5, "init_method": "from_zeros"}
    algorithm = sl.RigL(0.5, skip_update_on_mask_steps=skips, **options)
    model, places = one_update(algorithm, lr=float(skips))
    assert places == [1, 2, 3, 5]  # 2 was dropped and regrew; NaN never
    assert model.weight.tolist() == [[0, 3, -1, 0, 0, -4, 0, 0]]
    assert model.weight.grad is not None


@pytest.mark.parametrize(
    ("name", "scale", "value"),
    [("gradient", 1.0, 7.0), ("gradient", 0.5, 3.5), ("gradient_sign", 1.0, 1.0)],
)
def test_grown_weights_start_where_asked(name, scale, value):
    options = {"grown_init": name, "grown_init_scale": scale}
    algorithm = sl.RigL(0.5, 1, "from_zeros", drop_fraction=0.5, **options)
    assert one_update(algorithm)[0].weight.tolist() == [[0, 3, -1, value, 0, -4, 0, 0]]
    pruning = sl.GMP([0.5, 0.75], update=1, init_method="from_zeros")
    assert one_update(pruning)[1] == [1, 5]  # the largest


class Master(torch.optim.Optimizer):
    """SGD on float32 copies of weights of half precision."""

    @torch.no_grad()
    def step(self, closure=None):
        for param in self.param_groups[0]["params"]:
            state = self.state[param]
            master = state.setdefault("master", param.detach().float().clone())
            state.setdefault("momentum", torch.zeros_like(master)).add_(param.grad)
            master.sub_(0.1 * state["momentum"])
            param.copy_(master)


@pytest.mark.parametrize("name", ["normal", "gradient"])
def test_weights_grow_from_where_asked_in_the_copies_of_an_optimizer(name):
    model = nn.Linear(16, 16, bias=False, dtype=torch.bfloat16)
    optimizer = driven(sl.RigL(0.5, {"steps": [2]}, grown_init=name, seed=0), model, Master, {})
    first = model.weight_mask.clone()
    fit(model, optimizer, (torch.randn(8, 16, dtype=torch.bfloat16) for _ in range(2)))
    grown, start = model.weight_mask & ~first, model.weight.detach().clone()
    assert bool(start[grown].all()) and int(grown.sum()) > 10
    model.weight.grad = torch.zeros_like(model.weight)
    optimizer.step()
    assert torch.equal(model.weight[grown], start[grown])
    assert not optimizer.state[model.weight]["momentum"][grown].any()


@pytest.mark.parametrize("name", ["normal", "uniform"])
def test_redrawn_weights_keep_the_spread_that_the_tensor_began_with(name):
    def begin(std):
        torch.manual_seed(0)
        model = nn.Linear(100, 200, bias=False)
        nn.init.normal_(model.weight, std=std)
        algorithm = sl.SET(0.5, 1, drop_fraction=0.3, grown_init=name, seed=1)
        optimizer = driven(algorithm, model, torch.optim.SGD, 0.0)
        return model, algorithm, optimizer

    model, algorithm, optimizer = begin(0.5)
    for step in range(20):
        if step == 10:  # a resume in between draws with the first spread, too
            saved = copy.deepcopy((model.state_dict(), algorithm.state_dict()))
            model, algorithm, optimizer = begin(7.0)
            model.load_state_dict(saved[0])
            algorithm.load_state_dict(saved[1])
        descend(optimizer, model(torch.ones(1, 100)).sum())
    spread = model.weight[model.weight_mask].pow(2).mean().sqrt().item()
    # The smallest 30% give way to a fresh draw, so the rest drifts up, but not by 1.2 to the 20th.
    assert 0.5 < spread < 1.0
    assert algorithm.state_dict()["first_spreads"]["weight"] == pytest.approx(0.5, rel=0.03)


@pytest.mark.parametrize(
    ("settings", "shape", "message"),
    [
        ({"algorithm": "rigl", "balance_in_groups": 3}, (8, 8), "balance_in_groups=3 .* 8 inputs"),
        ({"type": "sideband", "out_groups": 3}, (8, 8), "out_groups=3 does not divide the 8 outp"),
        ({"algorithm": "set", "score_shaper": "2:4"}, (3, 6), "2:4 .* by 4, .*remainder.: .dense"),
    ],
)
def test_a_shape_that_has_no_groups_is_refused_with_key_and_parameter(settings, shape, message):
    for use in (lambda model, group: group.apply(model), sl.plan):
        model = nn.Sequential(nn.Linear(shape[1], shape[0]))
        with pytest.raises(ValueError, match=f"^parameter '0.weight': {message}"):
            use(model, sl.configure({"sparsity": 0.5, **settings}))
        assert not hasattr(model[0], "weight_mask")


@pytest.mark.parametrize(("key", "dim"), [("balance_out_groups", 0), ("balance_in_groups", 1)])
@pytest.mark.parametrize("layer", [nn.Linear(8, 8, bias=False), nn.Conv2d(8, 8, 3, bias=False)])
def test_balanced_groups_hold_at_the_start_and_at_updates(key, dim, layer):
    algorithm, model = sl.RigL(0.5, {"freq": 1}, **{key: 2}), copy.deepcopy(layer)
    optimizer = driven(algorithm, model)
    for step in range(3):
        before = model.weight_mask.clone()
        counts = [int(half.sum()) for half in model.weight_mask.chunk(2, dim)]
        assert counts == [model.weight.numel() // 4] * 2
        draw = torch.randn(model.weight.shape, generator=torch.Generator().manual_seed(step))
        descend(optimizer, (model.weight * draw).sum())
        assert not torch.equal(before, model.weight_mask)


def test_granet_is_rigl_with_a_schedule_or_prunes_over_all_tensors_and_regrows_each():
    results = []
    for cls in (sl.RigL, sl.GraNet):
        schedule, model = {"type": "linear", "init": 0.2, "slope": 0.05}, make_model()
        train(model, driven(cls(schedule, update=2, seed=1), model), 8)
        results.append(snapshot(model))
    assert_equal(*results)
    algorithm = sl.GraNet([0.0, 0.5], update=1, pruning="global", drop_fraction=0.5, seed=1)
    model = make_model()
    with torch.no_grad():
        model[0].weight.mul_(100)
    optimizer = driven(algorithm, model, torch.optim.SGD, 0.0)
    train(model, optimizer, 1)
    total = sum(int(s.mask.sum()) for s in algorithm.sparse_params.values())
    assert total == (192 + 16 + 96) // 2
    assert int(model[0].weight_mask.sum()) > 140  # its weights are the largest


def test_rigl_adds_up_micro_batches_and_forgets_them():
    algorithm = sl.RigL(0.5, update=2, seed=1)
    model = make_model()
    optimizer = driven(algorithm, model, torch.optim.SGD, 0.0)
    train(model, optimizer, 1)
    assert algorithm.needs_dense_gradient
    for clear in (True, False):  # a step that overflowed leaves its sum behind
        optimizer.zero_grad(set_to_none=clear)
        model(torch.full((1, 12), 9.0)).sum().backward()
    optimizer.zero_grad(set_to_none=False)
    for scale in (1.0, 2.0):
        (scale * model(torch.ones(1, 12)).sum()).backward()
    kept = {name: value.clone() for name, value in algorithm.dense_gradients.kept.items()}
    expected = torch.autograd.grad(3 * model(torch.ones(1, 12)).sum(), model[0].weight)[0]
    torch.testing.assert_close(kept["0.weight"], expected)
    optimizer.step()
    assert not algorithm.dense_gradients.kept


@pytest.mark.parametrize("clears", [True, False])
def test_an_update_without_a_backward_pass_since_the_last_step_is_told(clears):
    model = make_model()
    algorithm = sl.RigL(0.5, update=2, seed=1)
    optimizer = driven(algorithm, model)
    descend(optimizer, model(torch.randn(4, 12)).pow(2).sum())
    if clears:
        optimizer.zero_grad()
    before = {name: sparse.mask.clone() for name, sparse in algorithm.sparse_params.items()}
    with pytest.warns(UserWarning, match="due at step 2, but no backward pass came since"):
        optimizer.step()
    for name, sparse in algorithm.sparse_params.items():
        assert torch.equal(sparse.mask, before[name])
    assert messages(train, model, optimizer, 2) == []


@pytest.mark.parametrize("to_none", [True, False])
def test_a_layer_that_a_step_does_not_use_keeps_its_mask_however_gradients_are_cleared(to_none):
    model = make_model()
    algorithm = sl.RigL(0.5, update=2, seed=1)
    optimizer = driven(algorithm, model)
    train(model, optimizer, 1)
    first, second = model[0].weight_mask.clone(), model[2].weight_mask.clone()
    optimizer.zero_grad(set_to_none=to_none)
    model[0](torch.randn(4, 12)).pow(2).sum().backward()
    optimizer.step()
    assert torch.equal(second, model[2].weight_mask)
    assert not torch.equal(first, model[0].weight_mask)


@pytest.mark.parametrize("base", [sl.SET, sl.RigL, sl.GraNet])
def test_a_grow_score_of_ones_own_decides_what_grows(base):
    class LastFirst(base):
        in_registry = False

        def grow_score(self, p):
            return torch.arange(p.numel(), dtype=p.dtype).view_as(p)

    model = nn.Linear(8, 8, bias=False)
    algorithm = LastFirst(0.75, update=1, drop_fraction=1.0, seed=0)
    _optimizer = driven(algorithm, model, lr=0.0)
    model(torch.ones(2, 8)).sum().backward()
    algorithm.update()
    kept = algorithm.sparse_params["weight"].mask.flatten().nonzero()[:, 0].tolist()
    assert kept == list(range(48, 64))


@pytest.mark.parametrize(
    "algorithm",
    [
        sl.GMP(0.75, update=1, init_method="from_zeros"),
        sl.SET(0.75, update=1, init_method="from_zeros", drop_fraction=0.5, seed=0),
        sl.RigL(0.5, update=1, init_method="from_zeros", drop_fraction=0.5),
        sl.GraNet(0.5, update=1, init_method="from_zeros", pruning="global", drop_fraction=0.5),
    ],
    ids=lambda algorithm: type(algorithm).__name__,
)
@pytest.mark.parametrize("places", [(2,), (1, 2, 4, 5)])
def test_a_weight_that_became_nan_stays_and_shows(algorithm, places):
    model, algorithm = row(*WEIGHTS), copy.deepcopy(algorithm)
    optimizer = driven(algorithm, model, lr=1.0)
    model.weight.grad = torch.zeros(1, 8)
    model.weight.grad[0, list(places)] = math.nan
    optimizer.step()
    assert model.weight.isnan().any() and model(torch.ones(1, 8)).isnan()
    assert int(model.weight_mask.sum()) == (2 if isinstance(algorithm, sl.GMP | sl.SET) else 4)


def step(model, optimizer, gradient):
    """A step whose dense gradient is given."""
    descend(optimizer, model(torch.tensor([gradient])).sum())


def present(layer) -> list[int]:
    return layer.weight_mask[0].nonzero().flatten().tolist()


def test_snfs_grows_by_the_momentum_of_all_steps_at_the_cost_of_dense_gradients():
    model = row(1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    algorithm = sl.SNFS(0.5, {"freq": 2}, lambda p, s: p > 3, drop_fraction=1 / 3, momentum=0.75)
    optimizer = driven(algorithm, model, lr=0.0)
    step(model, optimizer, [0.0, 8.0, 0.0, 0.0, 0.0, 0.0])
    # 0.25 * 8 = 2 after one step and 1.5 after two, against 0.25 * 3; RigL would take column 0.
    step(model, optimizer, [3.0, 0.0, 1.0, 0.0, 0.0, 0.0])
    assert algorithm.momentum_of(model.weight)[0].tolist() == [0.75, 1.5, 0.25, 0.0, 0.0, 0.0]
    assert present(model) == [1, 4, 5]  # column 3, the smallest present weight, is dropped
    model = nn.Linear(10, 10, bias=False)
    algorithm = sl.SNFS(0.8, {"freq": 3}, seed=0)
    optimizer = driven(algorithm, model, lr=0.0)
    flops = sl.count_flops(model, batch_size=4)
    for _ in range(5):
        step(model, optimizer, [1.0] * 10)
    dense = flops.forward()
    sparse = flops.forward({"weight": 0.8})
    assert algorithm.metrics(flops)["flops"]["run"] == 5 * (2 * sparse + dense)


def test_snfs_redistributes_to_the_tensor_of_the_larger_mean_momentum():
    model = nn.Sequential(row(1.0, 2.0, 3.0, 4.0), nn.Linear(1, 4, bias=False))
    model[1].weight.data = model[0].weight.detach().T.clone()
    options = {"drop_fraction": 0.5, "momentum": 0.0, "redistribution": "momentum"}
    algorithm = sl.SNFS(0.5, {"freq": 1}, lambda p, s: p > 2, **options)
    optimizer = driven(algorithm, model, lr=0.0)
    first, second = model[0].weight, model[1].weight
    first.grad = torch.tensor([[1.0, 2.0, 9.0, 9.0]])  # mean of the present ones: 9
    second.grad = torch.ones(4, 1)  # 1
    optimizer.step()
    # Each drops one of two; the two grow 9 to 1, both in the first: its columns 1 and 2 win.
    assert model[0].weight_mask.tolist() == [[False, True, True, True]]
    assert model[1].weight_mask.flatten().tolist() == [False, False, False, True]


@pytest.mark.parametrize(
    ("total", "strength", "room", "shares"),
    [
        (3, [2.0, 1.0], [9, 9], [2, 1]),
        (4, [1.0, 1.0, 1.0], [9, 9, 9], [2, 1, 1]),  # the first of equal remainders
        (5, [0.0, 0.0], [9, 9], [3, 2]),
        (5, [9.0, 1.0], [2, 9], [2, 3]),
        (5, [1.0, 0.0], [2, 3], [2, 3]),  # no strength, but room
        (0, [1.0], [3], [0]),
    ],
)
def test_allot_by_hand(total, strength, room, shares):
    names = "abc"[: len(room)]
    by_name = [dict(zip(names, values, strict=True)) for values in (strength, room, shares)]
    assert allot(total, *by_name[:2]) == by_name[2]


def test_saliency_keeps_the_largest_products_of_weight_and_gradient():
    model = row(1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    algorithm = sl.SaliencyPruning([0.0, 0.5, 0.5], {"freq": 1}, "topk")
    optimizer = driven(algorithm, model, lr=0.0)
    step(model, optimizer, [9.0, 3.0, 0.0, 1.0, -2.0, 0.5])  # 9, 6, 0, 4, 10, 3
    assert present(model) == [0, 1, 4]
    step(model, optimizer, [1.0, 1.0, 99.0, 99.0, 1.0, 99.0])
    assert present(model) == [0, 1, 4]  # absent positions do not come back
    model = row(1.0, 2.0)
    algorithm = sl.SaliencyPruning(0.5)
    algorithm.apply(model)
    with pytest.raises(RuntimeError, match="no gradient of 'weight'"):
        algorithm.update()


def test_random_pruning_removes_alone_and_every_weight_as_likely():
    counts = torch.zeros(8)
    for seed in range(400):
        model = row(*range(1, 9))
        algorithm = sl.RandomPruning([0.0, 0.25, 0.5], {"freq": 1}, "topk", seed=seed)
        optimizer = driven(algorithm, model, lr=0.0)
        step(model, optimizer, [1.0] * 8)
        first = set(present(model))
        step(model, optimizer, [1.0] * 8)
        second = present(model)
        assert len(first) == 6 and len(second) == 4 and set(second) <= first
        counts[second] += 1
    # Each stays in half of the draws: 200 with a standard deviation of 10.
    assert ((counts - 200).abs() < 45).all()
