"""MobileNetV2: the multiplier of all widths grows; depthwise convolutions stay dense."""

from __future__ import annotations

from typing import Any

BASE = "MobileNetV2PreTrainedModel"


def widen_config(config: Any, factor: float) -> None:
    """Widths become multiples of ``depth_divisible_by`` by the model's own rule (nearest)."""
    config.depth_multiplier = config.depth_multiplier * factor
