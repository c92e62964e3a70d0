"""Configs, and one sentence for every mistake."""

import inspect
import warnings

import pytest
import torch
from torch import nn

import sparse_lib as sl
from sparse_lib.configure import configure
from sparse_lib.core.dynamic import DynamicSparsityAlgorithm
from tests.sparse_lib.algorithm_cases import assert_enforced, make_model, train


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
        {"algorithm": "rigl", "sparsity": 0.25, "distribution": "uniform", "compat": None},
    ],
)
def test_the_default_filter_and_all_forms(config):
    assert sparsities(config) == dict.fromkeys(BLOCK, 0.25)


def test_the_first_match_of_a_list_wins_and_globs_match_dots():
    first = {"sparsity": 0.25, "param_filter": ["fc_layers*weight", "none"]}
    got = sparsities([first, {"sparsity": 0.5}])
    assert got == {**dict.fromkeys(BLOCK, 0.25), "final_layer.weight": 0.5}


@pytest.mark.parametrize("algorithm", ["static", "set", "rigl"])
def test_a_trainers_settings(algorithm):
    sparsity = {"algorithm": algorithm, "sparsity": 0.75}
    if algorithm != "static":
        sparsity["update"] = {"freq": 100, "stop": 7500}
        sparsity["drop_fraction"] = {"type": "cosine", "init": 0.5, "half_period": 7500}
    group = configure({"trainer": {"init": {"sparsity": sparsity, "seed": 1}, "fit": {}}})
    assert type(group[0]).__name__.lower() == algorithm
    if algorithm != "static":
        assert group[0].drop_schedule(7500) == 0 and not group[0].is_update_step(7500)
    assert configure({"trainer": {"init": {"model": {}}}}) is None


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
        {"algorithm": "granet", "pruning": "global"},
        {"algorithm": "rigl", "distribution": {"type": "erk", "power_scale": 0.5}},
        {"algorithm": "rigl", "score_shaper": "2:4"},
        {"algorithm": "set", "score_shaper": {"type": "block", "block": [2, 4]}},
        {"algorithm": "gmp", "tie_breaker": "random"},
    ],
    ids=lambda variant: "-".join(map(str, variant.values())),
)
def test_each_papers_variant_trains_at_its_sparsity(variant):
    config = {"sparsity": 0.5, "param_filter": "*.weight", **variant}
    if variant["algorithm"] != "static":
        config["update"] = {"freq": 1}
    model, group = make_model(), configure(config)
    if variant.get("init_method") == "snip":
        model(torch.ones(2, 12)).pow(2).sum().backward()
    group.apply(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    group.apply(optimizer)
    train(model, optimizer, 3)
    assert sum(int(s.mask.sum()) for s in group.sparse_params.values()) == 144
    assert_enforced(group, optimizer)
    if variant.get("score_shaper") == "2:4":
        assert int(model[0].weight_mask.view(-1, 4).sum(1).max()) == 2


def test_a_user_algorithm_is_found_by_class_name():
    class KeepDiagonal(DynamicSparsityAlgorithm):
        def update_mask(self, p, mask, sparsity):
            return torch.eye(*p.shape, dtype=torch.bool)

    assert isinstance(configure({"algorithm": "keepdiagonal", "sparsity": 0.5})[0], KeepDiagonal)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"algorithm": "rigle", "sparsity": 0.5}, "did you mean 'rigl'"),
        ({"algorithm": "rigl", "sparsty": 0.5}, "did you mean 'sparsity'"),
        ({"algorithm": "rigl"}, "needs a sparsity"),
        ({"algorithm": "rigl", "sparsity": {"type": "cosin"}}, "did you mean 'cosine'"),
        ({"algorithm": "set", "sparsity": 0.5, "update": {"frq": 3}}, "frq"),
        ({"algorithm": "set", "sparsity": 0.5, "drop_fraction": 2}, "drop_fraction"),
        ({"algorithm": "set", "sparsity": 0.5, "grown_init": "one"}, "grown_init"),
        ({"algorithm": "granet", "sparsity": 0.5, "pruning": "all"}, "pruning"),
        (
            {"algorithm": "set", "sparsity": 0.5, "schedule": 0.4},
            "sparsity is 0.5 and schedule is 0.4; give sparsity or schedule, not both",
        ),
        (
            {"algorithm": "set", "sparsity": 0.5, "update": []},
            r"update: steps must hold at least one step, not \[\]",
        ),
        (
            {"algorithm": "set", "sparsity": 0.5, "update": {"freq": "2%"}},
            "freq must be an integer, not '2%'; the length of a run is not known here",
        ),
        (
            {"algorithm": "set", "sparsity": 0.5, "update": "2%"},
            "update must be .* not '2%'; the length of a run is not known here",
        ),
        (
            {"algorithm": "srste", "sparsity": 0.5, "decay": -1},
            "decay must be at least 0, not -1",
        ),
        (
            {"sparsity": 0.5, "score_shaper": "2:x"},
            "score_shaper '2:x' must be n:m with two integers",
        ),
        ({"sparsity": 1.5}, "between 0 and 1"),
        ({"sparsity": 0.5, "init_method": "tpk"}, "topk"),
        ({"sparsity": 0.5, "distribution": "ekr"}, "erk"),
        ({"sparsity": 0.5, "distribution": True}, "distribution must be a name or a dict"),
        ({"sparsity": 0.5, "distribution": [0.5]}, "distribution must be a name or a dict"),
        (
            {"sparsity": 0.5, "distribution": {"0.*": 2}},
            "distribution: sparsity of '0.\\*' must be between 0 and 1, not 2",
        ),
        (
            {"sparsity": 0.5, "distribution": {"type": "Map", "sparsity_map": {"0.*": "a"}}},
            "distribution: sparsity of '0.\\*' must be a number between 0 and 1, not 'a'",
        ),
        ({"sparsity": 0.5, "distribution": {0: 0.5}}, "distribution must have globs .*, not 0"),
        (
            {"sparsity": 0.5, "distribution": {"type": "erk", "first": 2}},
            "distribution.first must be between 0 and 1, not 2",
        ),
        (
            {"sparsity": 0.5, "distribution": {"type": "erk", "firs": 0}},
            "'erk' has the unknown key 'firs'; did you mean 'first'",
        ),
        ({"sparsity": 0.5, "param_filter": 3}, "param_filter must be a glob, .* not 3"),
        ({"sparsity": 0.5, "compat": "1"}, "compat"),
        ({"sparsity": 0.5, "seed": "x"}, "seed"),
        ({"groups": []}, "groups"),
        ({"type": "linear", "init": 0.1, "slope": 0.1}, "'linear' is a schedule, which an algor"),
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


