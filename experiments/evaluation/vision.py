"""Evaluation of an image classifier by the metrics that a suite names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.data import verify
from experiments.data.base import SPLITS
from experiments.data.files import read_meta
from experiments.errors import UserError
from experiments.evaluation import metrics
from experiments.evaluation.exported import read_model, skipping
from experiments.evaluation.files import hash_files, scored_once
from experiments.evaluation.outputs import Images
from experiments.evaluation.suite import ImageSuite, load_suite, suite_code_hash

if TYPE_CHECKING:
    from torch import nn


def evaluate(
    model_dir: Path,
    data_dir: Path | None,
    suite: str,
    *,
    out: Path,
    cache: Path | None = None,
    mirror: Path | None = None,
) -> dict[str, Any]:
    """Score a classifier as `experiments.evaluation.model.evaluate_model` says; all images are in
    ``data_dir``, so ``mirror`` is not used.
    """
    settings = load_suite(suite, ImageSuite)
    if data_dir is None:
        raise UserError(f"suite {settings.name} scores images of prepared data; name their folder")
    verify(data_dir)
    files = [data_dir / f"{s}.{part}.npy" for s in SPLITS[1:] for part in ("pixels", "labels")]
    hashes = {
        "suite_hash": settings.hash,
        "data_hash": read_meta(data_dir)["hash"],
        "files_hash": hash_files(data_dir, files),
        "code_hash": suite_code_hash(settings, Path(__file__)),
    }
    return scored_once(
        model_dir,
        settings.name,
        hashes,
        lambda: [*_scores(model_dir, data_dir, settings, hashes["data_hash"])],
        out=out,
        cache=cache,
    )


def load_classifier(model_dir: Path) -> nn.Module:
    """An exported classifier in evaluation mode, transformed by Sparse-IFT or not."""
    from transformers import AutoModelForImageClassification

    from experiments.models import _networks  # noqa: F401  registers its classes

    return read_model(model_dir, AutoModelForImageClassification)


def _scores(
    model_dir: Path, data_dir: Path, suite: ImageSuite, data_hash: str
) -> Iterator[dict[str, Any]]:
    """All scores in the form of eval.json, split by split."""
    import torch

    from experiments.data import load
    from experiments.data.images import ImageFolder
    from experiments.tasks.vision import normalise

    torch.backends.cudnn.allow_tf32 = False  # which torch uses for convolutions by default
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = getattr(torch, suite.dtype)
    images = load(data_dir)
    if not isinstance(images, ImageFolder):
        raise UserError(f"{data_dir} holds no images, so {model_dir} cannot classify them")
    splits = {name: images.split(name) for name in suite.splits}
    model = skipping(load_classifier(model_dir).to(device=device, dtype=dtype), suite.execution)
    num_labels = getattr(model.config, "num_labels", None)
    if num_labels != len(images.meta["classes"]):
        raise UserError(
            f"{model_dir} tells {num_labels} classes apart, but {data_dir} has "
            f"{len(images.meta['classes'])}"
        )
    size = getattr(model.config, "image_size", images.meta["image_size"])
    channels = getattr(model.config, "num_channels", images.meta["num_channels"])
    size = max(size) if isinstance(size, (list, tuple)) else size
    found = [images.meta["image_size"], images.meta["num_channels"]]
    if [size, channels] != found:
        raise UserError(
            f"{model_dir} takes images of {size} pixels and {channels} channels, but those of "
            f"{data_dir} have {found[0]} and {found[1]}"
        )
    for name, split in splits.items():
        parts = []
        for first in range(0, len(split), suite.batch_size):
            last = min(first + suite.batch_size, len(split))
            pixels = torch.from_numpy(split.pixels[first:last].copy())
            with torch.no_grad():
                inputs = normalise(pixels, images.meta).to(device=device, dtype=dtype)
                parts.append(model(pixel_values=inputs).logits.double().cpu().numpy())
        outputs = Images(np.concatenate(parts), split.labels, images.meta["classes"])
        for row in metrics.rows(outputs, suite.metrics, task="images"):
            yield row | suite.facts(name, data_hash, None)
