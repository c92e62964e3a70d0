"""ResNet, basic and bottleneck blocks: the width of every stage grows, the stem's outputs too."""

from __future__ import annotations

from typing import Any

from sparse_lib.ift.sizes import widen

BASE = "ResNetPreTrainedModel"


def widen_config(config: Any, factor: float) -> None:
    """Widths become whole numbers; multiples of 4 with bottlenecks, which divide them by 4."""
    multiple = 4 if config.layer_type == "bottleneck" else 1
    legal: dict[str, Any] = {"multiple": multiple, "why": "the reduction of a bottleneck"}
    # The same rule for both, since an identity shortcut needs the first two to be equal.
    config.embedding_size = widen("embedding_size", config.embedding_size, factor, **legal)
    config.hidden_sizes = [
        widen("hidden_sizes", width, factor, **legal) for width in config.hidden_sizes
    ]
