"""Float32 matrix products by oneDNN, which torch brings but uses for convolutions and inference.

Torch multiplies float32 matrices by MKL, which on AMD processors uses AVX2 alone: on Zen 5 that is
half of what oneDNN reaches. A speed-up over dense is one over the faster of the two.
"""

from typing import Any

import torch


def available() -> bool:
    """Whether this torch has oneDNN, and its operator for one linear layer."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def product(source: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> torch.Tensor:
    """``source @ weight.T + bias``, float32 on the CPU, without a gradient of its own.

    ``source`` is `[tokens, inputs]` and ``weight`` `[outputs, inputs]`; both may be transposed
    views.
    """
    result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(source, weight, bias, "none", [], "")
    return result
