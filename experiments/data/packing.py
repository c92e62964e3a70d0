"""Token files: one flat uint16 array per split, each document followed by the end of text."""

import json
import os
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from experiments.data.base import END_OF_TEXT
from experiments.errors import UserError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BATCH = 512


def write_tokens(documents: Iterable[str], tokenizer: "Tokenizer", path: Path) -> int:
    """Write the tokens of all documents, replacing `path` only when complete.

    Args:
        tokenizer: At most 65536 tokens.
        path: File of little-endian uint16 tokens.

    Returns:
        Number of tokens, one end of text per document included.
    """
    end = tokenizer.token_to_id(END_OF_TEXT)
    num_tokens = 0
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        rest = iter(documents)
        while batch := list(islice(rest, BATCH)):
            for encoding in tokenizer.encode_batch(batch):
                tokens = np.array([*encoding.ids, end], dtype="<u2")
                file.write(tokens.tobytes())
                num_tokens += len(tokens)
    os.replace(partial, path)
    return num_tokens


def read_tokens(path: Path) -> np.memmap:
    """Map a token file, shape (number of tokens,), dtype uint16, read-only.

    Raises:
        UserError: If the file is empty or holds half a token.
    """
    size = path.stat().st_size
    if not size or size % 2:
        raise UserError(f"{path} has {size} bytes, which are no tokens of two bytes each")
    return np.memmap(path, dtype="<u2", mode="r")


def write_texts(documents: Iterable[str], path: Path) -> None:
    """Write documents as JSON lines `{"text": ...}`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for document in documents:
            file.write(json.dumps({"text": document}, ensure_ascii=False) + "\n")
