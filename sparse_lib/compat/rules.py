"""The rules of other libraries, under the names that ``compat`` arguments take."""

from __future__ import annotations

import numpy as np

from sparse_lib.checks import check_fraction
from sparse_lib.rules import Rules, check_numel, register


def truncated_count(sparsity: float, numel: int) -> int:
    """``(1 - sparsity) * numel`` in float32, cut to an integer (95% of 10 leaves 0)."""
    value = check_fraction(sparsity, "sparsity")
    check_numel(numel)
    return int((np.float32(1) - np.float32(value)) * np.float32(numel))


CSTORCH = register(
    Rules(
        name="cstorch-2.10",
        count=truncated_count,
        starts_dense=True,
        meets_target=False,
        may_empty=True,
        lists_repeat=True,
        cosine_returns=True,
        distributions=("uniform",),
    )
)
"""The rules of cerebras-pytorch 2.10."""
