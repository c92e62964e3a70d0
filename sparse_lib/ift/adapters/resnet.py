"""ResNet, basic and bottleneck blocks: the width of every stage grows, the stem's outputs too."""

from __future__ import annotations

from typing import Any

from sparse_lib.ift.sizes import widen

BASE = "ResNetPreTrainedModel"


def widen_config(config: Any, factor: float) -> None:
    """Widths become whole numbers; multiples of 4 with bottlenecks, which divide them by 4."""
    multiple = 4 if config.layer_type == "bottleneck" else 1
    # An identity shortcut needs the stem's width to round as the first stage's does.
    stem = multiple if config.embedding_size % multiple == 0 else 1
    config.embedding_size = widen("embedding_size", config.embedding_size, factor, multiple=stem)
    config.hidden_sizes = [
        widen("hidden_sizes", width, factor, multiple=multiple, why="a bottleneck's reduction")
        for width in config.hidden_sizes
    ]
