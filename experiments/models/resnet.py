"""ResNet of transformers, built from a config (He et al. 2016; stride in the 3 x 3 convolution)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import PositiveInt, model_validator

from experiments.errors import UserError
from experiments.strict import Strict

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TASK = "vision"


class Config(Strict):
    """Sizes of the network.

    ResNet-18 has depths 2, 2, 2, 2, ResNet-34 and 50 have 3, 4, 6, 3; the widths of 18 and 34 are
    64, 128, 256, 512, those of 50 (bottleneck) 256, 512, 1024, 2048; the stem's is 64.
    """

    depths: list[PositiveInt]
    hidden_sizes: list[PositiveInt]
    embedding_size: PositiveInt
    layer_type: Literal["basic", "bottleneck"] = "basic"
    stem: Literal["cifar", "imagenet"] = "cifar"
    downsample_in_first_stage: bool = False

    @model_validator(mode="after")
    def one_width_per_stage(self) -> Config:
        """Each stage has a depth and a width; a bottleneck divides its width by 4."""
        if len(self.depths) != len(self.hidden_sizes):
            raise UserError(
                f"hidden_sizes is {self.hidden_sizes}; it must have one width for each of the "
                f"{len(self.depths)} depths"
            )
        for width in self.hidden_sizes:
            if self.layer_type == "bottleneck" and width % 4:
                raise UserError(f"hidden_sizes holds {width}; bottlenecks need multiples of 4")
        return self


def build(
    config: Config, *, classes: Sequence[str], num_channels: int, image_size: int
) -> PreTrainedModel:
    """A randomly initialised classifier; draws from torch's global generator.

    Args:
        image_size: pixels per side; the network takes any, FLOPs are counted at this one.
    """
    from experiments.models import _networks as networks

    small = config.stem == "cifar"
    settings = (networks.CifarResNetConfig if small else networks.ResNetConfig)(  # type: ignore[call-arg]
        num_channels=num_channels,
        embedding_size=config.embedding_size,
        hidden_sizes=config.hidden_sizes,
        depths=config.depths,
        layer_type=config.layer_type,
        downsample_in_first_stage=config.downsample_in_first_stage,
        id2label=dict(enumerate(classes)),
        label2id={name: label for label, name in enumerate(classes)},
        image_size=image_size,
    )
    if small:
        return networks.CifarResNetForImageClassification(settings)
    return networks.TrainableResNet(settings)
