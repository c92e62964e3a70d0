"""No config, however strange, gives a traceback without a sentence."""

import math
import warnings

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import nn

from sparse_lib.checks import SettingError
from sparse_lib.configure import configure
from sparse_lib.core.group import Group
from sparse_lib.core.registry import algorithm_classes, constructor_keys
from sparse_lib.masks.init import INIT_METHODS
from sparse_lib.preview import plan
from sparse_lib.schedules.values import HyperParameterSchedule

bounded = settings(
    deadline=None,
    derandomize=True,
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

BUILT_IN = ["static", "gmp", "set", "rigl", "granet", "sideband"]
KEYS = sorted(
    {"algorithm", "type", "schedule", "param_filter", "param_name_patterns", "sparsity_schedule"}
    | {"in_groups", "out_groups", "groups", "params", "trainer", "sparsity"}
    | {key for name in BUILT_IN[:-1] for key in constructor_keys(algorithm_classes()[name])}
)

wild_numbers = st.one_of(
    st.integers(-5, 5),
    st.sampled_from([10**30, -(10**30), 10**400, 1 << 64]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.floats(0, 1),
)
wild_scalars = st.one_of(
    st.none(),
    st.booleans(),
    wild_numbers,
    st.text(max_size=8),
    st.sampled_from(["0.5", "Ω*", "été", "fc*", "*", "(", "[", "random", "topk", "cosine"]),
)
json_values = st.recursive(
    wild_scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.sampled_from(KEYS), st.text(max_size=5)), inner, max_size=3),
    ),
    max_leaves=8,
)
schedules = st.one_of(
    st.fixed_dictionaries(
        {"type": st.sampled_from(sorted(HyperParameterSchedule.registry))},
        optional={
            key: st.one_of(wild_scalars, st.lists(wild_numbers, max_size=3))
            for key in (
                "value",
                "init",
                "slope",
                "gamma",
                "final",
                "beta",
                "power",
                "start",
                "stop",
                "half_period",
                "minimum",
                "values",
                "period",
                "init_sparsity",
                "end_sparsity",
                "sparsity_start_step",
                "sparsity_end_step",
                "prune_every_k_steps",
            )
        },
    ),
    st.lists(wild_numbers, max_size=3),
    st.dictionaries(st.sampled_from(["*", "lin*", "value", "", "init"]), wild_numbers, max_size=2),
    st.floats(0, 1),
    wild_scalars,
)
updates = st.one_of(
    st.fixed_dictionaries(
        {}, optional=dict.fromkeys(("freq", "start", "stop", "type", "frequency"), wild_scalars)
    ),
    st.fixed_dictionaries({"steps": st.lists(wild_numbers, max_size=3)}),
    st.lists(wild_numbers, max_size=3),
    wild_scalars,
)
patterns = st.one_of(
    wild_scalars,
    st.lists(st.text(max_size=5), max_size=2),
    st.dictionaries(st.text(max_size=5), st.fixed_dictionaries({"sparsity": wild_numbers})),
)
VALUES = {
    "algorithm": st.one_of(st.sampled_from(BUILT_IN), wild_scalars),
    "type": st.one_of(st.sampled_from(BUILT_IN), wild_scalars),
    "sparsity": schedules,
    "schedule": st.one_of(schedules, updates),
    "drop_fraction": schedules,
    "update": updates,
    "init_method": st.one_of(st.sampled_from(sorted(INIT_METHODS)), json_values),
    "distribution": st.one_of(st.sampled_from(["uniform", "er", "erk", "global"]), json_values),
    "param_filter": patterns,
    "param_name_patterns": patterns,
    "compat": st.one_of(st.just("cstorch-2.10"), wild_scalars),
    "balance_in_groups": wild_scalars,
    "balance_out_groups": wild_scalars,
    "score_shaper": st.one_of(st.sampled_from(["2:4", "block", "n:m", "0:1"]), json_values),
    "grown_init": st.one_of(st.sampled_from(["zeros", "normal", "gradient"]), wild_scalars),
}


def configs(keys):
    values = {key: VALUES.get(key, st.one_of(wild_scalars, json_values)) for key in keys}
    return st.lists(st.sampled_from(keys), max_size=4, unique=True).flatmap(
        lambda chosen: st.fixed_dictionaries({key: values[key] for key in chosen})
    )


leaf_configs = configs([key for key in KEYS if key not in ("groups", "params", "trainer")])
likely = st.one_of(
    leaf_configs,
    st.fixed_dictionaries(
        {"groups": st.one_of(st.lists(leaf_configs, max_size=2), wild_scalars)},
        optional={"params": st.one_of(leaf_configs, wild_scalars), "sparsity": schedules},
    ),
    st.fixed_dictionaries(
        {
            "trainer": st.one_of(
                json_values,
                st.fixed_dictionaries(
                    {"init": st.one_of(leaf_configs.map(lambda c: {"sparsity": c}), json_values)}
                ),
            )
        }
    ),
)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.conv = nn.Conv2d(1, 4, 3)
        self.lin = nn.Linear(4, 6)
        self.norm = nn.LayerNorm(6)
        self.été = nn.Linear(6, 2, bias=False)


