"""Mistakes in classes of one's own, and in how they are used, are told in one sentence."""

import re

import pytest
import torch
from torch import nn

import sparse_lib as sl
from sparse_lib.core.registry import algorithm_classes
from tests.cases import driven, fit


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
    with pytest.raises(ValueError, match="'out.weight' is tied to 'emb.weight', and filters see"):
        group.apply(model)
