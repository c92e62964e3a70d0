"""Vision transformer of transformers, built from a config (Dosovitskiy et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TASK = "vision"


class Config(BaseModel):
    """Sizes of the network; ViT-B/16 has 768, 3072, 12, 12 and 16."""

    model_config = ConfigDict(extra="forbid")

    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_layers: PositiveInt
    num_heads: PositiveInt
    patch_size: PositiveInt = Field(description="pixels per side")

    @model_validator(mode="after")
    def heads_divide_width(self) -> Config:
        """Each head has as many channels."""
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size is {self.hidden_size}; it must be a multiple of "
                f"num_heads = {self.num_heads}"
            )
        return self


def build(
    config: Config, *, classes: Sequence[str], num_channels: int, image_size: int
) -> PreTrainedModel:
    """A randomly initialised classifier; draws from torch's global generator.

    Args:
        config: sizes.
        classes: names of the classes.
        num_channels: of the images.
        image_size: pixels per side, a multiple of the patch's.
    """
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            patch_size=config.patch_size,
            image_size=image_size,
            num_channels=num_channels,
            id2label=dict(enumerate(classes)),
            label2id={name: label for label, name in enumerate(classes)},
        )
    )
