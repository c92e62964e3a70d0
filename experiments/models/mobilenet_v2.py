"""MobileNetV2 of transformers, built from a config (Sandler et al. 2018).

Its stem halves the resolution. On 32 x 32 images an ``output_stride`` of 8 leaves 4 x 4 positions,
where the usual 32 would leave one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import PositiveFloat, PositiveInt

from experiments.strict import Strict

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TASK = "vision"


class Config(Strict):
    """Sizes of the network."""

    depth_multiplier: PositiveFloat = 1.0
    depth_divisible_by: PositiveInt = 8
    output_stride: Literal[8, 16, 32] = 32
    dropout: float = 0.2


def build(
    config: Config, *, classes: Sequence[str], num_channels: int, image_size: int
) -> PreTrainedModel:
    """A randomly initialised classifier; draws from torch's global generator.

    Args:
        image_size: pixels per side; the network takes any, FLOPs are counted at this one.
    """
    from transformers.models.mobilenet_v2.configuration_mobilenet_v2 import MobileNetV2Config

    from experiments.models._networks import TrainableMobileNetV2

    return TrainableMobileNetV2(
        MobileNetV2Config(
            num_channels=num_channels,
            image_size=image_size,
            depth_multiplier=config.depth_multiplier,
            depth_divisible_by=config.depth_divisible_by,
            min_depth=config.depth_divisible_by,
            output_stride=config.output_stride,
            classifier_dropout_prob=config.dropout,
            tf_padding=False,
            id2label=dict(enumerate(classes)),
            label2id={name: label for label, name in enumerate(classes)},
        )
    )
