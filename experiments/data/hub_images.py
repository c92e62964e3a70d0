"""Image datasets by hub id, read like the texts of `experiments.data.hub`.

Images are put in the order of the hashes of their pixels, and so is the choice of those held out,
so that a mirror and the hub, which may differ in order, are prepared alike.
"""

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from experiments.data.base import ImageDataset, Images, MissingData, Source, Split
from experiments.data.hub import fetch, load_rows, missing_rows, reading

if TYPE_CHECKING:
    import numpy as np

PUBLISHED = ("train", "test")
#: One training image in so many is held out.
HELD_OUT = 10


def hub_images(
    name: str,
    hub_id: str,
    *,
    config: str | None = None,
    license: str,
    size: int,
    classes: Sequence[str],
    image: str = "image",
    label: str = "label",
) -> ImageDataset:
    """Describe a dataset of colour images by its hub id, with the splits train and test.

    A tenth of each training class is held out for validation.

    Args:
        hub_id: "<owner>/<name>" on the hub and below the mirror root.
        size: Pixels per side of all images.
        classes: Names of the classes, in the order of their labels.
    """

    def read(source: Source, num_images: int | None) -> Images:
        import numpy as np

        rows = load_rows(name, hub_id, config, [image, label], source, PUBLISHED)
        found = {}
        for split in PUBLISHED:
            with reading(name, hub_id):
                pixels = [np.asarray(each.convert("RGB"), np.uint8) for each in rows[split][image]]
            shapes = {each.shape for each in pixels} - {(size, size, 3)}
            labels = rows[split][label]
            if shapes or not {*labels} <= {*range(len(classes))}:
                found_sizes = sorted({max(shape[:2]) for shape in shapes}) or [size]
                raise MissingData(
                    f"{name}: the {split} split of {hub_id} has images of {found_sizes} pixels "
                    f"and labels up to {max(labels)}, but {size} pixels and labels below "
                    f"{len(classes)} are declared."
                )
            found[split] = _in_order(pixels, labels)
        train, found["validation"] = hold_out(found["train"])
        found["train"] = Split(train.pixels[:num_images], train.labels[:num_images])
        return Images(found, list(classes), {"hub_id": hub_id, "config": config})

    return ImageDataset(
        name=name,
        license=license,
        source=hub_id,
        splits="test as published; a tenth of each training class held out for validation",
        read=read,
        missing=partial(missing_rows, name, hub_id, config),
        fetch=partial(fetch, hub_id, config),
        declared={"classes": [*classes], "num_channels": 3, "image_size": size},
    )


def _in_order(pixels: "Sequence[np.ndarray]", labels: Sequence[int]) -> Split:
    """Images (S, S, C) and labels as one split, in the order of the images' hashes."""
    import numpy as np

    digests = [hashlib.sha256(image.tobytes()).digest() for image in pixels]
    order = sorted(range(len(labels)), key=lambda i: (digests[i], labels[i]))
    stacked = np.stack(pixels)[order].transpose(0, 3, 1, 2)
    return Split(np.ascontiguousarray(stacked), np.asarray(labels, np.int64)[order])


def hold_out(train: Split) -> tuple[Split, Split]:
    """Split off the first tenth of each class; both parts keep their order."""
    import numpy as np

    held = np.zeros(len(train), dtype=bool)
    for label in np.unique(train.labels):
        places = np.flatnonzero(train.labels == label)
        held[places[: len(places) // HELD_OUT]] = True
    rest, head = (Split(train.pixels[part], train.labels[part]) for part in (~held, held))
    return rest, head
