"""A run's model without memory, so that `check` meets what a training would meet."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from experiments import data as datasets
from experiments import models
from experiments.errors import UserError
from experiments.specs.run import RunSpec
from experiments.store import paths
from experiments.store.io import read_cache


class UnknownShape(UserError):
    """The shape of a batch is known only once the data are prepared; one sentence."""


def build(spec: RunSpec) -> nn.Module:
    """The model of a run on the meta device, transformed where the run transforms it.

    Raises:
        UnknownShape: If its sizes follow from data that are not prepared.
        ValueError: If the model cannot be transformed.
    """
    known = read_cache(paths.data(spec.data.label) / "meta.json")
    data: Any = spec.data
    if spec.task == "lm":
        size = {"sequence_length": data.context}
        vocabulary = known.get("vocab_size", data.vocab_size)
        keys: dict[str, Any] = {"vocab_size": vocabulary, "context": data.context, "eos_id": 0}
    elif spec.task == "vision":
        classes, channels, side = _images(data.name, known)
        size = {"image_size": side}
        names = [str(label) for label in range(classes)]
        keys = {"classes": names, "num_channels": channels, **size}
    else:
        raise UnknownShape(f"the shapes of task {spec.task!r} are known once its data are prepared")
    with torch.device("meta"):
        built = models.get(spec.model.name).build(spec.model.config, **keys)
        if spec.transform is not None:
            from sparse_lib import ift

            built, _, _ = ift.transform(built, **spec.transform.to_json(), **size)
    return built


def _images(name: str, known: dict[str, Any]) -> tuple[int, int, int]:
    if known:
        return len(known["classes"]), known["num_channels"], known["image_size"]
    size = getattr(datasets.get(name, "images"), "size", None)
    if size is None:
        raise UnknownShape(f"the images of {name} have a size that is known once they are prepared")
    return size
