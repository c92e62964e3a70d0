"""Shared code of the integrations: making the algorithm, its state in a checkpoint, its metrics."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from sparse_lib.configure import configure
from sparse_lib.core.algorithm import SparsityAlgorithm
from sparse_lib.core.optimizers import innermost

STATE_KEY = "sparsity_state"
"""Key of the first parameter group of an optimizer's state dict that holds the state."""


def as_algorithm(config: Any) -> SparsityAlgorithm:
    """The algorithm of a config as `sparse_lib.configure` takes it, or the given one.

    One that is no ``Group`` and was not applied to a model yet gets the weights of
    `sparse_lib.layers.default_filter`. ValueError if the config is None.
    """
    if isinstance(config, SparsityAlgorithm) and config.sparse_params:
        return config
    algorithm = configure(config)
    if algorithm is None:
        raise ValueError("the sparsity config is None, which means a dense model")
    return algorithm  # type: ignore[return-value]  # a Group is registered as one


def apply_to_optimizer(algorithm: SparsityAlgorithm, optimizer: Any) -> None:
    """Apply an algorithm to an optimizer whose checkpoints carry the algorithm's state from now on.

    If the optimizer was restored from such a checkpoint before, the algorithm is restored too.
    """
    optimizer = innermost(optimizer)
    algorithm.apply(optimizer)
    carry_state(algorithm, optimizer)


def carry_state(algorithm: SparsityAlgorithm, optimizer: Optimizer) -> None:
    """Keep an algorithm's state inside of its optimizer's ``state_dict``.

    It is under `STATE_KEY` in the first parameter group, since loading keeps what groups
    hold; this works through any trainer, also one that loads the optimizer before it says so.
    """

    def save(_: Optimizer, state_dict: dict[str, Any]) -> None:
        state_dict["param_groups"][0][STATE_KEY] = algorithm.state_dict()

    def load(loaded: Optimizer) -> None:
        saved = loaded.param_groups[0].pop(STATE_KEY, None)
        if saved is not None:
            algorithm.load_state_dict(saved)

    load(optimizer)
    optimizer.register_state_dict_post_hook(save)
    optimizer.register_load_state_dict_post_hook(load)


def is_masked_by(algorithm: SparsityAlgorithm, model: nn.Module) -> bool:
    """Whether an algorithm was applied to this very model."""
    known = {id(parameter) for parameter in model.parameters()}
    return any(id(sparse.param) in known for sparse in algorithm.sparse_params.values())


@torch.no_grad()
def summary(algorithm: SparsityAlgorithm) -> dict[str, float]:
    """The numbers of `SparsityAlgorithm.metrics` over all weights, as ``sparsity/<name>``."""
    return {
        f"sparsity/{name}": float(value)
        for name, value in algorithm.metrics().items()
        if isinstance(value, int | float)
    }
