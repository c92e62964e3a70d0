"""The reference library's behaviour, row by row: tests are named by the rows' ids.

A row is one purpose of the Cerebras library's algorithm API (A, L, U, H, I, T, Y, K), of its older
optimizer-style API (O) and sideband YAML (D), or a wish of its documents (E).
"""

import math

import pytest
import torch
from torch import nn

import sparse_lib as sl
from sparse_lib.checkpoint import export_nan, load_checkpoint
from sparse_lib.compat.wrapper import (
    BaseHyperParameter,
    RigLSparsityOptimizer,
    StaticSparsityOptimizer,
    configure_sparsity_optimizer,
    configure_sparsity_wrapper,
)
from sparse_lib.schedules.updates import make_update_schedule
from sparse_lib.schedules.values import make_hyperparameter_schedule
from tests.sparse_lib.algorithm_cases import (
    assert_enforced,
    assert_equal,
    make_model,
    snapshot,
    train,
)


def fit(algorithm, num_steps=4, optimizer=None, after=None):
    """A small model that an algorithm was applied to, and trained."""
    model = make_model()
    algorithm.apply(model)
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    algorithm.apply(optimizer)
    train(model, optimizer, num_steps, after=after)
    return model, optimizer


def kept(algorithm):
    return {name: int(s.mask.sum()) for name, s in algorithm.sparse_params.items()}


# 2.1 Algorithms


def test_A1_only_update_is_abstract_and_sparsity_takes_every_form():
    class Frozen(sl.SparsityAlgorithm):
        def update(self, optimizer):
            self.seen = optimizer

    for spec in (0.5, {"type": "constant", "value": 0.5}, sl.schedules.Constant(0.5)):
        algorithm = Frozen(sparsity=spec)
        _, optimizer = fit(algorithm, 1)
        assert algorithm.seen is optimizer
        assert kept(algorithm)["0.weight"] == 96
    by_name = Frozen(sparsity={"0.weight": 0.25, "*": [0.5]}, init_method="topk")
    fit(by_name, 1)
    assert kept(by_name) == {"0.weight": 144, "0.bias": 8, "2.weight": 48}
    with pytest.raises(TypeError, match="abstract"):
        sl.SparsityAlgorithm(0.5)


@pytest.mark.parametrize("spec", [0, 0.5, 1, {"type": "constant", "value": 0.5}])
def test_A2_static_takes_any_constant(spec):
    algorithm = sl.Static(sparsity=spec)
    model, _ = fit(algorithm)
    share = 0.5 if isinstance(spec, dict) else spec
    assert kept(algorithm)["0.weight"] == round(192 * (1 - share))
    assert int(model[0].weight.count_nonzero()) == round(192 * (1 - share))


def test_A3_dynamic_counts_steps_and_asks_for_masks_when_due():
    calls = []

    class Ask(sl.DynamicSparsityAlgorithm):
        def update_mask(self, p, mask, sparsity):
            calls.append((self.step, sparsity, torch.is_grad_enabled(), p.shape == mask.shape))
            return mask

    schedule = {"type": "linear", "init": 0.0, "slope": 0.125}
    fit(Ask(sparsity=schedule, update={"freq": 2}, init_method="topk"), 4)
    assert calls == [(2, 0.25, False, True)] * 3 + [(4, 0.5, False, True)] * 3


def test_A4_gmp_keeps_the_largest_at_the_scheduled_sparsity():
    algorithm = sl.GMP({"type": "linear", "init": 0.0, "slope": 0.25}, update={"freq": 1})
    counts = []
    model, _ = fit(algorithm, 3, after=lambda: counts.append(kept(algorithm)["0.weight"]))
    assert counts == [144, 96, 48]
    constant = sl.GMP(0.5, update={"freq": 1}, init_method="topk")
    model = make_model()
    constant.apply(model)
    with torch.no_grad():
        model[2].weight.copy_(torch.arange(96.0).view(6, 16) + 1)
    constant.sparse_params["2.weight"].mask = torch.ones(6, 16, dtype=torch.bool)
    constant.update()
    assert torch.equal(model[2].weight_mask.flatten(), torch.arange(96) >= 48)


def test_A5_set_drops_the_smallest_grows_zeros_and_has_its_own_seed():
    algorithm = sl.SET(0.5, update={"freq": 1}, drop_fraction=0.5, seed=3)
    model = make_model()
    algorithm.apply(model)
    before, weight = model[0].weight_mask.clone(), model[0].weight.detach().clone()
    state = torch.get_rng_state()
    algorithm.update()
    assert torch.equal(state, torch.get_rng_state())
    stays = before & model[0].weight_mask
    grown = model[0].weight_mask & ~before
    dropped = before & ~model[0].weight_mask
    assert int(model[0].weight_mask.sum()) == 96 and int(grown.sum()) == int(dropped.sum()) > 0
    assert not model[0].weight.detach()[grown].any()
    assert weight[dropped].abs().max() <= weight[before].abs().median()
    assert torch.equal(weight[stays], model[0].weight.detach()[stays])