def words_of(config):
    """Every key and value of a config, as a message may show them."""
    if isinstance(config, dict):
        return {w for k, v in config.items() for w in {str(k), repr(k), *words_of(v)}} | {
            repr(config)
        }
    if isinstance(config, (list, tuple)):
        return {w for v in config for w in words_of(v)} | {repr(config)}
    if isinstance(config, int) and abs(config) > 10**4000:
        return set()
    return {repr(config), str(config)}


def assert_one_sentence(error, config):
    assert type(error) is SettingError, repr(error)
    message = str(error)
    assert message.strip() and "\n" not in message.replace(repr(config), "")
    named = {*words_of(config), *KEYS}  # a key may also be missing
    assert any(word and word in message for word in named), message


def made(config):
    """The group of a config, or None where it is refused with a sentence."""
    try:
        group = configure(config)
    except Exception as error:
        assert_one_sentence(error, config)
        return None
    assert group is None or (isinstance(group, Group) and len(group) >= 1)
    return group


def assert_usable(group, config):
    """It masks a small model and trains it, or refuses with a sentence."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            group.apply(model)
            if not group.sparse_params:
                return
            group.apply(optimizer)
            for _ in range(2):
                hidden = model.lin(model.embed(torch.tensor([1, 2])))
                loss = (
                    model.été(model.norm(hidden)).sum() + model.conv(torch.ones(1, 1, 3, 3)).sum()
                )
                loss.backward()
                optimizer.step()
        except (ValueError, TypeError) as error:
            assert str(error).strip(), repr(config)
            return
    for sparse in group.sparse_params.values():
        assert not sparse.param.detach()[~sparse.mask].any()
        assert 0 <= sparse.target <= 1 and not math.isnan(sparse.target)


@bounded
@given(json_values)
def test_any_json_value(config):
    made(config)


@bounded
@given(st.one_of(likely, st.lists(likely, max_size=2), likely.map(lambda c: {"sparsity": c})))
def test_known_keys_with_wild_values(config):
    group = made(config)
    if group is not None:
        assert_usable(group, config)


@bounded
@given(
    st.sampled_from(BUILT_IN[:-1]),
    st.sampled_from(KEYS),
    st.data(),
)
def test_one_wild_value_in_a_good_config(algorithm, key, data):
    config = {"algorithm": algorithm, "sparsity": 0.5}
    config[key] = data.draw(VALUES.get(key, wild_scalars))
    group = made(config)
    if group is not None:
        assert_usable(group, config)


@settings(bounded, max_examples=40)
@given(st.sampled_from(BUILT_IN), st.floats(0, 1), st.sampled_from([None, "er", "erk", "global"]))
def test_good_configs_are_taken_and_planned(algorithm, sparsity, distribution):
    config = {"type": algorithm, "sparsity": sparsity, "distribution": distribution}
    if algorithm == "gmp":
        config["sparsity"] = [0.0, sparsity]
    group = configure(config)
    assert_usable(group, config)
    result = plan(Net(), config)
    assert {row["name"] for row in result.records() if row["algorithm"]} == {
        "conv.weight",
        "lin.weight",
        "été.weight",
    }


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"algorithm": "set", "sparsity": 0.5, "update": {"freq": -1}}, "freq"),
        ({"algorithm": "set", "sparsity": 0.5, "update": {"freq": True}}, "freq"),
        (
            {"algorithm": "set", "sparsity": 0.5, "update": {"freq": 1, "start": 9, "stop": 3}},
            "stop",
        ),
        ({"algorithm": "set", "sparsity": 0.5, "update": {"steps": []}}, "steps"),
        ({"algorithm": "set", "sparsity": 0.5, "update": []}, "steps"),
        (
            {"algorithm": "rigl", "sparsity": 0.5, "balance_in_groups": 0},
            "'rigl': balance_in_groups must be at least 1, not 0",
        ),
        (
            {"type": "sideband", "sparsity": 0.5, "out_groups": 0},
            "out_groups must be at least 1, not 0",
        ),
        ({"sparsity": 10**400}, "sparsity"),
        ({"sparsity": True}, "sparsity"),
        ({"sparsity": float("inf")}, "sparsity"),
        ({"sparsity": 0.5, "seed": True}, "seed"),
        ({"sparsity": 0.5, "": 1}, "''"),
        ({"sparsity": 0.5, "süß": 1}, "süß"),
        ({"sparsity": 0.5, "param_filter": []}, "filter"),
        ({"algorithm": "set", "sparsity": 0.5, "grown_init_scale": "much"}, "grown_init_scale"),
        ({"algorithm": "set", "sparsity": 0.5, "skip_update_on_mask_steps": "no"}, "skip_update"),
        ({"algorithm": "gmp", "schedule": {"type": "exp", "init": 0, "gamma": 1e9}}, None),
    ],
)
def test_values_out_of_range(config, words):
    if words is None:
        assert_usable(configure(config), config)
        return
    with pytest.raises((ValueError, TypeError), match=words) as caught:
        configure(config)
    assert_one_sentence(caught.value, config)
