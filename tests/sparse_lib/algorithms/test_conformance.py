"""The rules of every registered algorithm, a user's included; and that the checks can fail."""

import pytest
import torch

from sparse_lib import DynamicSparsityAlgorithm, conformance
from sparse_lib.conformance import CHECKS, Case, NotConforming, check_algorithm
from sparse_lib.core.registry import algorithm_classes
from sparse_lib.masks import make_mask_topk_sparsity
from tests.cases import ALGORITHMS, SCHEDULES

#: These set no target, or lag behind one.
WITHOUT_TARGET = ("rolling", "static", "byhand")


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_conformance(name, check, monkeypatch):
    monkeypatch.setattr(conformance, "SCHEDULES", SCHEDULES)
    check(Case(algorithm_classes()[name], follows_sparsity=name not in WITHOUT_TARGET))


def largest(p, sparsity):
    return make_mask_topk_sparsity(p.abs(), sparsity)


class Forgetful(DynamicSparsityAlgorithm):
    """Its mask depends on what it counts, and does not save."""

    in_registry = False

    def update_mask(self, p, mask, sparsity):
        self.calls = getattr(self, "calls", 0) + 1
        return make_mask_topk_sparsity(p * (-1) ** self.calls, sparsity)


def made(name, function, **more):
    def update_mask(self, p, mask, sparsity):
        return function(p, sparsity)

    own = {"in_registry": False, "update_mask": update_mask, **more}
    return type(name, (DynamicSparsityAlgorithm,), own)


def revive(algorithm):
    """Writes to masked weights when all masking is over."""
    for sparse in algorithm.sparse_params.values():
        sparse.param.data.fill_(1.0)


Gambling = made("Gambling", lambda p, sparsity: largest(p + torch.rand(p.shape), sparsity))
Wasteful = made("Wasteful", lambda p, sparsity: largest(p, 1.1 * sparsity))
Reviving = made("Reviving", largest, call_hooks=revive)


@pytest.mark.parametrize(
    ("cls", "name"),
    [
        (Forgetful, "a_resume_goes_on_identically: six steps after a resume at step"),
        (Gambling, "no_global_random_numbers_are_used: the global generator was used"),
        (Wasteful, "counts_are_exact_at_every_update: the mask of '0.weight' has"),
        (Reviving, "masked_positions_are_zero_after_every_step: '0.weight' is not zero where"),
    ],
)
def test_a_class_that_does_not_conform_is_told(cls, name):
    with pytest.raises(NotConforming, match=rf"^{cls.__name__} fails \d+ checks:(\n.*)*\n{name}"):
        check_algorithm(cls)


def test_arguments_are_those_of_the_class():
    with pytest.raises(TypeError, match="takes no .drop."):
        check_algorithm(algorithm_classes()["set"], drop=0.5)
    with pytest.raises(TypeError, match="must be a class of algorithms, not 'set'"):
        check_algorithm("set")
    check_algorithm(algorithm_classes()["static"], follows_sparsity=False, init_method="topk")