def test_A6_rigl_grows_by_dense_gradient_and_balances_groups():
    algorithm = sl.RigL(0.5, {"freq": 1}, drop_fraction=0.4, balance_out_groups=4)
    model = nn.Linear(6, 8, bias=False)
    algorithm.apply(model)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    algorithm.apply(optimizer)
    before = model.weight_mask.clone()
    scale = torch.arange(48.0).view(8, 6) + 1
    (torch.nn.functional.linear(torch.eye(6), model.weight).T * scale).sum().backward()
    optimizer.step()
    mask = model.weight_mask.view(4, 12)
    assert mask.sum(1).tolist() == [6, 6, 6, 6]
    old = before.view(4, 12)
    for group in range(4):
        grown, absent = mask[group] & ~old[group], ~mask[group]
        if grown.any() and absent.any():
            size = scale.view(4, 12)[group]
            assert size[grown].min() > size[absent & ~old[group]].max()
    fit(sl.RigL({"type": "linear", "init": 0.5, "slope": 0.1}, {"freq": 1}), 2)


def test_A7_group_filters_and_first_match():
    group = sl.Group({"0.*": sl.Static(0.25)})
    group.add(["2.*", "none"], sl.SET(0.5))
    group.extend(sl.Group([(lambda name, p: True, sl.Static(0.9))]))
    with pytest.warns(UserWarning, match="no parameter matches"):
        group.apply(make_model())
    assert kept(group) == {"0.weight": 144, "0.bias": 12, "2.weight": 48}
    assert isinstance(group[1], sl.SET) and len(group) == 3


def test_A8_any_class_in_the_process_is_found_by_name():
    class KeepRowsOfA8(sl.DynamicSparsityAlgorithm):
        def __init__(self, rows=1, **kwargs):
            super().__init__(**kwargs)
            self.rows = rows

        def update_mask(self, p, mask, sparsity):
            return torch.zeros_like(mask).index_fill_(0, torch.arange(self.rows), True)

    config = {"algorithm": "keeprowsofa8", "sparsity": 0.5, "rows": 2, "update": 1}
    algorithm = sl.configure(config)[0]
    model, _ = fit(algorithm, 1)
    assert model[0].weight_mask.sum(1).tolist() == [12] * 2 + [0] * 14


# 2.2 Life cycle and hooks


def test_L1_L2_apply_from_either_side():
    one, two = make_model(), make_model()
    first, second = sl.SET(0.5, 1, seed=1), sl.SET(0.5, 1, seed=1)
    one.apply(first)
    second.apply(two)
    opt_one = sl.optim.SGD(one.parameters(), 0.1, momentum=0.9)
    opt_one.apply(first)
    opt_two = torch.optim.SGD(two.parameters(), 0.1, momentum=0.9)
    second.apply(opt_two)
    train(one, opt_one, 3)
    train(two, opt_two, 3)
    assert_equal(snapshot(one), snapshot(two))


def test_L3_without_filters_every_parameter_is_sparse():
    model = nn.ModuleDict({"a": nn.Embedding(4, 5), "b": nn.LayerNorm(5), "c": nn.Linear(5, 2)})
    algorithm = sl.Static(0.5)
    algorithm.apply(model)
    assert set(kept(algorithm)) == {name for name, _ in model.named_parameters()}


def test_L4_D5_configure_leaves_out_embeddings_norms_heads_and_vectors():
    model = nn.ModuleDict(
        {
            "word_embeddings": nn.Embedding(4, 4),
            "embed_tokens": nn.Embedding(4, 4),
            "fc": nn.Linear(4, 4),
            "inner": nn.Linear(4, 4),
            "LayerNorm": nn.LayerNorm((4, 4)),
            "pe_helper": nn.Linear(4, 4),
            "lm_head": nn.Linear(4, 4),
        }
    )
    group = sl.configure(0.5)
    group.apply(model)
    assert set(kept(group)) == {"inner.weight"}


def test_L5_L6_what_requires_dense_stays_dense():
    model = make_model()
    model[0].weight.requires_dense = True
    model[2].requires_dense = True
    algorithm = sl.Static(0.5)
    algorithm.apply(model)
    assert set(kept(algorithm)) == {"0.bias"}
    model = make_model()
    algorithm = sl.Static(0.5)
    algorithm.apply(model)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    algorithm.apply(optimizer)
    train(model, optimizer, 1)
    state, off = optimizer.state[model[0].weight], ~model[0].weight_mask
    state["exp_avg"].fill_(1.0)
    state["exp_avg_sq"].fill_(1.0).requires_dense = True
    train(model, optimizer, 1)
    assert not state["exp_avg"][off].any() and state["exp_avg_sq"][off].all()


def test_L7_K1_masks_are_bool_buffers_beside_their_parameter():
    model, _ = fit(sl.Static(0.5), 1)
    state = model.state_dict()
    assert {n for n in state if n.endswith("_mask")} == {
        "0.weight_mask",
        "0.bias_mask",
        "2.weight_mask",
    }
    assert all(state[n].dtype == torch.bool for n in state if n.endswith("_mask"))
    assert model[0].weight_mask.shape == model[0].weight.shape


