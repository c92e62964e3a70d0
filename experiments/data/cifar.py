"""CIFAR-100 by hub id (Krizhevsky, 2009): 32 x 32 colour images of 100 classes.

Training and validation images are put in the order of the hashes of their pixels, and so is the
choice of the validation images, so that a mirror and the hub, which differ in order, are prepared
alike.
"""

import hashlib
from typing import TYPE_CHECKING, Any

from experiments.data.base import ImageDataset, Images, Source, Split
from experiments.data.hub import load_rows, missing_rows

if TYPE_CHECKING:
    import numpy as np

NAME, HUB_ID, CONFIG = "cifar100", "uoft-cs/cifar100", "cifar100"
HUB_SPLITS = ("train", "test")
#: One training image in so many is held out for validation, from every class alike.
HELD_OUT = 10
# The hub spells one class "cra".
CLASSES = """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab
crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard
lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout
tulip turtle wardrobe whale willow_tree wolf woman worm""".split()


def _missing(source: Source) -> str | None:
    return missing_rows(NAME, HUB_ID, CONFIG, source, HUB_SPLITS)


def _read(source: Source, num_images: int | None) -> Images:
    rows = load_rows(NAME, HUB_ID, CONFIG, ["img", "fine_label"], source, HUB_SPLITS)
    train, test = (_split(rows[split]) for split in HUB_SPLITS)
    train, validation = hold_out(train)
    train = Split(train.pixels[:num_images], train.labels[:num_images])
    splits = {"train": train, "validation": validation, "test": test}
    return Images(splits, CLASSES, {"hub_id": HUB_ID, "config": CONFIG})


def _split(rows: dict[str, list[Any]]) -> Split:
    """Images as arrays, in the order of their pixels' hashes."""
    import numpy as np

    pixels = np.stack([np.asarray(image.convert("RGB"), np.uint8) for image in rows["img"]])
    labels = np.asarray(rows["fine_label"], np.int64)
    digests = [hashlib.sha256(image.tobytes()).digest() for image in pixels]
    order = sorted(range(len(labels)), key=lambda i: (digests[i], labels[i]))
    return Split(np.ascontiguousarray(pixels[order].transpose(0, 3, 1, 2)), labels[order])


def hold_out(train: Split) -> tuple[Split, Split]:
    """Split off the first tenth of each class; both parts keep their order."""
    import numpy as np

    held = np.zeros(len(train), dtype=bool)
    for label in np.unique(train.labels):
        places = np.flatnonzero(train.labels == label)
        held[places[: len(places) // HELD_OUT]] = True
    return _where(train, ~held), _where(train, held)


def _where(split: Split, chosen: "np.ndarray") -> Split:
    return Split(split.pixels[chosen], split.labels[chosen])


DATASETS = (
    ImageDataset(
        name=NAME,
        license="unknown; free for research as published by the University of Toronto",
        source=HUB_ID,
        splits="test as published; a tenth of each training class held out for validation",
        read=_read,
        missing=_missing,
    ),
)
