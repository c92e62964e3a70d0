"""Image classification with SGD, after the recipe of the Sparse-IFT authors.

Their code (github.com/CerebrasResearch/Sparse-IFT) trains on CIFAR-100 with batch 128 for 200
epochs, Nesterov momentum 0.9, weight decay 5e-4 and rate 0.1, divided by 5 after epochs 60, 120 and
160; on ImageNet with batch 256 for 90 epochs, momentum 0.875, weight decay 2^-15, label smoothing
0.1 and a cosine from 0.256. Here norms and biases never decay, as in their ImageNet code.

Shape suffixes: B images, C channels, S pixels per side.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator

from experiments import data as datasets
from experiments import models, tasks
from experiments.errors import UserError

if TYPE_CHECKING:
    import torch

    from experiments.data.images import ImageFolder
    from experiments.specs.run import RunSpec

EVALUATION = "experiments.evaluation.vision"


class Data(tasks.Data):
    """A registered dataset of images."""

    num_images: PositiveInt = Field(description="images to train on")

    KIND = "images"

    @property
    def label(self) -> str:
        """Folder name under ``resources/data``."""
        return f"{self.name}-n{self.num_images}"


class Recipe(tasks.Recipe):
    """SGD on a number of epochs, with standard augmentation."""

    epochs: PositiveInt
    optimizer: Literal["sgd"] = "sgd"
    momentum: float = Field(0.9, ge=0, lt=1)
    nesterov: bool = True
    weight_decay: NonNegativeFloat = 5e-4
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    warmup: float = Field(0.0, ge=0, lt=1, description="share of the steps")
    schedule: Literal["cosine", "step"] = "cosine"
    milestones: list[Annotated[float, Field(gt=0, lt=1)]] = Field(
        [0.3, 0.6, 0.8], description="shares of the steps after which a step schedule goes down"
    )
    decay: float = Field(0.2, gt=0, lt=1, description="factor of a step schedule at a milestone")
    crop_padding: NonNegativeInt = Field(
        4, description="black pixels around an image, of which a random crop takes its size"
    )
    resized_crop: None = Field(None, description="part of the hashes of records")
    validation_images: PositiveInt = Field(
        2000, description="images of each pass on the way; the last pass takes the whole split"
    )

    BUDGET = "epochs"

    @model_validator(mode="after")
    def has_one_schedule(self) -> Self:
        """``stable`` is a schedule of its own."""
        if self.stable is not None and self.schedule != "cosine":
            said = f"schedule is {self.schedule!r}"
            raise UserError(f"{said}, but a recipe with stable has no other schedule")
        return self

    def num_steps(self, data: Data, batch_size: int) -> int:
        """As many steps as the epochs allow; an epoch may end within a batch."""
        steps = self.epochs * data.num_images // batch_size
        if steps < 1:
            raise UserError(
                f"recipe.batch_size is {batch_size}, but {self.epochs} epochs have only "
                f"{self.epochs * data.num_images} images"
            )
        return steps


def prepare(data: Data, *, out: Path, offline: bool) -> None:
    """Turn images into arrays."""
    datasets.prepare(data.name, out=out, num_images=data.num_images, offline=offline)


class Task(tasks.Task):
    """Shuffled, augmented images; cross-entropy with label smoothing."""

    unit = "images"
    recipe: Recipe

    def __init__(self, spec: RunSpec, data_dir: Path) -> None:
        super().__init__(spec, data_dir)
        self.images: ImageFolder = datasets.load(data_dir)  # type: ignore[assignment]
        self.meta = self.images.meta
        self.data = {"name": spec.data.name, "hash": self.meta["hash"]}
        self.units_per_step = self.batch_size
        self.input_size = {"image_size": self.meta["image_size"]}
        self._train = self.images.split("train")
        if not len(self._train) or not len(self.images.split("validation")):
            raise UserError(f"{data_dir} has no image to train on, or none to validate with")
        self._order = tasks.EpochOrder(len(self._train), seed=spec.seed)

    def build_model(self) -> torch.nn.Module:
        """The model with fresh weights from torch's global generator."""
        return models.get(self.spec.model.name).build(
            self.spec.model.config,
            classes=self.meta["classes"],
            num_channels=self.meta["num_channels"],
            image_size=self.meta["image_size"],
        )

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Images (B, C, S, S), augmented and normalised, and labels (B,) of a step (from 0)."""
        import torch

        first = step * self.batch_size
        chosen = [self._order[index] for index in range(first, first + self.batch_size)]
        pixels = torch.from_numpy(self._train.pixels[chosen])
        key = hashlib.sha256(f"augment:{self.spec.seed}:{step}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "big") >> 1)
        padding = self.recipe.crop_padding
        pixels = augment(pixels, generator, crop_padding=padding, flip=self.meta["flip"])
        return normalise(pixels, self.meta), torch.from_numpy(self._train.labels[chosen])

    def loss(
        self, model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        """Mean cross-entropy in nats, labels smoothed; a scalar."""
        from torch.nn.functional import cross_entropy

        logits = model(pixel_values=batch[0]).logits
        return cross_entropy(logits, batch[1], label_smoothing=self.recipe.label_smoothing)

    def validate(self, model: torch.nn.Module, *, full: bool) -> dict[str, float]:
        """Loss (nats, labels not smoothed) and top-1 accuracy on validation images."""
        import torch
        from torch.nn.functional import cross_entropy

        split = self.images.split("validation")
        count = len(split) if full else min(len(split), self.recipe.validation_images)
        device = next(model.parameters()).device
        loss, correct = 0.0, 0
        for first in range(0, count, 250):
            last = min(first + 250, count)
            pixels = torch.from_numpy(split.pixels[first:last].copy())
            labels = torch.from_numpy(split.labels[first:last]).to(device)
            logits = model(pixel_values=normalise(pixels, self.meta).to(device)).logits
            loss += cross_entropy(logits, labels, reduction="sum").item()
            correct += int((logits.argmax(1) == labels).sum())
        return {"loss": loss / count, "accuracy": correct / count}

    def learning_rate(self, step: int) -> float:
        """Rate of optimizer step ``step`` (from 0)."""
        recipe = self.recipe
        if recipe.schedule == "cosine" or step < recipe.warmup * recipe.steps:
            return super().learning_rate(step)
        passed = sum(step >= share * recipe.steps for share in recipe.milestones)
        return recipe.learning_rate * recipe.decay**passed

    def export(self, model: torch.nn.Module, folder: Path) -> None:
        """A folder that ``AutoModelForImageClassification`` loads.

        Layers that Sparse-IFT put in place of others are unknown to transformers;
        `experiments.evaluation.vision.load_classifier` puts them back.
        """
        tasks.save_pretrained(model, folder)


def augment(
    pixels: torch.Tensor, generator: torch.Generator, *, crop_padding: int, flip: bool
) -> torch.Tensor:
    """Pad and crop each image at random, and mirror half of them.

    Args:
        pixels: (B, C, S, S), any type.
    """
    import torch

    num, size = pixels.shape[0], pixels.shape[-1]
    places = torch.randint(2 * crop_padding + 1, (2, num, 1), generator=generator)
    rows, columns = places + torch.arange(size)
    if flip:
        mirrored = torch.rand(num, 1, generator=generator) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
    if not (crop_padding or flip):
        return pixels
    padded = torch.nn.functional.pad(pixels, (crop_padding,) * 4)
    image = torch.arange(num)[:, None, None, None]
    channel = torch.arange(pixels.shape[1])[None, :, None, None]
    # Indexing all dimensions gives the strides of a new tensor. Those of a view of one channel can
    # look like channels last too, which makes torch's CPU convolution write past its buffers.
    return padded[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


def normalise(pixels: torch.Tensor, meta: dict[str, Any]) -> torch.Tensor:
    """Pixels (B, C, S, S) from 0 to 255 as float32, by the training set's mean and deviation."""
    import torch

    mean, std = (torch.tensor(meta[key])[:, None, None] for key in ("mean", "std"))
    # Convolutions of colours stored last take a third less time on a CPU. One channel stays: its
    # strides fit both orders, which makes torch's CPU convolution write past its buffers.
    last = torch.channels_last if pixels.shape[1] > 1 else torch.contiguous_format
    return pixels.to(torch.float32, memory_format=last).mul_(1 / (255 * std)).sub_(mean / std)