def test_a_class_that_is_not_finished_is_named_with_what_it_lacks():
    class Unfinished(DynamicSparsityAlgorithm):
        pass

    with pytest.raises(ValueError, match="'unfinished' defines no update_mask"):
        configure({"algorithm": "unfinished", "sparsity": 0.5})
    assert Unfinished.__abstractmethods__


def test_a_misspelt_key_of_a_trainer_is_named():
    with pytest.raises(ValueError, match="'sparsty' is no key of trainer.init; did you mean"):
        configure({"trainer": {"init": {"sparsty": {"sparsity": 0.5}}}})


def test_a_filter_that_matches_nothing_is_refused():
    model = make_model()
    group = configure({"sparsity": 0.5, "param_filter": "nothing*"})
    with pytest.raises(ValueError, match=r"no parameter matches 'nothing\*', given to Static"):
        group.apply(model)
    assert not sl.is_sparse(model)


@pytest.mark.parametrize(("update", "warns"), [(None, True), (1, True), (2, False)])
def test_mask_steps_that_are_all_steps_are_warned_of(update, warns):
    config = {"algorithm": "rigl", "sparsity": 0.5, "skip_update_on_mask_steps": True}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        configure(config | {"update": update})
    assert any("no weight is trained" in str(w.message) for w in caught) is warns


def test_a_backward_set_smaller_than_the_forward_set_is_refused():
    with pytest.raises(ValueError, match="must be at most sparsity, which is 0.8, not 0.9"):
        configure({"algorithm": "topkast", "sparsity": 0.8, "backward_sparsity": 0.9})


def test_signature_and_repr_show_the_settings_of_a_class():
    shown = inspect.signature(sl.RigL).parameters
    assert {"sparsity", "update", "drop_fraction", "grown_init", "seed", "compat"} <= set(shown)
    assert "kwargs" not in shown and "Level" in str(shown["sparsity"].annotation)
    assert all(" at 0x" not in str(inspect.signature(getattr(sl, name))) for name in sl.__all__)
    text = repr(configure({"algorithm": "rigl", "sparsity": 0.9, "update": 100}))
    assert "RigL(sparsity=0.9, update=FreqSchedule(freq=100" in text
