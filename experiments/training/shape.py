"""A run's model and batches without memory, so that `check` meets what a training would meet."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from experiments import data as datasets
from experiments import models
from experiments.errors import UserError
from experiments.specs.run import RunSpec
from experiments.store import paths


class UnknownShape(UserError):
    """What a batch looks like is known only once the data are prepared; one sentence."""


@dataclass(frozen=True, eq=False)
class Shape:
    """A model without memory, and what a batch of one task's data looks like.

    Attributes:
        model: On the meta device, transformed where the run transforms it.
        masked: What the transformation says of the masks.
        batch: Makes a batch of so many samples, as the task's loss takes it.
        input_size: ``sequence_length`` or ``image_size``.
        sizes: Elements by full parameter name.
    """

    model: nn.Module
    masked: dict[str, Any] | None
    batch: Callable[[int], Any]
    input_size: dict[str, Any]
    sizes: dict[str, int]


def shape_of(spec: RunSpec) -> Shape:
    """The shapes of a run; runs that share them share the answer."""
    transform = None if spec.transform is None else json.dumps(spec.transform.to_json())
    crop = getattr(spec.recipe, "resized_crop", None)
    keys = (spec.model.model_dump_json(), spec.data.model_dump_json())
    return _shape(spec.task, *keys, crop, transform, spec.data.label)


@functools.lru_cache(maxsize=64)
def _shape(
    task: str, model: str, data: str, crop: int | None, transform: str | None, label: str
) -> Shape:
    known: dict[str, Any] = {}
    if (meta := paths.data(label) / "meta.json").is_file():
        known = json.loads(meta.read_text())
    sizes, section = json.loads(model), json.loads(data)
    module = models.get(sizes.pop("name"))
    del sizes["label"]
    if task == "lm":
        length = section["context"]
        vocabulary = known.get("vocab_size", section["vocab_size"])
        size = {"sequence_length": length}
        keys: dict[str, Any] = {"vocab_size": vocabulary, "context": length, "eos_id": 0}

        def batch(samples: int) -> Any:
            return torch.zeros(samples, length + 1, dtype=torch.long)

    elif task == "vision":
        classes, channels, side = _images(section["name"], known)
        side = crop or side
        size = {"image_size": side}
        keys = {"classes": [str(label) for label in range(classes)], "num_channels": channels}
        keys["image_size"] = side

        def batch(samples: int) -> Any:
            pixels = torch.zeros(samples, channels, side, side)
            return pixels, torch.zeros(samples, dtype=torch.long)

    else:
        raise UnknownShape(
            f"the shapes of task {task!r} are known only where its data are prepared"
        )

    masked = None
    with torch.device("meta"):
        built = module.build(module.Config.model_validate(sizes), **keys)
        if transform is not None:
            from sparse_lib import ift

            built, masked, _ = ift.transform(built, **json.loads(transform), **size)
    elements = {name: parameter.numel() for name, parameter in built.named_parameters()}
    return Shape(built, masked, batch, size, elements)


def _images(name: str, known: dict[str, Any]) -> tuple[int, int, int]:
    if known:
        return len(known["classes"]), known["num_channels"], known["image_size"]
    size = getattr(datasets.get(name, "images"), "size", None)
    if size is None:
        raise UnknownShape(f"the images of {name} have a size that is known once they are prepared")
    return size
