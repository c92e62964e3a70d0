"""SparsityAlgorithm, Group and classes of one's own: what they do, and mistakes with them."""

import copy
import re

import pytest
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

import sparse_lib as sl
from sparse_lib.core.registry import algorithm_classes
from sparse_lib.schedules import Constant
from tests.cases import (
    assert_enforced,
    assert_equal,
    driven,
    fit,
    make_model,
    messages,
    snapshot,
    train,
)
from tests.sparse_lib.tiny_models import gpt2


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
    assert "no parameter" in messages(sl.Static(0.5).apply, nn.ReLU())[0]


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
    assert all(map(torch.equal, first, draw(model.weight)))  # each generator restarts
    assert all(map(torch.equal, first, draw("weight")))
    assert not any(map(torch.equal, first, draw("weight/noise")))
    algorithm.num_updates += 1
    assert not any(map(torch.equal, first, draw(model.weight)))


def make_group():
    members = {
        "0.weight": sl.Static(0.3, seed=1),
        ("0.*", "nothing*"): sl.SET(0.9, update={"freq": 1}, seed=1),
        lambda name, param: param.dim() > 1: sl.RigL(0.8, update={"freq": 2}, seed=1),
    }
    return sl.Group(members)


def test_the_first_match_wins_and_apply_is_order_free_on_a_part_too():
    first, second, one, two = make_model(), make_model(), make_group(), make_group()
    first.apply(one)
    two.apply(second)
    assert_equal(snapshot(first), snapshot(second))
    assert [list(a.sparse_params) for a in one] == [["0.weight"], ["0.bias"], ["2.weight"]]
    two = copy.deepcopy(one := gpt2())
    one.transformer.h.apply(sl.Static(0.5, seed=1))
    sl.Static(0.5, seed=1).apply(two.transformer.h)
    assert_equal(snapshot(one), snapshot(two))
    assert not hasattr(one.transformer.wte, "weight_mask")


def test_groups_are_extended_and_hooks_reach_every_member():
    group = sl.Group({"0.weight": sl.Static(0.25)})
    group.add(["2.*", "none"], sl.SET(0.5))
    group.extend(sl.Group([(lambda name, param: True, sl.Static(0.9, "from_zeros"))]))
    assert len(group) == 3 and isinstance(group[1], sl.SET)
    targets, actual = {}, {}
    handles = group.register_target_sparsity_hook(lambda _, *found: targets.update([found]))
    group.register_computed_sparsity_hook(lambda _, *found: actual.update([found]))
    model = make_model()
    train(model, driven(group, model), 1)
    assert [type(handle) for handle in handles] == [RemovableHandle] * 3
    assert targets == {"0.weight*": 0.25, "2.weight*": 0.5, "0.bias*": 0.9}
    # What is there, not what was asked for.
    assert actual == {"0.weight": 0.25, "2.weight": 0.5, "0.bias": 0.0}


def test_one_optimizer_step_is_skipped_for_all_members():
    group = sl.Group({"0.*": sl.RigL(0.5, 1, skip_update_on_mask_steps=True), "*": sl.SET(0.5, 1)})
    model = make_model()
    optimizer = driven(group, model)
    before = snapshot(model)
    train(model, optimizer, 1)
    both = before["2.weight_mask"] & model[2].weight_mask
    assert torch.equal(before["2.weight"][both], model[2].weight.detach()[both])


def test_misuse():
    with pytest.raises(ValueError, match="at least one"):
        sl.Group().apply(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="cannot hold a Group"):
        sl.Group({"*": sl.Group()})
    with pytest.raises(TypeError, match="algorithms"):
        sl.Group({"*": 0.5})
    applied = sl.Group({"*": sl.SET(0.5)})
    applied.apply(nn.Linear(2, 2))
    with pytest.raises(RuntimeError, match="add members before apply"):
        applied.add("bias", sl.SET(0.5))
    for groups in ([1], [("*",)], [sl.Static(0.5)], ["ab"]):
        with pytest.raises(TypeError, match="takes a dict or .filter, algorithm. pairs, not"):
            sl.Group(groups)
    for globs, lack in (("nothing", "matches 'n"), (["b*", "*t"], r"is left by earlier filters")):
        with pytest.raises(ValueError, match=f"no parameter {lack}.*, given to SET"):
            sl.Group([("[wb]*", sl.Static(0.5)), (globs, sl.SET(0.5))]).apply(nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("globs", "idle"),
    [
        (["0.weight", "1.wieght", "3.*", "3.*"], ["1.wieght", "3.*"]),
        (["0.weight", "2.weight"], []),
        (["*.weight", "2.weight"], []),
        (["0.*", "2.weight"], []),  # the member before has it
    ],
)
def test_each_glob_of_a_list_that_matches_nothing_is_warned_of(globs, idle):
    group = sl.Group([("2.weight", sl.Static(0.5)), (globs, sl.SET(0.5))])
    assert messages(group.apply, make_model()) == [
        f"no parameter matches {glob!r}, one of the globs given to SET" for glob in idle
    ]


