"""Every registered algorithm with arguments that make its masks move in a few steps."""

from __future__ import annotations

import warnings
from typing import Any

import torch

import sparse_lib as sl
import sparse_lib.algorithms  # fills the registry
from sparse_lib import conformance
from sparse_lib.conformance import (  # noqa: F401 (tests import them from here)
    Case,
    expect_equal,
    snapshot,
    train,
)
from sparse_lib.conformance import expect_enforced as assert_enforced  # noqa: F401
from sparse_lib.core.registry import algorithm_classes
from sparse_lib.masks.makers import make_mask_drop_minimum, make_mask_grow_maximum


class Momentum(sl.DropAndGrow):
    """An algorithm of a user, in the class of RigL: grow where the column is strong."""

    def grow_score(self, p: torch.Tensor) -> torch.Tensor:
        return p.abs().sum(0, keepdim=True).expand_as(p)


class ByHand(sl.DynamicSparsityAlgorithm):
    """The documents' custom algorithm: only ``update_mask``, no ``__init__``."""

    uses_dense_gradient = True

    def update_mask(self, p, mask, sparsity):
        kept, _ = make_mask_drop_minimum(p.abs(), mask, 0.2)
        return make_mask_grow_maximum(self.dense_gradient(p).abs(), kept, sparsity)


class Rolling(sl.SparsityAlgorithm):
    """Only the abstract method, without the optimizer argument."""

    def update(self):
        for sparse_param in self.sparse_params.values():
            sparse_param.mask = sparse_param.mask.roll(1, 0)


def is_builtin(name: str) -> bool:
    return algorithm_classes()[name].__module__.startswith("sparse_lib.")


ALGORITHMS = [
    name
    for name in algorithm_classes()
    if is_builtin(name) or name in ("momentum", "byhand", "rolling")
]


def by_thirds(step: int) -> float:
    return 0.3 + 0.1 * (step // 3)


SCHEDULES: dict[str, Any] = {
    **conformance.SCHEDULES,
    "exp": {"type": "exp", "init": 0.2, "final": 0.8, "gamma": -0.2},
    "power": {"type": "power", "init": 0.8, "beta": 0.9},
    "polynomial": {"type": "polynomial", "init": 0.2, "final": 0.8, "start": 1, "stop": 9},
    "list": [0.3, 0.5, 0.7],
    "cycling": {"type": "cycling", "values": [0.3, 0.6]},
    "function": by_thirds,
}


#: Torch's optimizers, with options that give each all the states that it can keep.
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    "Adam": {"amsgrad": True, "weight_decay": 0.1},
    "AdamW": {"weight_decay": 0.1},
    "Adagrad": {"initial_accumulator_value": 0.1},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Adadelta": {},
    "NAdam": {},
    "RAdam": {},
    "Adamax": {},
    "Rprop": {},
    "ASGD": {},
    "Adafactor": {},
    "LBFGS": {"max_iter": 3, "history_size": 4, "line_search_fn": "strong_wolfe"},
}


def make(name: str, sparsity: Any = 0.6, **options: Any) -> sl.SparsityAlgorithm:
    return Case(algorithm_classes()[name]).make(sparsity, **options)


def make_model(seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """The model of the checks; what a test draws after it comes from the same seed."""
    torch.manual_seed(seed)
    return conformance.make_model(seed, dtype)


def assert_equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    expect_equal(first, second, "here")


def row(*values: float) -> torch.nn.Linear:
    """A layer of one output with these weights."""
    layer = torch.nn.Linear(len(values), 1, bias=False)
    layer.weight.data = torch.tensor([values], dtype=torch.float32)
    return layer


def driven(algorithm, model, kind=torch.optim.SGD, *settings, **options):
    """An optimizer of a model's parameters; the algorithm is applied to both."""
    algorithm.apply(model)
    if not settings:
        options = {"lr": 0.1} | options
    optimizer = kind(model.parameters(), *settings, **options)
    algorithm.apply(optimizer)
    return optimizer


def fit(model, optimizer, batches, reduce=torch.mean):
    """A step on each batch, by the mean or sum of the outputs' squares."""
    for inputs in batches:
        descend(optimizer, reduce(model(inputs).square()))


def descend(optimizer, loss):
    """A step on a loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def messages(action, *arguments):
    """What an action warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action(*arguments)
    return [str(warning.message) for warning in caught]


def loss_of(model, step):
    """A loss of the model of `make_model` on the data of a step."""
    data = torch.randn(8, 12, generator=torch.Generator().manual_seed(step))
    return model(data).pow(2).sum(1).sub(1).pow(2).mean()


def same(first, second):
    """Whether two nests of dicts, lists, numbers and tensors are equal, bit for bit."""
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[k], second[k]) for k in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(same, first, second))
    return torch.equal(first, second) if isinstance(first, torch.Tensor) else first == second
