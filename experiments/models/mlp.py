"""Multilayer perceptrons on images: LeNet-300-100 (LeCun et al. 1998) and the one of SET.

LeNet-300-100 has the hidden sizes 300 and 100 and ReLU; the network of Mocanu et al. 2018 for
CIFAR-10 has 4000, 1000 and 4000, SReLU and a dropout of 0.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

TASK = "vision"

#: Pixels on each side of a digit's box: MNIST centres digits of 20 pixels in images of 28.
BORDER = 4


class Config(BaseModel):
    """Sizes of the network."""

    model_config = ConfigDict(extra="forbid")

    hidden_sizes: list[PositiveInt] = Field(min_length=1)
    activation: Literal["relu", "srelu"] = "relu"
    dropout: float = Field(0.0, ge=0, lt=1)


def build(
    config: Config, *, classes: Sequence[str], num_channels: int, image_size: int
) -> PreTrainedModel:
    """A randomly initialised classifier; draws from torch's global generator.

    Args:
        config: sizes.
        classes: names of the classes.
        num_channels: of the images.
        image_size: pixels per side.
    """
    from experiments.models._networks import MLPConfig, MLPForImageClassification

    return MLPForImageClassification(
        MLPConfig(
            hidden_sizes=config.hidden_sizes,
            activation=config.activation,
            dropout=config.dropout,
            num_channels=num_channels,
            image_size=image_size,
            id2label=dict(enumerate(classes)),
            label2id={name: label for label, name in enumerate(classes)},
        )
    )


def facts(model: Any) -> dict[str, float]:
    """What a trained network has left, by its masks; empty for a dense one.

    A pixel without a weight is dropped. A unit without an incoming or without an outgoing weight
    is dead, and so is one whose weights all lead from or to dropped pixels and dead units
    (Evci et al. 2020, appendix B, whose code removes units from the first layer to the last once;
    here until nothing changes).

    Returns:
        ``inputs_kept``; ``border_dropped`` and ``centre_dropped``, shares of the pixels outside and
        inside of the digits' box; ``units_<i>_kept`` of each hidden layer; ``compressed_sparsity``
        of the weights between what is left; and ``kept_row_<r>``, the pixels of image row ``r``
        that are kept in any channel, as a number whose bit ``c`` is column ``c``.
    """
    import torch

    layers = model.linears
    found = [getattr(layer, "weight_mask", None) for layer in layers]
    if all(mask is None for mask in found):
        return {}
    masks = [
        torch.ones_like(layer.weight, dtype=torch.bool) if mask is None else mask.cpu()
        for layer, mask in zip(layers, found, strict=True)
    ]
    alive = _alive(masks)
    size, channels = model.config.image_size, model.config.num_channels
    pixels = alive[0].reshape(channels, size, size).any(0)
    place = torch.arange(size)
    inside = (place >= BORDER) & (place < size - BORDER)
    centre = inside[:, None] & inside[None, :]
    left = [
        mask[after][:, before] for mask, before, after in zip(masks, alive, alive[1:], strict=False)
    ]
    present, total = (sum(int(f(m)) for m in left) for f in (torch.count_nonzero, torch.numel))
    return {
        "inputs_kept": int(alive[0].sum()),
        "border_dropped": float((~pixels[~centre]).double().mean()),
        "centre_dropped": float((~pixels[centre]).double().mean()),
        **{f"units_{i}_kept": int(units.sum()) for i, units in enumerate(alive[1:-1], start=1)},
        "compressed_sparsity": 1.0 - present / total if total else 1.0,
        **{
            f"kept_row_{row:02}": sum(1 << c for c, kept in enumerate(line.tolist()) if kept)
            for row, line in enumerate(pixels)
        },
    }


def _alive(masks: list[torch.Tensor]) -> list[torch.Tensor]:
    """Which inputs, hidden units and outputs are on a way from an input to an output."""
    import torch

    alive = [torch.ones(masks[0].shape[1], dtype=torch.bool)]
    alive += [torch.ones(mask.shape[0], dtype=torch.bool) for mask in masks]
    while True:
        before = [int(units.sum()) for units in alive]
        for at, mask in enumerate(masks):
            used = mask & alive[at][None, :] & alive[at + 1][:, None]
            alive[at] &= used.any(0)
            if at + 1 < len(masks):
                alive[at + 1] &= used.any(1)
        if before == [int(units.sum()) for units in alive]:
            return alive
