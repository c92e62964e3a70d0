"""Datasets, their splits, and where they are looked for."""

import lzma
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TextIO

from experiments.errors import UserError

if TYPE_CHECKING:
    import numpy as np

SPLITS = ("train", "validation", "test")
END_OF_TEXT = "<|endoftext|>"
#: Files that travel with the repository, compressed by xz.
EMBEDDED = Path(__file__).parent / "embedded"
#: Sizes of a trained vocabulary: 256 bytes and the end of text at least; tokens are two bytes.
MIN_VOCABULARY, MAX_VOCABULARY = 257, 2**16


class MissingData(UserError):
    """A dataset is neither installed, mirrored nor reachable; the message is one sentence."""


@contextmanager
def opened(name: str) -> Iterator[TextIO]:
    """Open one of the files that travel with the repository, as UTF-8 text.

    Args:
        name: Its path below `embedded/`, without ``.xz``.

    Raises:
        MissingData: If it is missing, cut short or no xz file.
    """
    path = EMBEDDED / f"{name}.xz"
    try:
        with lzma.open(path, "rt", encoding="utf-8", newline="") as file:
            yield file
    except (OSError, EOFError, UnicodeDecodeError, lzma.LZMAError) as error:
        raise MissingData(
            f"{path} is missing or damaged ({error}): restore it with `git checkout`"
        ) from error


@dataclass(frozen=True)
class Source:
    """Places in which data may be looked for.

    Attributes:
        mirror: Folder that holds `<hub id>` folders, or None.
        offline: Whether the hub must not be asked.
    """

    mirror: Path | None = None
    offline: bool = True


@dataclass(frozen=True)
class Texts:
    """The documents of a dataset.

    Attributes:
        splits: Documents of each split, in their fixed order.
        extras: Rows of further JSON Lines files of the dataset, by file name; our own lm-eval
            tasks name the files that they read.
    """

    splits: Mapping[str, list[str]]
    meta: Mapping[str, Any] = field(default_factory=dict)
    extras: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Dataset:
    """One entry of the registry, which holds texts.

    Attributes:
        read: Returns the documents; may take a minute, may raise `MissingData`.
        missing: Says cheaply, in one sentence, what `read` would lack; None if nothing.
        fetch: Downloads what `read` needs to where it looks; None where nothing is to fetch.
    """

    name: str
    license: str
    source: str
    splits: str
    read: Callable[..., Any]
    missing: Callable[[Source], str | None] = lambda source: None
    fetch: Callable[[], object] | None = None

    kind: ClassVar[str] = "text"


@dataclass(frozen=True)
class Split:
    """Images and what they show.

    Attributes:
        pixels: (N, C, H, W), uint8.
        labels: (N,), int64, each from 0 to the number of classes - 1.
    """

    pixels: "np.ndarray"
    labels: "np.ndarray"

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Images:
    """The images of a dataset.

    Attributes:
        splits: Train, validation and, where there is one, test, in this order.
    """

    splits: Mapping[str, Split]
    classes: list[str]
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ImageDataset(Dataset):
    """One entry of the registry that holds images.

    Attributes:
        read: Takes where to look and the number of training images (None: all there are); returns
            the images, or raises `MissingData`.
        flip: Whether a mirrored image shows the same class, so that training may mirror.
        declared: ``classes``, ``num_channels`` and ``image_size``, where they are known before
            the images are prepared; a transformation is then checked before anything trains.
    """

    flip: bool = True
    declared: Mapping[str, Any] = field(default_factory=dict)

    kind: ClassVar[str] = "images"
