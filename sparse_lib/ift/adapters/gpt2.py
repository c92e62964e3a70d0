"""GPT-2: residual and feed-forward width grow, the number of heads stays."""

from __future__ import annotations

from typing import Any

from sparse_lib.ift.sizes import widen

BASE = "GPT2PreTrainedModel"


def widen_config(config: Any, factor: float) -> None:
    """Widths become multiples of the number of heads: 768 becomes 1092 at sparsity 0.5.

    Raises:
        ValueError: If the number of heads does not divide the dense width.
    """
    heads = {"multiple": config.n_head, "why": "n_head"}
    if config.n_inner is not None:
        config.n_inner = widen("n_inner", config.n_inner, factor)
    config.n_embd = widen("n_embd", config.n_embd, factor, **heads)
