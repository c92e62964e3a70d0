"""Starting values of optimizer states that are not the number 0.

8-bit optimizers have codes, one of which stands for 0; some states begin with another number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

_ZERO = "_code_of_zero"

#: By class and state, what a state begins with: a number, or the setting of its group that has it.
_STARTS: dict[str, dict[str, str | float]] = {
    "Rprop": {"step_size": "lr"},
    "Adagrad": {"sum": "initial_accumulator_value"},
    "RMSpropTF": {"square_avg": 1.0},  # of timm; what follows is of pytorch_optimizer
    "Yogi": {"exp_avg": "initial_accumulator", "exp_avg_sq": "initial_accumulator"},
    "VSGD": {"bg": "pbg2", "bhg": "pbhg2"},
    "Adai": {"beta1_prod": 1.0},
    "BSAM": {"s": 1.0},
    "DAdaptAdaGrad": {"alpha_k": 1e-6, "alphak": 1e-6},
}


def is_quantized(param: Tensor) -> bool:
    """Whether a parameter's zeros are codes: of integers, or of a class that can dequantize."""
    is_number = param.is_floating_point() or param.is_complex()
    return not is_number or type(param).dequantize is not Tensor.dequantize


@dataclass(frozen=True)
class Codes:
    """A state in which something else than 0 is that of a weight without a past.

    Attributes:
        codes: Of the weight's shape, or the rank's part of it.
        zero: What stands there in place of 0.
    """

    codes: Tensor
    zero: float | Tensor

    @torch.no_grad()
    def clear(self, where: Tensor) -> None:
        """Set elements to what stands in place of 0."""
        self.codes.masked_fill_(where.to(self.codes.device), self.zero)


def codes_of(key: str, state: Tensor, states: Mapping[str, Any]) -> Codes | None:
    """The codes of a state, by its name and all states of the weight; None if they are unknown.

    bitsandbytes has ``state1`` (uint8) with the 256 values in ``qmap1``; torchao a tensor class
    with ``codes`` and, for 8-bit integers, ``qmap``.
    """
    table = states.get(key.replace("state", "qmap")) if "state" in key else None
    values = getattr(state, "qmap", table)
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


def start_of(optimizer: Optimizer, key: str, param: Tensor) -> float | Tensor:
    """The value that a state of a parameter begins with, as Rprop's step sizes with the rate."""
    known = (_STARTS.get(c.__name__, {}) for c in type(optimizer).__mro__)
    start = next((starts[key] for starts in known if key in starts), 0.0)
    if not isinstance(start, str):
        return start
    groups = optimizer.param_groups
    own = next((g for g in groups if any(p is param for p in g["params"])), optimizer.defaults)
    return own.get(start, 0.0)
