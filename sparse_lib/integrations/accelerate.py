"""Sparse training with accelerate."""

from __future__ import annotations

from typing import Any

from accelerate import Accelerator
from torch import nn

from sparse_lib.core.algorithm import SparsityAlgorithm
from sparse_lib.integrations import common


def sparsify(
    accelerator: Accelerator, config: Any, model: nn.Module, optimizer: Any
) -> SparsityAlgorithm:
    """Train a model and an optimizer that an accelerator has prepared sparsely.

    ``accelerator.save_state`` and ``load_state`` then hold the masks and the algorithm's state.
    Steps are optimizer steps, also with gradient accumulation; a step that loss scaling skips does
    not count; ranks hold the same masks. The config, and errors, are those of
    `sparse_lib.configure`; an algorithm will do as well.

    Returns:
        The algorithm; ``accelerator.log(common.summary(algorithm), step)`` logs its metrics.
    """
    algorithm = common.as_algorithm(config)
    if not common.is_masked_by(algorithm, model):
        algorithm.apply(model)
    algorithm.apply(optimizer)
    accelerator.register_for_checkpointing(algorithm)
    return algorithm
