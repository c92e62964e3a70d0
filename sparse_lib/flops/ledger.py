"""FLOPs that really run: torch's counter, and what kernels that are no torch operators report.

The closed forms of `sparse_lib.flops.model` say what a step should cost. This counts the
operators of a step, forward and backward, and agrees with them to the last digit, but for the input
gradient of a first layer whose input needs none.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch.utils.flop_counter import FlopCounterMode

from sparse_lib.flops.formulas import FORMULAS, experts_formulas

PARTS = ("forward", "input_gradient", "weight_gradient")
_active: list[Ledger] = []


class Ledger(FlopCounterMode):
    """``torch.utils.flop_counter.FlopCounterMode`` that also counts skipping kernels.

    A product, convolution or attention counts 2 FLOPs per multiply-add; dense operators multiply
    masked weights, too. What the context holds counts, so leave ``optimizer.step()`` out of it
    where that multiplies matrices (Muon). Layers that run as one operator (``nn.LSTM`` on a GPU)
    are not counted. ``get_flop_counts()`` tells FLOPs by module and ``get_table()`` prints them.

    Args:
        display: Whether to print a table at the end of the context.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(3, 5)
        >>> with Ledger() as ledger:
        ...     model(torch.ones(2, 3)).sum().backward()
        >>> ledger.executed_flops
        120
    """

    def __init__(self, *, display: bool = False) -> None:
        super().__init__(display=display, custom_mapping={**FORMULAS, **experts_formulas()})
        self.skipped_by_part: Counter[str] = Counter()

    @property
    def executed_flops(self) -> int:
        """FLOPs that ran."""
        return int(self.get_total_flops())

    @property
    def skipped_flops(self) -> int:
        """FLOPs of masked weights that kernels left out."""
        return self.skipped_by_part.total()

    @property
    def dense_flops(self) -> int:
        """FLOPs that would have run without skipping."""
        return self.executed_flops + self.skipped_flops

    def book(self, part: str, dense_flops: int, executed_flops: int) -> None:
        """Book the work of a kernel; see `record`."""
        for module in set(self.mod_tracker.parents):
            self.flop_counts[module][f"skipping {part}"] += executed_flops
        self.skipped_by_part[part] += dense_flops - executed_flops

    def __enter__(self) -> Ledger:
        self.skipped_by_part.clear()
        super().__enter__()
        _active.append(self)
        return self

    def __exit__(self, *error: Any) -> Any:
        _active.remove(self)
        return super().__exit__(*error)


def record(part: str, *, dense_flops: int, executed_flops: int) -> None:
    """Report the work of a kernel that is no torch operator to the ledgers that listen.

    ``part`` is one of ``PARTS``; ``dense_flops`` is what dense execution would have cost.
    """
    if part not in PARTS:
        raise ValueError(f"part is {part!r}; it must be one of {', '.join(PARTS)}.")
    for ledger in _active:
        ledger.book(part, dense_flops, executed_flops)


def is_ledger(mode: Any) -> bool:
    """True if a dispatch mode is that of a ledger."""
    return isinstance(getattr(mode, "counter", None), Ledger)
