"""Llama: residual and feed-forward width grow, the numbers of heads stay."""

from __future__ import annotations

from typing import Any

from sparse_lib.ift.sizes import widen

BASE = "LlamaPreTrainedModel"


def widen_config(config: Any, factor: float) -> None:
    """Widths become multiples of 2 x heads, since rotary embeddings turn pairs in each head.

    Raises:
        ValueError: If twice the number of heads does not divide the dense width.
    """
    heads = config.num_attention_heads
    is_width = config.head_dim * heads == config.hidden_size
    if is_width:
        pairs = {"multiple": 2 * heads, "why": "2 x num_attention_heads"}
        config.hidden_size = widen("hidden_size", config.hidden_size, factor, **pairs)
        config.head_dim = config.hidden_size // heads
    else:
        config.head_dim = widen("head_dim", config.head_dim, factor, multiple=2, why="a pair")
        config.hidden_size = widen(
            "hidden_size", config.hidden_size, factor, multiple=heads, why="num_attention_heads"
        )
    config.intermediate_size = widen("intermediate_size", config.intermediate_size, factor)
