"""Registry of datasets: `available` says what is missing, `prepare` makes files of tokens or
pixels, `load` reads them.

A dataset is one entry in the `DATASETS` of any file in this folder. Importing this package
imports no heavy dependency.
"""

import functools
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.data.base import (
    END_OF_TEXT,
    SPLITS,
    Dataset,
    ImageDataset,
    MissingData,
    Source,
    Texts,
)
from experiments.data.files import files_digest, hashed_files, read_meta, seal, verify
from experiments.errors import UserError, added, not_one_of

if TYPE_CHECKING:
    import numpy as np

    from experiments.data.images import ImageFolder

__all__ = [
    "Corpus", "MissingData", "available", "get", "load", "names", "prepare", "verify", "Texts",
]  # fmt: skip

MIRROR_VARIABLE = "SPARSE_MIRROR"


@functools.cache
def _datasets() -> tuple[dict[str, tuple[Dataset, Path]], list[UserError]]:
    """All entries by name, with the files that define them; and what is wrong with other files."""
    found, broken = dict[str, tuple[Dataset, Path]](), list[UserError]()
    for path in sorted(path for folder in __path__ for path in Path(folder).glob("*.py")):
        # The tools beside them take a second to import.
        if not re.search(r"^DATASETS\b.*=", path.read_text("utf-8"), re.MULTILINE):
            continue
        try:
            module = added(f"{__name__}.{path.stem}")
        except UserError as error:
            broken.append(error)
            continue
        for entry in module.DATASETS:
            if entry.name in found:
                raise UserError(f"dataset {entry.name!r} is defined twice.")
            found[entry.name] = entry, path
    return found, broken


def file_of(name: str) -> Path:
    """The file that defines a registered dataset."""
    return _datasets()[0][get(name).name][1]


def names() -> list[str]:
    """The names of all datasets."""
    return sorted(_datasets()[0])


def get(name: str, kind: str | None = None) -> Dataset:
    """A registered dataset.

    Args:
        kind: What it must hold, "text" or "images"; None allows both.

    Raises:
        UserError: If there is none of that name and kind, or a file is broken that may have it.
    """
    found, broken = _datasets()
    fitting = {n: entry for n, (entry, _) in found.items() if kind in (None, entry.kind)}
    if name not in fitting:
        for error in broken:
            raise error
        raise UserError(not_one_of("data.name", name, fitting, "experiments/data"))
    return fitting[name]


def available(name: str, mirror: Path | None = None, *, tokenizer: str | None = None) -> str | None:
    """Say what a dataset lacks to be prepared offline."""
    source = Source(mirror_root(mirror))
    problem = get(name).missing(source)
    if problem is None and tokenizer is not None:
        problem = get(tokenizer, "text").missing(source)
    return problem


def prepare(
    name: str,
    *,
    out: Path,
    vocab_size: int | None = None,
    tokenizer: str | None = None,
    num_images: int | None = None,
    mirror: Path | None = None,
    offline: bool = True,
) -> dict[str, Any]:
    """Write a dataset's files and facts.

    Args:
        out: Folder to write. Text: `train.bin`, `validation.bin`, `test.bin` (uint16),
            `tokenizer/`, `text/validation.jsonl`, `text/test.jsonl`; images: see
            `experiments.data.images.prepare`. Last, `meta.json`.
        vocab_size: For text: size of the BPE vocabulary, 257 to 65536.
        tokenizer: For text: name of another text dataset, for the tokenizer that preparing it
            with `vocab_size` makes.
        num_images: For images: how many to train on; None takes all that there are.

    Raises:
        MissingData: If the data cannot be had.
        UserError: If the name, the vocabulary size or the number of images is not allowed.
    """
    from experiments.data import images, packing

    dataset, source = get(name), Source(mirror_root(mirror), offline)
    if isinstance(dataset, ImageDataset):
        return images.prepare(dataset, source, out=out, num_images=num_images)
    if vocab_size is None:
        raise UserError(f"data.vocab_size is missing, but {name} is text and needs it.")
    texts = dataset.read(source)
    learned = texts if tokenizer is None else get(tokenizer, "text").read(source)
    built = packing.train_bpe(learned.splits["train"], vocab_size=vocab_size)
    shutil.rmtree(out / "tokenizer", ignore_errors=True)
    packing.save_tokenizer(built, out / "tokenizer")
    num_tokens = {
        split: packing.write_tokens(texts.splits.get(split, []), built, out / f"{split}.bin")
        for split in SPLITS
    }
    for split in ("validation", "test"):
        packing.write_texts(texts.splits.get(split, []), out / "text" / f"{split}.jsonl")
    for file_name, rows in texts.extras.items():
        (out / file_name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    meta = {
        "name": name,
        "hash": files_digest(hashed_files(out, {})),
        "vocab_size": built.get_vocab_size(),
        "eos_id": built.token_to_id(END_OF_TEXT),
        "num_tokens": num_tokens,
        "num_documents": {split: len(texts.splits.get(split, [])) for split in SPLITS},
        "license": dataset.license,
        "source": dataset.source,
        "splits": dataset.splits,
        **texts.meta,
    }
    written = [*hashed_files(out, {}), *(out / name for name in texts.extras)]
    written += [*(out / "tokenizer").iterdir(), *(out / "text").iterdir()]
    seal(out, meta, {*written})
    return meta


def load(out: Path) -> "Corpus | ImageFolder":
    """Open a prepared dataset: a `Corpus` of text or an `ImageFolder`.

    Raises:
        MissingData: If the folder holds no prepared dataset.
        ValueError: If its `meta.json` is damaged.
    """
    meta = read_meta(out)
    if meta.get("kind") == "images":
        from experiments.data.images import ImageFolder

        return ImageFolder(out, meta)
    return Corpus(out, meta)


@dataclass(frozen=True)
class Corpus:
    """A prepared dataset."""

    folder: Path
    meta: dict[str, Any]

    @property
    def tokenizer_dir(self) -> Path:
        """Folder that `AutoTokenizer.from_pretrained` loads."""
        return self.folder / "tokenizer"

    def tokens(self, split: str) -> "np.memmap":
        """All tokens of a split, shape (number of tokens,), dtype uint16, read-only."""
        from experiments.data import packing

        return packing.read_tokens(self.folder / f"{split}.bin")


def mirror_root(mirror: str | Path | None = None) -> Path | None:
    """The folder of hub datasets: the one given, else that of the variable SPARSE_MIRROR, if any.

    Raises:
        UserError: If it is no folder.
    """
    named = mirror or os.environ.get(MIRROR_VARIABLE)
    if named and not Path(named).expanduser().is_dir():
        raise UserError(f"mirror is {str(named)!r}, but must be a folder with <hub id> datasets")
    return Path(named).expanduser() if named else None
