"""Configs, and one sentence for every mistake."""

import inspect
import re

import pytest
from torch import nn

import sparse_lib as sl
from sparse_lib.checks import SettingError


def net():
    layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
    parts = {"embed_tokens": nn.Embedding(10, 8), "fc_layers": layers, "norm": nn.LayerNorm(8)}
    return nn.ModuleDict(parts | {"final_layer": nn.Linear(8, 8), "lm_head": nn.Linear(8, 10)})


BLOCK = {"fc_layers.0.weight", "fc_layers.1.weight", "final_layer.weight"}


def sparsities(config):
    model, group = net(), sl.configure(config)
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
    group = sl.configure({"trainer": {"init": {"sparsity": sparsity, "seed": 1}, "fit": {}}})
    assert type(group[0]).__name__.lower() == algorithm
    if algorithm != "static":
        assert group[0].drop_schedule(7500) == 0 and not group[0].is_update_step(7500)
    for dense in ({"trainer": {"init": {"model": {}}}}, None, {"sparsity": None}):
        assert sl.configure(dense) is None


def test_what_a_class_lacks_is_named():
    class Unfinished(sl.DynamicSparsityAlgorithm):
        pass

    with pytest.raises(ValueError, match="'unfinished' defines no update_mask"):
        sl.configure({"algorithm": "unfinished", "sparsity": 0.5})
    assert Unfinished.__abstractmethods__
    for wrong, words in (
        ({"drop_fractoin": 0.1}, "RigL takes no 'drop_fractoin'; did you mean 'drop_fr"),
        ({"param_filter": "*.weight"}, "no 'param_filter'; give it to sparse_lib.configure"),
    ):
        with pytest.raises(SettingError, match=words):
            sl.RigL(0.9, **wrong)


@pytest.mark.parametrize(("update", "warns"), [(None, True), (1, True), (2, False)])
def test_mask_steps_that_are_all_steps_are_warned_of(update, warns, recwarn):
    sl.configure(of("rigl", skip_update_on_mask_steps=True, update=update))
    assert any("no weight is trained" in str(w.message) for w in recwarn) is warns


def test_signature_and_repr_show_the_settings_of_a_class():
    shown = inspect.signature(sl.RigL).parameters
    assert {"sparsity", "update", "drop_fraction", "grown_init", "seed", "compat"} <= set(shown)
    assert "kwargs" not in shown and "Level" in str(shown["sparsity"].annotation)
    assert all(" at 0x" not in str(inspect.signature(getattr(sl, name))) for name in sl.__all__)
    told = dict(re.findall(r"^    (\w+) (\(.+?\): \S.*)", sl.RigL.__doc__, re.MULTILINE))
    assert [*told] == [*shown] and told["seed"].startswith("(int | None): Seed of every random")
    text = repr(sl.configure({"algorithm": "rigl", "sparsity": 0.9, "update": 100}))
    assert "RigL(sparsity=0.9, update=FreqSchedule(freq=100" in text


def of(algorithm="set", sparsity=0.5, **settings):
    return {"algorithm": algorithm, "sparsity": sparsity, **settings}


ERK = {"type": "erk"}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (of("rigle"), "'rigl'"),
        (of("rigl", sparsty=0.5), "'sparsity'"),
        ({"algorithm": "rigl"}, "sparsity"),
        ({"trainer": {"init": {"sparsty": {"sparsity": 0.5}}}}, "'sparsty'"),
        ({"trainer": {"initt": {"sparsity": 0.5}}}, "'initt' is no key of trainer"),
        ({"sparsity": [0.1, 0.9]}, "needs an algorithm that follows it"),
        (of("topkast", 0.8, backward_sparsity=0.9), "sparsity.*0.8.*0.9"),
        (of("topkast", regularization=-1), "regularization must be at least 0.*-1"),
        (of("granet", pruning="all"), "pruning"),
        (of("rigl", balance_in_groups=0), "balance_in_groups.*at least 1.*0"),
        ({"type": "sideband", "sparsity": 0.5, "out_groups": 0}, "out_groups.*at least 1.*0"),
        (of(drop_fraction=2), "drop_fraction"),
        (of(grown_init="one"), "grown_init"),
        (of(skip_update_on_mask_steps="no"), "skip_update"),
        (of(schedule=0.4), "sparsity.*0.5.*schedule.*0.4"),
        (of(update={"freq": "2%"}), "freq.*'2%'.*not known here"),
        (of(update="2%"), "update.*'2%'.*not known here"),
        (of(update={"freq": 1, "start": 9, "stop": 3}), "stop"),
        (of("static", score_shaper="2:x"), "score_shaper.*'2:x'"),
        (of("rigl", score_shaper="2:4", balance_in_groups=4), "score_shaper.*balance_in_groups"),
        (of("static", init_method="tpk"), "topk"),
        (of("static", distribution={"0.*": 2}), r"distribution.*'0.\*'.*0 and 1.*2"),
        (of("static", distribution=ERK | {"first": 2}), "distribution.first.*2"),
        (of("static", param_filter=[]), "filter"),
        (of("static", compat="1"), "compat"),
        (of("static", seed="x"), "seed"),
        *[({"sparsity": value}, "sparsity") for value in (1.5, True)],
        ({"groups": []}, "groups"),
        ({"type": "linear", "init": 0.1, "slope": 0.1}, "'linear' is a schedule, which an algor"),
        ([0.5], "dicts"),
        *[(value, "number") for value in ([], "0.5", True)],
        *[(value, "'90%'; write 0.9") for value in ("90%", of("rigl", "90%"), of("gmp", ["90%"]))],
        (of("static", seed=1.5), "seed must be an integer or None, not 1.5"),
        (of("topkast", regularization=b"1"), "regularization must be a number"),
        # Of older configs
        ({"algorithm": "set", "type": "set"}, "give algorithm or type"),
        ({"type": 3}, "algorithm must be a name, not 3"),
        ({"type": "sideband", "schedule": 3}, "schedule is no key of type 'sideband'"),
        ({"type": "gmp", "sparsity_schedule": [[1, 0.5]], "update": 2}, "stands alone"),
        ({"type": "gmp", "sparsity_schedule": [1, 2]}, "must be a list of .step, sparsity."),
        ({"type": "set", "sparsity": 0.5, "schedule": 2, "update": 3}, "not both"),
        ({"sparsity": 0.5, "param_name_patterns": "("}, "is no regular expression"),
        ({"sparsity": 0.5, "param_name_patterns": [3]}, "must hold regular expressions, not 3"),
        ({"sparsity": 0.5, "param_name_patterns": {}}, "must not be empty"),
        ({"param_name_patterns": {"x": 0.5}}, "'x'. must be a dict, not 0.5"),
        ({"param_filter": "*", "param_name_patterns": "x"}, "not both"),
        ({"sparsity": 0.5, "param_name_paterns": "x"}, "did you mean 'param_name_patterns'"),
    ],
)
def test_every_mistake_is_named(config, words):
    with pytest.raises(SettingError, match=words):
        sl.configure(config)