def trained(algorithm, steps=2):
    torch.manual_seed(0)
    model = nn.Linear(12, 8)
    optimizer = driven(algorithm, model)
    fit(model, optimizer, (torch.randn(4, 12) for _ in range(steps)))
    return model


def own(base, **methods):
    """A class ``Own`` that ``configure`` does not find."""
    return type("Own", (base,), {"in_registry": False, **methods})


def masked_by(function):
    return own(sl.DynamicSparsityAlgorithm, update_mask=lambda self, p, mask, s: function(p, mask))


SHAPE = "the mask of 'weight' must be a tensor of shape (8, 12), not "
WRONG = [
    (
        masked_by(lambda p, mask: p.abs()),
        "the mask of 'weight' must be bool, or hold 0 and 1 alone; it has other float32 values",
    ),
    (masked_by(lambda p, mask: None), f"{SHAPE}NoneType"),
    (masked_by(lambda p, mask: mask.view(-1)), f"{SHAPE}(96,)"),
    (
        masked_by(lambda p, mask: mask.fill_(True)),
        "Own.update_mask wrote to the mask of 'weight' that it was given; it must leave that",
    ),
    *(
        (
            own(base, grow_score=lambda self, p: p.abs().sum(-1)),
            "Own.grow_score must return a tensor of shape (8, 12), not",
        )
        for base in (sl.RigL, sl.SNFS)
    ),
    (
        own(sl.SET, drop_score=lambda self, p: p.detach() - 9),
        "Own.drop_score must return scores of at least 0",
    ),
]


@pytest.mark.parametrize(("cls", "said"), WRONG)
def test_what_a_method_returns_is_checked(cls, said):
    with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
        trained(cls(0.5, update=2, seed=0))


def test_a_mask_of_zeros_and_ones_is_one():
    largest = masked_by(lambda p, mask: sl.masks.make_mask_topk_sparsity(p.abs(), 0.75).to(p.dtype))
    model = trained(largest(0.75, update=1))
    assert int(model.weight_mask.sum()) == 24 and model.weight_mask.dtype is torch.bool


class NoSuper(sl.SET):
    in_registry = False

    def __init__(self, share=1):
        self.share = share


@pytest.mark.parametrize("use", [lambda a: a.apply(nn.Linear(4, 4)), sl.configure])
def test_a_constructor_that_leaves_out_its_base(use):
    said = r"^NoSuper.__init__ does not call super\(\).__init__\(...\)"
    with pytest.raises(TypeError, match=said):
        use(NoSuper())


def test_a_name_that_is_taken_says_by_which_module():
    said = r"^the name 'rigL' belongs to the algorithm RigL of sparse_lib.algorithms.rigl"
    with pytest.raises(ValueError, match=said):
        type("rigL", (sl.SET,), {})
    assert algorithm_classes()["rigl"] is sl.RigL


def test_model_and_optimizer_in_one_call():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    said = r"^apply takes one model or one optimizer: call apply\(model\), then apply\(optimizer\)$"
    for algorithm in (sl.SET(0.5), sl.configure(0.5)):
        with pytest.raises(TypeError, match=said):
            algorithm.apply(model, optimizer)
    assert not hasattr(model, "weight_mask")


@pytest.mark.parametrize("kind", [sl.SET, sl.RigL])
def test_a_function_that_gives_a_drop_fraction_above_one(kind):
    said = "^drop_fraction must be between 0 and 1, and its function gave 7.0 at step 2$"
    with pytest.raises(ValueError, match=said):
        trained(kind(0.5, update=2, drop_fraction=lambda step: 7.0 if step > 1 else 0.3))
    trained(kind(0.5, update=2, drop_fraction=lambda step: 0.1 - step))  # it has ended


@pytest.mark.parametrize("param_filter", ["out.weight", ["out.weight", "head.*"]])
def test_a_filter_of_a_tied_weight_s_second_name(param_filter):
    model = nn.ModuleDict({"emb": nn.Embedding(8, 4), "out": nn.Linear(4, 8, bias=False)})
    model["out"].weight = model["emb"].weight
    group = sl.Group([(param_filter, sl.SET(0.5))])
    said = "'out.weight' is tied to 'emb.weight', and filters see"
    with pytest.raises(ValueError, match=said):
        group.apply(model)
    model["other"] = nn.Linear(4, 4)
    with pytest.warns(UserWarning, match=f"leaves a tied weight dense; {said}"):
        sl.Group({"o*.weight": sl.SET(0.5)}).apply(model)
