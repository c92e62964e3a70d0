"""Decisions in which libraries differ, as one object that the rest of the library asks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparse_lib.checks import check_fraction


def exact_count(sparsity: float, numel: int) -> int:
    """``floor((1 - sparsity) * numel + 1/2)`` in exact arithmetic, at least 1 unless sparsity is 1.

    The sparsity is read as the decimal it prints as, so that 90% of 1000 leaves 100 and not the 99
    of binary floating point. ValueError if an argument is out of range.
    """
    value = check_fraction(sparsity, "sparsity")
    check_numel(numel)
    count = math.floor((1 - _as_printed(sparsity)) * numel + Fraction(1, 2))
    floor = 1 if value < 1 and numel > 0 else 0
    return max(count, floor)


def check_numel(numel: int) -> None:
    """Raise ValueError if a number of weights is negative."""
    if numel < 0:
        raise ValueError(f"numel must be at least 0, not {numel}")


def _as_printed(value: Any) -> Fraction:
    # A float32 prints as the decimal its user meant, which its double does not.
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        value = (value if value.dtype == torch.float64 else value.float()).numpy()[()]
    return Fraction(str(value if isinstance(value, np.floating) else float(value)))


@dataclass(frozen=True)
class Rules:
    """The decisions of a library; the defaults are this one's.

    Attributes:
        name: Value of ``compat`` that stands for these rules, None for this library's.
        count: ``count(sparsity, numel)``, the number of weights that stay of ``numel``.
        starts_dense: Whether first masks are dense where step 0 is no update step.
        meets_target: Whether `sparse_lib.DropAndGrow` drops more than ``drop_fraction``
            where a rising sparsity asks for it.
        may_empty: Whether global pruning may take all weights of a tensor.
        lists_repeat: Whether a list of values starts again after its last one.
        cosine_returns: Whether a cosine schedule comes back up after ``half_period``.
        distributions: Names of the distributions there are; None means all.
    """

    name: str | None = None
    count: Callable[[float, int], int] = exact_count
    starts_dense: bool = False
    meets_target: bool = True
    may_empty: bool = False
    lists_repeat: bool = False
    cosine_returns: bool = False
    distributions: tuple[str, ...] | None = None


EXACT = Rules()
"""The rules of this library."""

_REGISTRY: dict[str | None, Rules] = {None: EXACT}


def register(rules: Rules) -> Rules:
    """Let ``compat`` arguments name these rules; returns them."""
    _REGISTRY[rules.name] = rules
    return rules


def rules_of(compat: str | Rules | None) -> Rules:
    """The rules that a ``compat`` argument names, or is; ValueError if there are none."""
    if isinstance(compat, Rules):
        return compat
    if not (compat is None or isinstance(compat, str)) or compat not in _REGISTRY:
        raise ValueError(f"compat must be {' or '.join(map(repr, _REGISTRY))}, not {compat!r}")
    return _REGISTRY[compat]