def test_L8_initialize_keeps_a_loaded_mask():
    model = make_model()
    mask = torch.zeros(16, 12, dtype=torch.bool)
    mask[0] = True
    model[0].register_buffer("weight_mask", mask.clone())
    algorithm = sl.Static(0.5)
    algorithm.apply(model)
    algorithm.initialize()
    assert torch.equal(model[0].weight_mask, mask)


def test_L9_L10_L11_L12_weights_gradients_and_states_stay_masked():
    algorithm = sl.SET(0.5, 1)
    model = make_model()
    algorithm.apply(model)
    off = ~model[0].weight_mask
    assert not model[0].weight.detach()[off].any()  # before any forward
    (model[0].weight * torch.where(off, math.nan, 1.0)).sum().backward()
    assert not model[0].weight.grad[off].any()
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    with pytest.raises(ValueError, match="before its optimizer"):
        sl.Static(0.5).apply(optimizer)
    algorithm.apply(optimizer)
    train(model, optimizer, 3, after=lambda: assert_enforced(algorithm, optimizer))
    assert algorithm.num_updates == 3


def test_L13_autoupdate_off_keeps_masks_and_masking():
    algorithm = sl.SET(0.5, 1)
    algorithm.autoupdate = False
    masks = []
    model, optimizer = fit(algorithm, 3, after=lambda: masks.append(kept(algorithm)))
    assert algorithm.num_updates == 0
    assert_enforced(algorithm, optimizer)
    before = model[0].weight_mask.clone()
    algorithm.update()
    assert not torch.equal(before, model[0].weight_mask)


def test_L14_one_optimizer_per_algorithm():
    algorithm = sl.Static(0.5)
    model, _ = fit(algorithm, 1)
    with pytest.raises(ValueError, match="another optimizer"):
        algorithm.apply(torch.optim.SGD(model.parameters(), 0.1))


