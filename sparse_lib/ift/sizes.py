"""Sizes at which a sparse replacement costs the FLOPs of the dense layer, and how they round.

Thangarasa et al., "Sparse-IFT: Sparse Iso-FLOP Transformations for Maximizing Training
Efficiency", ICML 2024, section 3. Each closed form takes the layer's inputs ``num_inputs`` (input
channels times kernel positions for a convolution), its outputs ``num_outputs`` where they matter,
and the sparsity in [0, 1), and returns the real-valued size of the paper.

The identities hold per transformed layer: embeddings, heads and attention are untouched or grow
with the width, so a whole model costs more than the dense one.
"""

from __future__ import annotations

import math
import numbers


def check_sparsity(sparsity: float) -> float:
    """Return the sparsity, or raise TypeError or ValueError if it is no number in [0, 1)."""
    if not isinstance(sparsity, numbers.Real):
        raise TypeError(f"sparsity must be a number, not {sparsity!r}")
    if not 0 <= sparsity < 1:
        raise ValueError(f"sparsity is {sparsity!r}, but must be at least 0 and below 1")
    return sparsity


def _check_size(key: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"{key} is {value!r}, but must be at least 1")
    return value


def wide_factor(sparsity: float) -> float:
    """Sparse-Wide: inputs and outputs grow by ``sqrt(1 / (1 - s))``."""
    return math.sqrt(1 / (1 - check_sparsity(sparsity)))


def parallel_branches(sparsity: float) -> float:
    """Sparse-Parallel: ``1 / (1 - s)`` sparse branches, summed."""
    return 1 / (1 - check_sparsity(sparsity))


def factorized_size(num_inputs: int, num_outputs: int, sparsity: float) -> float:
    """Sparse-Factorized: inner size of two sparse factors in place of one layer."""
    area = _check_size("num_inputs", num_inputs) * _check_size("num_outputs", num_outputs)
    return area / ((num_inputs + num_outputs) * (1 - check_sparsity(sparsity)))


def doped_rank(num_inputs: int, num_outputs: int, sparsity: float) -> float:
    """Sparse-Doped: rank of the dense low-rank part beside the sparse layer."""
    area = _check_size("num_inputs", num_inputs) * _check_size("num_outputs", num_outputs)
    return check_sparsity(sparsity) * area / (num_inputs + num_outputs)


def round_size(size: float, multiple: int = 1) -> int:
    """The one rounding rule of all families: the nearest multiple, halves up, at least one."""
    return max(1, math.floor(size / multiple + 0.5)) * multiple


def widen(key: str, width: int, factor: float, *, multiple: int = 1, why: str = "") -> int:
    """A width of a config, ``factor`` times as large and as legal: a multiple of ``why``."""
    if width % multiple:
        raise ValueError(f"{key} is {width}, but must be a multiple of {why} = {multiple}")
    return round_size(factor * width, multiple)
