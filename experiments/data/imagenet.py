"""ImageNet-1k by hub id (Russakovsky et al., 2015): 1,000 classes, kept at 256 x 256 pixels.

Images are resized to 256 pixels on the shorter side and cut to the middle square, once, so that
training reads arrays; that takes about 270 GB of disk. Some training images are held out for
validation; the published validation images, whose labels are known, are the test split.
"""

import tempfile
from functools import partial
from typing import TYPE_CHECKING, Any

from experiments.data.base import ImageDataset, Images, ImageSize, Source, Split
from experiments.data.hub import fetch, located, reading
from experiments.data.mirror import missing_rows

if TYPE_CHECKING:
    import numpy as np

NAME, HUB_ID = "imagenet", "ILSVRC/imagenet-1k"
HUB_SPLITS = ("train", "validation")
NUM_TRAIN, NUM_TEST, HELD_OUT = 1_281_167, 50_000, 10_000
SIZE = 256


def _missing(source: Source) -> str | None:
    return missing_rows(NAME, HUB_ID, None, source, HUB_SPLITS)


def _read(source: Source, num_images: int | None) -> Images:
    found = located(NAME, HUB_ID, None, source, HUB_SPLITS)
    with reading(NAME, HUB_ID if found is None else str(found.folder)):
        if found is None:
            from datasets import load_dataset

            train, test = (load_dataset(HUB_ID, split=s, streaming=True) for s in HUB_SPLITS)
        else:
            train, test = (found.load(None, split=s, streaming=True) for s in HUB_SPLITS)
        classes = list(train.features["label"].names)
        num_train = min(num_images or NUM_TRAIN, NUM_TRAIN - HELD_OUT)
        validation, train = take(train, HELD_OUT), take(train.skip(HELD_OUT), num_train)
        splits = {"train": train, "validation": validation, "test": take(test, NUM_TEST)}
    return Images(splits, classes, {"hub_id": HUB_ID})


def take(rows: Any, count: int, size: int = SIZE) -> Split:
    """The first images of a stream, in a temporary file that is gone with the array."""
    import numpy as np

    with tempfile.TemporaryFile() as file:
        pixels = np.memmap(file, np.uint8, "w+", shape=(count, 3, size, size))
    labels = np.empty(count, np.int64)
    found = 0
    for row in rows.take(count):
        pixels[found] = square(row["image"], size)
        labels[found] = row["label"]
        found += 1
    return Split(pixels[:found], labels[:found])


def square(image: Any, size: int) -> "np.ndarray":
    """The middle square of an image, (3, size, size)."""
    import numpy as np

    width, height = image.size
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    box = (left, top, left + side, top + side)
    resized = image.convert("RGB").resize((size, size), resample=2, box=box)
    return np.asarray(resized, np.uint8).transpose(2, 0, 1)


DATASETS = (
    ImageDataset(
        name=NAME,
        license="ImageNet terms of access: non-commercial research and education",
        source=HUB_ID,
        splits="published validation as test; the first 10,000 training images for validation",
        read=_read,
        missing=_missing,
        fetch=partial(fetch, HUB_ID),
        size=ImageSize(num_classes=1000, num_channels=3, image_size=SIZE),
    ),
)
