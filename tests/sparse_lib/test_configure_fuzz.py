"""No config, however strange, gives a traceback without a sentence."""

import math
import warnings

import pytest
import torch
from torch import nn

from sparse_lib.checks import SettingError
from sparse_lib.configure import configure
from sparse_lib.core.group import Group
from sparse_lib.core.registry import algorithm_classes, constructor_keys

ALGORITHMS = ("static", "gmp", "rigl")
KEYS = sorted(
    {"algorithm", "type", "schedule", "param_filter", "param_name_patterns", "sparsity_schedule"}
    | {"in_groups", "out_groups", "groups", "params", "trainer", "sparsity"}
    | {key for name in ALGORITHMS for key in constructor_keys(algorithm_classes()[name])}
)
WILD = (
    None, True, -1, 3, 0.3, 1.5, 10**30, 10**400, math.nan, -math.inf, "", "Ω*", "fc*", "(",
    "random", "cosine", "0.5", [], [0.5], [0.5, 2], ["*"], [math.nan], {}, {"a": 1}, {"": 0.5},
    {"*": "x"}, {"lin*": 0.5}, {"type": "cosine"}, {"type": "exp", "init": 0, "gamma": 1e9},
    {"freq": -1}, {"freq": 2, "start": 9, "stop": 3}, {"steps": [True]},
    {"type": "constant", "value": "a"}, {"lin": {"sparsity": 7}}, {"init": {"sparsity": [None]}},
    [{"sparsity": "x"}],
)  # fmt: skip


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


@pytest.mark.parametrize("key", KEYS)
def test_a_wild_value_in_a_good_config(key):
    for algorithm in ALGORITHMS:
        for value in WILD:
            config = {"algorithm": algorithm, "sparsity": 0.5, key: value}
            if (group := made(config)) is not None:
                assert_usable(group, config)


def test_a_wild_value_alone():
    for config in WILD:
        for whole in (config, {"sparsity": config}, {"groups": [config]}, [config, 0.5]):
            made(whole)
