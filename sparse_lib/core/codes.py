"""Optimizer states that stand for numbers by codes, as those of 8-bit optimizers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_ZERO = "_code_of_zero"


@dataclass(frozen=True)
class Codes:
    """A state in codes.

    Attributes:
        codes: Of the weight's shape.
        zero: The code of 0.
    """

    codes: Tensor
    zero: int

    @torch.no_grad()
    def clear(self, where: Tensor) -> None:
        """Set elements to the code of zero, in place."""
        self.codes.masked_fill_(where.to(self.codes.device), self.zero)


def codes_of(key: str, state: Tensor, states: Mapping[str, Any]) -> Codes | None:
    """The codes of a state; None if it is not known what they stand for.

    bitsandbytes has ``state1`` (uint8) with the 256 values in ``qmap1``; torchao a tensor class
    with ``codes`` and, for 8-bit integers, ``qmap``.

    Args:
        key: Name of the state.
        state: Of the weight's shape.
        states: All of the weight, by name.
    """
    values = getattr(state, "qmap", states.get(key.replace("state", "qmap")))
    codes: Tensor = getattr(state, "codes", state)
    if codes.shape != state.shape:  # several codes in a byte
        return None
    if codes.is_floating_point():  # float8: 0 stands for 0
        return Codes(codes.view(torch.uint8), 0)
    if not isinstance(values, Tensor) or codes.dtype is not torch.uint8:
        return None
    if (zero := getattr(values, _ZERO, None)) is None:
        zero = int(values.abs().argmin())
        zero = zero if float(values[zero]) == 0 else -1
        setattr(values, _ZERO, zero)  # once per table: on a GPU it is a wait
    return None if zero < 0 else Codes(codes, zero)
