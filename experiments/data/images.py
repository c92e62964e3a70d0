"""Image files: one array of uint8 pixels and one of labels per split, and the facts in meta.json.

A dataset of images is prepared in the place of one of text; `experiments.data` chooses by the kind
of the registered entry.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.data.base import SPLITS, ImageDataset, Images, Source, Split
from experiments.data.files import files_digest, seal
from experiments.errors import UserError


def prepare(
    dataset: ImageDataset, source: Source, *, out: Path, num_images: int | None = None
) -> dict[str, Any]:
    """Write `<split>.{pixels,labels}.npy` of each split and, last, `meta.json`.

    Args:
        num_images: Images of the training split; None takes all that the dataset has.

    Returns:
        The content of `meta.json`; the mean and standard deviation that pixels are normalised by
        are per channel, on the scale from 0 to 1: those of the training pixels, or 0 and 1.

    Raises:
        MissingData: If the images cannot be had.
        UserError: If there are fewer images than asked for, or a split has another form than
            `Split` says.
    """
    if num_images is not None and num_images < 1:
        raise UserError(f"data.num_images is {num_images}, but must be at least 1.")
    images = dataset.read(source, num_images)
    _check(dataset.name, images)
    found = len(images.splits["train"])
    if num_images is not None and found != num_images:
        raise UserError(
            f"data.num_images is {num_images}, but {dataset.name} has only {found} images to "
            "train on."
        )
    out.mkdir(parents=True, exist_ok=True)
    files = []
    splits = [split for split in SPLITS if split in images.splits]
    for split in splits:
        for part in ("pixels", "labels"):
            files.append(out / f"{split}.{part}.npy")
            partial = files[-1].with_suffix(".partial")
            with partial.open("wb") as file:
                np.save(file, getattr(images.splits[split], part))
            os.replace(partial, files[-1])
    pixels = images.splits["train"].pixels
    mean, std = _moments(pixels)
    meta = {
        "name": dataset.name,
        "kind": "images",
        "hash": files_digest(files),
        "classes": images.classes,
        "num_images": {split: len(images.splits[split]) for split in splits},
        "num_channels": int(pixels.shape[1]),
        "image_size": int(pixels.shape[2]),
        "mean": mean,
        "std": std,
        "flip": dataset.flip,
        "license": dataset.license,
        "source": dataset.source,
        "splits": dataset.splits,
        **images.meta,
    }
    seal(out, meta, files)
    return meta


def _check(name: str, images: Images) -> None:
    """Refuse arrays that no model could be trained on, in one sentence."""
    size = images.splits["train"].pixels.shape[1:]
    if len(size) != 3 or size[1] != size[2]:
        raise UserError(f"{name}: an image's shape is {size}, but must be (channels, size, size).")
    for split, part in images.splits.items():
        form, labels = (part.pixels.shape, str(part.pixels.dtype)), part.labels
        if form != ((len(part), *size), "uint8"):
            raise UserError(
                f"{name}: pixels of {split} are {form}, but must be {len(part), *size} of uint8."
            )
        if len(part) and not 0 <= labels.min() <= labels.max() < len(images.classes):
            raise UserError(
                f"{name}: labels of {split} go from {labels.min()} to {labels.max()}, but there "
                f"are {len(images.classes)} classes, counted from 0."
            )


def _moments(pixels: np.ndarray) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel, exact: counts of the 256 levels decide them."""
    levels = np.arange(256) / 255
    means, deviations = [], []
    for channel in range(pixels.shape[1]):
        share = np.bincount(pixels[:, channel].reshape(-1), minlength=256) / pixels[:, channel].size
        mean = float(share @ levels)
        means.append(mean)
        deviations.append(float(np.sqrt(share @ (levels - mean) ** 2)))
    return means, deviations


@dataclass(frozen=True)
class ImageFolder:
    """A prepared dataset of images."""

    folder: Path
    meta: dict[str, Any]

    def split(self, name: str) -> Split:
        """One split, its pixels mapped read-only."""
        if name not in self.meta["num_images"]:
            known = " and ".join(self.meta["num_images"])
            raise UserError(f"{self.folder} has no {name} split, but {known}")
        pixels = np.load(self.folder / f"{name}.pixels.npy", mmap_mode="r")
        return Split(pixels, np.load(self.folder / f"{name}.labels.npy"))
