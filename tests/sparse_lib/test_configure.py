"""Configs in all dialects, and one sentence for every mistake."""

import pytest
import torch
from torch import nn

from sparse_lib.configure import configure
from sparse_lib.core.dynamic import DynamicSparsityAlgorithm


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(10, 8)
        self.fc_layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        self.norm = nn.LayerNorm(8)
        self.final_layer = nn.Linear(8, 8)
        self.lm_head = nn.Linear(8, 10)


BLOCK = {"fc_layers.0.weight", "fc_layers.1.weight", "final_layer.weight"}


def sparsities(config):
    model, group = Net(), configure(config)
    group.apply(model)
    return {k: v["sparsity"] for k, v in group.metrics()["tensors"].items()}


@pytest.mark.parametrize(
    "config",
    [
        0.25,
        {"sparsity": 0.25},
        {"sparsity": {"sparsity": 0.25}},
        {"sparsity": {"algorithm": "Static", "schedule": 0.25}},
        {"sparsity": {"type": "constant", "value": 0.25}},
        [{"sparsity": 0.25}],
        {"groups": [{"algorithm": "set"}], "params": {"sparsity": 0.25}},
        {"sparsity": {"type": "sideband", "sparsity": 0.25, "init_method": "random", "seed": 1}},
        {"algorithm": "rigl", "sparsity": 0.25, "distribution": "uniform", "compat": None},
    ],
)
def test_the_default_filter_and_all_forms(config):
    assert sparsities(config) == dict.fromkeys(BLOCK, 0.25)


def test_sideband_patterns_with_settings_each():
    patterns = {"fc_layers.*weight": {"sparsity": 0.25}, "final_layer.*weight": {"sparsity": 0.5}}
    got = sparsities({"sparsity": {"type": "sideband", "param_name_patterns": patterns}})
    assert got == {**dict.fromkeys(BLOCK, 0.25), "final_layer.weight": 0.5}


def test_sideband_prunes_the_smallest_by_default():
    model = Net()
    size = model.final_layer.weight.detach().abs()
    config = {"type": "sideband", "sparsity": 0.5, "param_name_patterns": ["final.*weight"]}
    configure(config).apply(model)
    kept = model.final_layer.weight_mask
    assert size[kept].min() >= size[~kept].max()


def test_the_old_schedule_is_when_to_update():
    old = configure({"type": "set", "sparsity": 0.5, "schedule": 7})[0]
    assert [t for t in range(15) if old.is_update_step(t)] == [0, 7, 14]
    new = configure({"algorithm": "gmp", "schedule": [0.1, 0.2], "update": {"steps": [3, 5]}})[0]
    pairs = configure({"type": "gmp", "sparsity_schedule": [[3, 0.1], [5, 0.2]]})[0]
    for algorithm in (new, pairs):
        assert [t for t in range(9) if algorithm.is_update_step(t)] == [3, 5]


def test_a_user_algorithm_is_found_by_class_name():
    class KeepDiagonal(DynamicSparsityAlgorithm):
        def update_mask(self, p, mask, sparsity):
            return torch.eye(*p.shape, dtype=torch.bool)

    assert isinstance(configure({"algorithm": "keepdiagonal", "sparsity": 0.5})[0], KeepDiagonal)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"algorithm": "rigle", "sparsity": 0.5}, "did you mean 'rigl'"),  # defect 26
        ({"algorithm": "rigl", "sparsty": 0.5}, "did you mean 'sparsity'"),
        ({"algorithm": "rigl"}, "needs a sparsity"),
        ({"algorithm": "rigl", "sparsity": {"type": "cosin"}}, "did you mean 'cosine'"),
        ({"algorithm": "set", "sparsity": 0.5, "update": {"frq": 3}}, "frq"),
        ({"algorithm": "set", "sparsity": 0.5, "drop_fraction": 2}, "drop_fraction"),
        ({"algorithm": "set", "sparsity": 0.5, "grown_init": "one"}, "grown_init"),
        ({"algorithm": "granet", "sparsity": 0.5, "pruning": "all"}, "pruning"),
        ({"algorithm": "set", "sparsity": 0.5, "schedule": 0.4}, "not both"),
        ({"algorithm": "set", "type": "set", "sparsity": 0.5}, "not both"),
        ({"sparsity": 1.5}, "between 0 and 1"),
        ({"sparsity": 0.5, "init_method": "tpk"}, "topk"),
        ({"sparsity": 0.5, "distribution": "ekr"}, "erk"),
        ({"sparsity": 0.5, "param_filter": 3}, "filter"),
        ({"sparsity": 0.5, "param_name_patterns": "("}, "regular expression"),
        ({"sparsity": 0.5, "compat": "1"}, "compat"),
        ({"sparsity": 0.5, "seed": "x"}, "seed"),
        ({"groups": []}, "groups"),
        ({1: 2}, "strings"),
        ({"algorithm": ["rigl"]}, "name"),
        ([0.5], "dicts"),
        ([], "number"),
        ("0.5", "number"),
        (True, "number"),
        (float("nan"), "between"),
    ],
)
def test_every_mistake_is_one_sentence(config, words):
    with pytest.raises((ValueError, TypeError), match=words):
        configure(config)


def test_none_is_dense():
    assert configure(None) is None
    assert configure({"sparsity": None}) is None
