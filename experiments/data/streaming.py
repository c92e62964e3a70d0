"""Text of the hub that no memory holds: documents come one after another, from disk or the hub."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from experiments.data.base import SPLITS, Dataset, MissingData, Source, Texts
from experiments.data.hub import fetch, located, reading
from experiments.data.mirror import Layout, missing_rows

#: Documents that a tokenizer is trained on.
SAMPLE = 200_000


class Documents:
    """The documents of a split; each pass reads them again.

    Args:
        name: Of the dataset, for messages.
        place: Hub id, or where it lies on this machine.
        split: Name of the split.
        limit: Documents at most.
    """

    def __init__(self, name: str, place: str | Layout, split: str, limit: int | None) -> None:
        self.name, self.place, self.split, self.limit = name, place, split, limit
        self.path = place if isinstance(place, str) else str(place.folder)
        self._count: int | None = None

    def __iter__(self) -> Iterator[str]:
        from datasets import load_dataset

        count = 0
        with reading(self.name, self.path):
            if isinstance(self.place, str):
                rows = load_dataset(self.place, split=self.split, streaming=True)
            else:
                rows = self.place.load(None, split=self.split, streaming=True)
            for row in rows:
                if "text" not in row:
                    known = ", ".join(row)
                    raise MissingData(f"{self.name}: {self.path} has no column 'text', but {known}")
                document = row["text"].strip()
                if not document:
                    continue
                if count == self.limit:
                    break
                count += 1
                yield document
        self._count = count

    def __len__(self) -> int:
        """Documents of the last whole pass; the first call may make one."""
        if self._count is None:
            for _ in self:
                pass
        assert self._count is not None
        return self._count


@dataclass(frozen=True)
class StreamedTexts(Texts):
    """Splits of `Documents`, known by where they come from and not by their text.

    Attributes:
        version: Of the files that are read.
    """

    version: str = ""

    def digest(self) -> str:
        """Return the SHA-256 of what is read, and of its version."""
        known = [(s, d.path, d.limit) for s, d in self.splits.items()]  # type: ignore[attr-defined]
        return hashlib.sha256(repr([known, self.version]).encode()).hexdigest()

    def sample(self) -> Iterable[str]:
        """The first documents of the training split."""
        return islice(self.splits["train"], SAMPLE)


def streamed_dataset(
    name: str, hub_id: str, *, license: str, num_train: int | None = None
) -> Dataset:
    """Describe a text dataset that is too large for a memory.

    Args:
        name: Name used in studies.
        hub_id: "<owner>/<name>" on the hub and below the mirror root.
        license: Licence as published.
        num_train: The first so many training documents; None takes all.
    """

    def missing(source: Source) -> str | None:
        return missing_rows(name, hub_id, None, source)

    def read(source: Source) -> Texts:
        found = located(name, hub_id, None, source)
        limits = {"train": num_train}
        splits: Any = {
            split: Documents(name, found or hub_id, split, limits.get(split)) for split in SPLITS
        }
        version = _on_hub(hub_id) if found is None else _on_disk(found.folder)
        return StreamedTexts(splits, {"hub_id": hub_id}, version=version)

    taken = f"the first {num_train:,} training documents, the rest " if num_train else ""
    return Dataset(
        name=name,
        license=license,
        source=hub_id,
        splits=f"{taken}as published",
        read=read,
        missing=missing,
        fetch=partial(fetch, hub_id),
    )


def _on_hub(hub_id: str) -> str:
    """The commit of a dataset's repository."""
    from huggingface_hub import HfApi

    with reading(hub_id, hub_id):
        return str(HfApi().dataset_info(hub_id).sha)


def _on_disk(folder: Path) -> str:
    """Names, sizes and times of a dataset's files."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    facts = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr(facts).encode()).hexdigest()