def test_L15_a_parameter_without_a_gradient_keeps_its_mask():
    algorithm = sl.SET(0.5, 1)
    model = make_model()
    algorithm.apply(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    algorithm.apply(optimizer)
    before = model[2].weight_mask.clone()
    model[0](torch.ones(1, 12)).sum().backward()
    optimizer.step()
    assert torch.equal(before, model[2].weight_mask)


def test_L16_L17_L22_hooks_log_targets_and_actual_levels():
    group = sl.Group({"*.weight": sl.SET(0.5, 1), "*": sl.Static(0.25)})
    log = {}
    handles = group.register_target_sparsity_hook(
        lambda algorithm, name, target: log.__setitem__(f"sparsity/{name}/target", target)
    )
    group.register_computed_sparsity_hook(
        lambda algorithm, name, level: log.__setitem__(f"sparsity/{name}/actual", level)
    )
    fit(group, 1)
    assert isinstance(handles, list) and len(handles) == 2
    assert log["sparsity/0.weight/actual"] == 0.5 and log["sparsity/0.bias/actual"] == 0.25
    assert {n for n in log if n.endswith("target")} == {
        "sparsity/*/target",
        "sparsity/0.bias*/target",
    }
    assert log["sparsity/0.bias*/target"] == 0.25


def test_L18_sparse_parameters_by_tensor_module_optimizer_and_name():
    algorithm = sl.Static(0.5)
    model, optimizer = fit(algorithm, 1)
    sparse = algorithm.get_sparse_params(model[0].weight)
    assert sparse is algorithm.sparse_params["0.weight"]
    assert (sparse.name, sparse.module, sparse.param) == ("0.weight", model[0], model[0].weight)
    assert torch.equal(sparse.data, model[0].weight.detach())
    assert [s.name for s in algorithm.get_sparse_params(model[0])] == ["0.weight", "0.bias"]
    assert len(algorithm.get_sparse_params(optimizer)) == algorithm.num_sparse_params == 3
    sparse.mask = torch.zeros_like(sparse.mask)
    assert not model[0].weight.any() and not model[0].weight_mask.any()


def test_L20_schedules_by_parameter():
    algorithm = sl.SET({"0.*": 0.25, "*": 0.5}, 1)
    model, _ = fit(algorithm, 1)
    assert algorithm.sparsity[model[0].weight](0) == 0.25
    algorithm.sparsity = {model[0].weight: 0.75, "*": 0.5}
    algorithm.update()
    assert kept(algorithm)["0.weight"] == 48


@pytest.mark.parametrize(
    ("spec", "bounds"),
    [
        (0.3, (0.3, 0.3, 0.3)),
        ({"type": "linear", "init": 0.1, "slope": 0.01}, (0.1, 0.2, 0.2)),
        ({"type": "cosine", "init": 0.4, "half_period": 5}, (0.0, 0.4, 0.0)),
        ([0.1, 0.3, 0.2], (0.1, 0.3, 0.2)),
    ],
)
def test_L21_hints_of_smallest_largest_and_last(spec, bounds):
    schedule = make_hyperparameter_schedule(spec)
    assert schedule.get_min_max_end(0, 10) == pytest.approx(bounds)


# 2.3 and 2.4 Order of events, update schedules


def test_order_of_events_optimizer_step_n_is_schedule_step_n():
    seen = []

    class Watch(sl.DynamicSparsityAlgorithm):
        def update_mask(self, p, mask, sparsity):
            seen.append((self.step, float(p.detach().sum()), sparsity))
            return mask

    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 1.0)
    algorithm = Watch(sparsity=lambda step: step / 100, update=1)
    algorithm.apply(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    algorithm.apply(optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        model.weight.sum().backward()
        optimizer.step()
    assert seen == [(1, 0.5, 0.01), (2, 0.0, 0.02)]  # from the updated weights


@pytest.mark.parametrize(
    ("spec", "steps"),
    [
        (None, [0, 1, 2, 3, 4, 5, 6, 7, 8]),  # U1
        ({"freq": 3}, [0, 3, 6]),  # U2
        ({"freq": 3, "start": 1, "stop": 7}, [1, 4]),  # U2: stop is exclusive
        ({"start": 7}, [7, 8]),
        (4, [0, 4, 8]),
        ({"steps": [5, 2]}, [2, 5]),  # U3
        (sl.schedules.ListSchedule([1]), [1]),  # U4
        (lambda step: step % 5 == 1, [1, 6]),  # U4, a crash there
    ],
)
def test_U1_U2_U3_U4_update_schedules(spec, steps):
    schedule = make_update_schedule(spec)
    assert [t for t in range(9) if schedule.is_update_step(t)] == steps


def test_U5_U6_a_late_start_keeps_the_init_method_and_the_target():
    algorithm = sl.RigL(0.9, {"freq": 1, "start": 3})
    counts = []
    model = make_model()
    algorithm.apply(model)
    counts.append(kept(algorithm)["0.weight"])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    algorithm.apply(optimizer)
    train(model, optimizer, 4, after=lambda: counts.append(kept(algorithm)["0.weight"]))
    assert counts == [19] * 5


def test_U7_K4_a_step_that_overflows_changes_nothing():
    algorithm = sl.SET(0.5, 1)
    model = make_model()
    algorithm.apply(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    algorithm.apply(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    before = snapshot(model)
    scaler.scale(model(torch.full((1, 12), math.inf)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert algorithm.step == 0 and scaler.get_scale() == 2.0
    assert_equal(before, snapshot(model))


# 2.5 Hyperparameter schedules


@pytest.mark.parametrize(
    ("spec", "formula"),
    [
        (0.4, lambda t: 0.4),  # H1
        ({"type": "constant", "value": 0.4}, lambda t: 0.4),
        ({"type": "linear", "init": 0.1, "slope": 0.02}, lambda t: 0.1 + 0.02 * t),  # H2
        (
            {"type": "exp", "init": 0.1, "gamma": -0.2},
            lambda t: 1 - 0.9 * math.exp(-0.2 * t),
        ),  # H3
        ({"type": "power", "init": 0.9, "beta": 0.8}, lambda t: 0.9 * 0.8**t),  # H4
        (
            {"type": "cosine", "init": 0.3, "half_period": 20, "minimum": 0.1},
            lambda t: 0.2 + 0.1 * math.cos(math.pi * t / 20),
        ),  # H5
        (lambda step: 0.01 * step, lambda t: 0.01 * t),  # H7
        (
            {"type": "polynomial", "init": 0.1, "final": 0.9, "start": 2, "stop": 12, "power": 2},
            lambda t: 0.9 - 0.8 * (1 - min(max((t - 2) / 10, 0), 1)) ** 2,
        ),
        (
            {
                "type": "cubic",
                "init_sparsity": 0.5,
                "end_sparsity": 0.8,
                "sparsity_start_step": 2,
                "sparsity_end_step": 15,
                "prune_every_k_steps": 3,
            },
            lambda t: 0.8 - 0.3 * (1 - min(max((t // 3 - 0) / 5, 0), 1)) ** 3,
        ),
    ],
)
def test_H1_H2_H3_H4_H5_H7_and_the_missing_polynomial(spec, formula):
    schedule = make_hyperparameter_schedule(spec)
    for step in range(20):
        assert schedule(step) == pytest.approx(formula(step), abs=1e-12)


def test_H6_a_list_moves_at_updates():
    algorithm = sl.GMP([0.25, 0.5, 0.75], update={"freq": 2}, init_method="topk")
    counts = []
    fit(algorithm, 6, after=lambda: counts.append(kept(algorithm)["0.weight"]))
    assert counts == [144, 96, 96, 48, 48, 48]


def test_H8_a_subclass_by_class_name():
    class HalfOfH8(sl.HyperParameterSchedule):
        def compute(self, step):
            return 0.5

    fit(sl.SET({"type": "halfofh8"}, 1), 1)
    assert make_hyperparameter_schedule({"type": "HalfOfH8"}).state_dict() == {}


# 2.6 Init methods


def test_I1_random_depends_on_seed_and_name_only():
    masks = []
    for extra in (0, 3):
        torch.manual_seed(5)
        torch.rand(extra)
        model = nn.Sequential(nn.Linear(12, 16), *[nn.Linear(16, 16) for _ in range(extra)])
        sl.Static(0.5).apply(model)
        masks.append(model[0].weight_mask)
    assert torch.equal(*masks)
    other = nn.Sequential(nn.Linear(12, 16))
    sl.Static(0.5, seed=6).apply(other)
    assert not torch.equal(masks[0], other[0].weight_mask)


def test_I2_I3_I4_by_hand():
    weight = nn.Parameter(torch.tensor([[0.0, -4.0, 1.0, 0.0], [3.0, 0.0, -2.0, 0.5]]))
    table = {
        "topk": [[0, 1, 0, 0], [1, 0, 1, 1]],
        "from_zeros": [[0, 1, 1, 0], [1, 0, 1, 1]],
        "checkerboard": [[0, 1, 0, 1], [1, 0, 1, 0]],
    }
    weight.data[1, 3], weight.data[0, 2] = 1.5, 1.0
    for name, mask in table.items():
        model = nn.Linear(4, 2, bias=False)
        model.weight = nn.Parameter(weight.detach().clone())
        sl.Static(0.5, init_method=name).apply(model)
        assert model.weight_mask.int().tolist() == mask, name


def test_I5_functions_need_no_annotations():
    def first_rows(param, sparsity):
        return torch.arange(param.shape[0]).view(-1, 1).expand(param.shape) < 2

    model = nn.Linear(4, 4, bias=False)
    sl.Static(0.5, init_method=first_rows).apply(model)
    assert model.weight_mask.sum(1).tolist() == [4, 4, 0, 0]


def test_I6_counts_are_exact():
    assert [sl.num_nonzero(0.8, n) for n in (10, 100, 1000)] == [2, 20, 200]
    assert [sl.num_nonzero(0.8, n, compat="cstorch-2.10") for n in (10, 100, 1000)] == [1, 19, 199]


# 2.7 Tensor helpers


def test_T1_T2_T3_T4_shapers_give_pools_and_undo():
    tensor = torch.arange(24.0).view(4, 6)
    for shaper, shape in (
        (sl.ScoreFlattener(), (24,)),
        (sl.OutputGroupScoreShaper(2), (2, 12)),
        (sl.InputGroupScoreShaper(3), (3, 8)),
    ):
        pools, undo = shaper(tensor)
        assert tuple(pools.shape) == shape
        assert torch.equal(undo(pools), tensor)
    pools, _ = sl.InputGroupScoreShaper(3)(tensor)
    assert sorted(pools[0].tolist()) == [0, 1, 6, 7, 12, 13, 18, 19]
    with pytest.raises(TypeError, match="abstract"):
        sl.ScoreShaper()


@pytest.mark.parametrize("key", ["balance_out_groups", "balance_in_groups"])
def test_T5_balance_holds_at_init_and_at_updates(key):
    algorithm = sl.RigL(0.5, {"freq": 1}, **{key: 2})
    model = nn.Linear(8, 8, bias=False)
    algorithm.apply(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    algorithm.apply(optimizer)
    for _ in range(3):
        halves = model.weight_mask.chunk(2, 0 if key == "balance_out_groups" else 1)
        assert [int(half.sum()) for half in halves] == [16, 16]
        model(torch.randn(3, 8, generator=torch.Generator().manual_seed(0))).sum().backward()
        optimizer.step()


def test_T6_T7_T8_mask_makers_by_hand():
    score = torch.tensor([5.0, 1.0, 4.0, 2.0, 3.0, 0.0])
    top = sl.make_mask_topk_sparsity(score, 0.5)
    assert top.tolist() == [True, False, True, False, True, False]
    smaller, count = sl.make_mask_drop_minimum(score, top, 1 / 3)
    assert (smaller.tolist(), count) == ([True, False, True, False, False, False], 2)
    grown = sl.make_mask_grow_maximum(-score, smaller, 0.5, mask_nonzero=count)
    assert grown.tolist() == [True, False, True, False, False, True]
    assert torch.equal(sl.make_mask_grow_maximum(score, top, 0.9), top)


def test_T9_ties_are_broken_by_index_or_at_random():
    score = torch.zeros(100)
    assert sl.make_mask_topk_sparsity(score, 0.9).nonzero().flatten().tolist() == list(range(10))
    draws = [
        sl.make_mask_topk_sparsity(
            score, 0.9, tie_breaker="random", generator=torch.Generator().manual_seed(seed)
        )
        for seed in (1, 1, 2)
    ]
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])
    assert [int(mask.sum()) for mask in draws] == [10] * 3
    model = make_model()
    old = {"type": "gmp", "sparsity": [0.5], "schedule": 1, "tiebreak": {"type": "random"}}
    group = sl.configure(old)
    nn.init.ones_(model[0].weight)
    group.apply(model)
    group.update()
    assert int(model[0].weight_mask.sum()) == 96


# 2.8 configure and YAML


def test_Y1_Y3_Y4_numbers_lists_and_nesting():
    for config in (
        0.25,
        {"sparsity": 0.25},
        {"groups": [{"param_filter": "*"}], "params": {"sparsity": 0.25}},
        [{"sparsity": 0.25, "param_filter": "0.*"}, {"sparsity": 0.25}],
    ):
        group = sl.configure(config)
        assert isinstance(group, sl.Group)
        group.apply(make_model())
        assert kept(group)["0.weight"] == 144
    first = sl.configure(
        [{"sparsity": 0.25, "param_filter": "0*"}, {"sparsity": 0.5, "param_filter": "*"}]
    )
    first.apply(make_model())
    assert kept(first) == {"0.weight": 144, "0.bias": 12, "2.weight": 48}


def test_Y2_every_key_of_a_dict():
    config = {
        "algorithm": "RigL",
        "schedule": {"type": "linear", "init": 0.5, "slope": 0.01},
        "init_method": "topk",
        "update": {"freq": 10, "stop": 75},
        "drop_fraction": {"type": "cosine", "init": 0.3, "half_period": 75},
        "balance_out_groups": 2,
        "param_filter": ["0.weight", "2.*"],
    }
    group = sl.configure(config)
    assert isinstance(group, sl.Group) and isinstance(group[0], sl.RigL)
    group.apply(make_model())
    assert kept(group) == {"0.weight": 96, "2.weight": 48}
    assert group[0].drop_fraction == 0.3 and group[0].update_schedule.stop == 75


def test_Y5_globs_match_dots():
    model = nn.ModuleDict({"layers": nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))})
    group = sl.configure({"sparsity": 0.5, "param_filter": "layers*weight"})
    group.apply(model)
    assert set(kept(group)) == {"layers.0.weight", "layers.1.weight"}


@pytest.mark.parametrize("algorithm", ["static", "set", "rigl"])
def test_Y6_E4_a_trainers_settings_in_the_shape_of_the_shipped_recipes(algorithm):
    sparsity = {"algorithm": algorithm, "sparsity": 0.75}
    if algorithm != "static":
        sparsity["update"] = {"freq": 100, "stop": 7500}
        sparsity["drop_fraction"] = {"type": "cosine", "init": 0.5, "half_period": 7500}
    group = sl.configure({"trainer": {"init": {"sparsity": sparsity, "seed": 1}, "fit": {}}})
    assert type(group[0]).__name__.lower() == algorithm
    assert sl.configure({"trainer": {"init": {"model": {}}}}) is None  # dense fine-tuning
    if algorithm != "static":
        assert group[0].drop_schedule(7500) == 0 and not group[0].is_update_step(7500)


# 2.9 State and AMP


def test_K2_K3_states_resume_everything():
    def build():
        group = sl.configure(
            {
                "algorithm": "set",
                "sparsity": [0.3, 0.4, 0.5, 0.6],
                "update": 1,
                "drop_fraction": [0.5, 0.3, 0.1],
                "seed": 1,
            }
        )
        model = make_model()
        group.apply(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        group.apply(optimizer)
        return group, model, optimizer

    group, one, optimizer = build()
    train(one, optimizer, 2)
    saved, weights = group.state_dict(), snapshot(one)
    train(one, optimizer, 2, start=2)
    other, two, optimizer = build()
    two.load_state_dict(weights)
    other.load_state_dict(saved)
    train(two, optimizer, 2, start=2)
    assert_equal(snapshot(one), snapshot(two))
    other.load_state_dict([{"step": 7}])  # the reference's list of states
    assert other.step == 7


def test_K5_dense_gradients_are_summed_over_micro_batches():
    sums = []

    class Seen(sl.RigL):
        def grow_score(self, p):
            sums.append(self.dense_gradient(p).clone())
            return super().grow_score(p)

    model = nn.Linear(4, 4, bias=False)
    algorithm = Seen(0.5, {"freq": 1})
    algorithm.apply(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    algorithm.apply(optimizer)
    batches = [torch.eye(4)[:2], torch.eye(4)[1:]]
    for batch in batches:
        model(batch).sum().backward()
    optimizer.step()
    assert torch.equal(sums[0], torch.tensor([1.0, 2.0, 1.0, 1.0]).expand(4, 4))


# 3.1 Optimizer style


def test_O1_the_wrapper_is_a_drop_in():
    model = make_model()
    inner = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    optimizer = configure_sparsity_wrapper(
        model, inner, "set", param_name_patterns="^0", schedule=2, sparsity=0.5
    )
    train(model, optimizer, 2)
    assert set(optimizer.state[model[0].weight]) == {"momentum_buffer", "mask"}
    assert optimizer.sparsity[0].num_updates == 1 and not hasattr(model[2], "weight_mask")
    optimizer.zero_grad()
    assert model[0].weight.grad is None
    assert set(optimizer.state_dict()) == {"state", "param_groups", "sparsity"}


@pytest.mark.parametrize("name", ["static", "gmp", "set", "rigl"])
def test_O2_O4_sparsity_optimizers_by_name(name):
    model = make_model()
    sparsity = configure_sparsity_optimizer(
        name, model.named_parameters(), sparsity=[0.5] if name == "gmp" else 0.5
    )
    assert type(sparsity).__name__.lower() == f"{name}sparsityoptimizer"
    sparsity.hook_module(model)
    sparsity.apply_sparsity()
    train(model, torch.optim.SGD(model.parameters(), 0.1), 2, after=sparsity.step)
    assert kept(sparsity.sparsity) == {"0.weight": 96, "2.weight": 48}
    assert_enforced(sparsity.sparsity)


def test_O3_a_base_with_groups_hooks_and_state():
    class Own(sl.BaseSparsityOptimizer):
        def _get_target_sparsity_level_of_group(self, group):
            return group["level"]

        def step(self, closure=None):
            pass

    model = make_model()
    groups = [
        {"params": [("0.weight", model[0].weight)], "level": 0.25},
        {"params": [("2.weight", model[2].weight)]},
    ]
    sparsity = Own(groups, init_method="topk", defaults={"level": 0.5})
    with pytest.raises(RuntimeError, match="apply_sparsity"):
        sparsity.step()
    sparsity.initialize_sparsity()
    sparsity.hook_module(model)
    sparsity.apply_sparsity()
    assert [int(sparsity.state[g["params"][0]]["mask"].sum()) for g in groups] == [144, 48]
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    sparsity.manage_optimizer_state_sparsity(optimizer, ["exp_avg", "exp_avg_sq"])
    train(model, optimizer, 2)
    assert_enforced(sparsity.sparsity, optimizer)
    shapes = []
    sparsity.visit_state(lambda tensor: shapes.append(tuple(tensor.shape)))
    assert shapes == [(16, 12), (6, 16)]


@pytest.mark.parametrize(
    ("schedule", "steps"),
    [
        (3, [0, 3, 6]),
        ([2, 5], [2, 5]),
        ({"start": 1, "freq": 4, "stop": 9}, [1, 5]),
        ({"start": 2}, [2]),
        ({"type": "periodic", "freq": 5}, [0, 5]),
        (lambda step: step == 4, [4]),
    ],
)
def test_O5_schedule_is_when_to_update(schedule, steps):
    algorithm = RigLSparsityOptimizer(make_model(), sparsity=0.5, schedule=schedule).sparsity[0]
    assert [t for t in range(9) if algorithm.is_update_step(t)] == steps
    pairs = [[2, 0.3], [5, 0.6]]
    gmp = configure_sparsity_optimizer("gmp", make_model(), sparsity_schedule=pairs).sparsity[0]
    assert [t for t in range(9) if gmp.is_update_step(t)] == [2, 5]
    assert not RigLSparsityOptimizer(make_model(), sparsity=0.5).sparsity[0].is_update_step(999)


def test_O6_hyperparameters_by_type_with_state_and_bounds():
    class Ratchet(BaseHyperParameter):
        TYPE = "ratchet_of_o6"
        __state_slots__ = ("level",)

        def __init__(self, start):
            self.level = torch.tensor(start)

        def __call__(self, step: torch.Tensor, is_update_step: torch.Tensor):
            self.level += 0.125 * is_update_step
            return self.level

        def get_min_max_end(self, begin, end):
            return 0.5, 1.0, 1.0

    algorithm = sl.SET({"type": "ratchet_of_o6", "start": 0.5}, update=2)
    counts = []
    fit(algorithm, 4, after=lambda: counts.append(kept(algorithm)["0.weight"]))
    assert counts == [72, 48, 48, 24]
    state = algorithm.state_dict()["sparsity"]
    assert float(state[0]["level"]) == 0.875
    again = make_hyperparameter_schedule({"type": "ratchet", "start": 0.0})
    again.load_state_dict(state[0])
    assert float(again(9, False)) == 0.875
    assert again.get_min_max_end(0, 9) == (0.5, 1.0, 1.0)
    for name in ("Constant", "Linear", "Exp", "Power", "Cosine", "Cycling", "Lambda"):
        assert issubclass(getattr(sl.schedules, name), BaseHyperParameter)
        assert getattr(sl.schedules, name).TYPE == name.lower()


def test_O7_state_by_names():
    sparsity = StaticSparsityOptimizer(make_model(), sparsity=0.5)
    sparsity.apply_sparsity()
    state = sparsity.state_dict()
    assert list(state["state"]) == state["param_groups"][0]["params"]
    assert state["state"]["0.weight"]["mask"].dtype == torch.bool
    other = StaticSparsityOptimizer(make_model(seed=9), sparsity=0.5, init_method="topk")
    other.apply_sparsity()
    other.load_state_dict(state)
    assert torch.equal(
        other.state_dict()["state"]["0.weight"]["mask"], state["state"]["0.weight"]["mask"]
    )
    model = make_model(seed=9)  # and a checkpoint with it loads without any optimizer
    masks = load_checkpoint(model, {"model": snapshot(model), "optimizer": {"sparsity": state}})
    assert set(masks) == {"0.weight", "0.bias", "2.weight"}


def test_O8_patterns_are_searched_and_a_dict_is_a_group_each():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    patterns = {r"0\.w": {"sparsity": 0.25}, "weight|bias": {}}
    wrapper = configure_sparsity_wrapper(model, optimizer, "static", patterns, sparsity=0.5)
    assert kept(wrapper.sparsity) == {"0.weight": 144, "0.bias": 8, "2.weight": 48}
    with pytest.raises(ValueError, match="matches no parameter"):
        configure_sparsity_wrapper(make_model(), optimizer, "static", "nothing", sparsity=0.5)


def test_O10_optimizers_name_their_sparse_states():
    optimizer = sl.optim.AdamW(make_model().parameters())
    assert optimizer.state_names_to_sparsify() == ["exp_avg", "exp_avg_sq"]


# 3.2 Sideband


def test_D1_D3_sideband_keys_and_seeds():
    config = {
        "type": "sideband",
        "sparsity": 0.5,
        "init_method": "random",
        "seed": 1234,
        "param_name_patterns": ["^0.*weight", "^2"],
        "dump_masks": False,
    }
    masks = []
    for seed in (1234, 1234, 7):
        model = make_model()
        group = sl.configure({"sparsity": {**config, "seed": seed}})
        group.apply(model)
        masks.append(model[0].weight_mask)
    assert kept(group) == {"0.weight": 96, "2.weight": 48}
    assert torch.equal(masks[0], masks[1]) and not torch.equal(masks[0], masks[2])
    for key in ("in_groups", "out_groups"):
        model = nn.ModuleDict({"x": nn.Linear(8, 8)})
        sl.configure({"type": "sideband", "sparsity": 0.5, key: 4}).apply(model)
        parts = model["x"].weight_mask.chunk(4, 0 if key == "out_groups" else 1)
        assert [int(part.sum()) for part in parts] == [8] * 4


def test_D2_count_is_that_of_sideband_but_for_exact_halves():
    for numel in range(1, 40):
        for percent in range(100):
            share = percent * numel / 100
            if share % 1 != 0.5 and numel - round(share) > 0:
                assert sl.num_nonzero(percent / 100, numel) == numel - round(share)


def test_D4_D6_nan_is_absent_when_saving_and_loading():
    model, _ = fit(sl.Static(0.5), 1)
    state = export_nan(model)
    assert int(state["0.weight"].isnan().sum()) == 96
    other = make_model(seed=4)
    algorithm = sl.Static(0.5)
    load_checkpoint(other, state)
    algorithm.apply(other)
    assert torch.equal(other[0].weight_mask, model[0].weight_mask)
    assert torch.equal(other[0].weight, model[0].weight)
    masks = sl.finalize(other)
    assert set(masks) == {"0.weight", "0.bias", "2.weight"} and not sl.is_sparse(other)
    optimizer = torch.optim.SGD(other.parameters(), 0.1)
    train(other, optimizer, 1)
    assert int(other[0].weight.count_nonzero()) > 96  # all further training is dense


# 3.3 What the documents ask for beyond an API


def test_E1_a_sparse_wide_layer_costs_what_the_dense_one_did():
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    replaced, config, report = sl.ift.transform(model, "factorized", 0.5)
    group = sl.configure(config | {"algorithm": "rigl", "update": {"freq": 100}})
    group.apply(replaced)
    assert kept(group)
    for layer in report.layers:
        assert layer.flops_after <= 1.02 * layer.flops_before
    assert sl.ift.wide_factor(0.99) == pytest.approx(10)  # "10x layer": 100 times the weights


def test_E2_the_other_members_exist():
    assert {"wide", "parallel", "factorized", "doped"} <= set(sl.ift.FAMILIES)


@pytest.mark.parametrize(
    "variant",
    [
        {"algorithm": "static", "init_method": "snip", "distribution": "snip"},
        {"algorithm": "set", "grown_init": "normal"},
        {"algorithm": "set", "grown_init": "uniform"},
        {"algorithm": "rigl", "grown_init": "gradient"},
        {"algorithm": "rigl", "grown_init": "gradient_sign", "grown_init_scale": 0.01},
        {"algorithm": "rigl", "skip_update_on_mask_steps": True},
        {"algorithm": "rigl", "reset_momentum": True},
        {"algorithm": "granet", "pruning": "tensor"},
        {"algorithm": "granet", "pruning": "global"},
        {"algorithm": "rigl", "distribution": {"type": "erk", "power_scale": 0.5}},
        {"algorithm": "rigl", "score_shaper": "2:4"},
        {"algorithm": "set", "score_shaper": {"type": "block", "block": [2, 4]}},
        {"algorithm": "gmp", "tie_breaker": "random"},
    ],
    ids=lambda variant: "-".join(map(str, variant.values())),
)
def test_each_papers_variant_is_one_line_of_config(variant):
    config = {"sparsity": 0.5, "param_filter": "*.weight", **variant}
    if variant["algorithm"] != "static":
        config["update"] = {"freq": 1}
    model, group = make_model(), sl.configure(config)
    if variant.get("init_method") == "snip":
        model(torch.ones(2, 12)).pow(2).sum().backward()
    group.apply(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    group.apply(optimizer)
    train(model, optimizer, 3)
    assert sum(kept(group).values()) == 144
    assert_enforced(group, optimizer)
    if variant.get("score_shaper") == "2:4":
        assert int(model[0].weight_mask.view(-1, 4).sum(1).max()) == 2
