"""Tokenizers trained on a dataset, and token files: one flat uint16 array per split.

Each document is followed by the end of text. `AutoTokenizer` loads a tokenizer's folder.
"""

import json
import os
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from experiments.data.base import END_OF_TEXT, MAX_VOCABULARY, MIN_VOCABULARY
from experiments.errors import UserError

BATCH = 512


def train_bpe(documents: Iterable[str], *, vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE whose token 0 is the end of text.

    Args:
        vocab_size: Largest vocabulary; little text may give a smaller one.

    Raises:
        UserError: If `vocab_size` is not in 257..65536.
    """
    if not MIN_VOCABULARY <= vocab_size <= MAX_VOCABULARY:
        raise UserError(
            f"vocab_size is {vocab_size}, but must be in {MIN_VOCABULARY}..{MAX_VOCABULARY}."
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write a tokenizer as a Hugging Face folder."""
    folder.mkdir(parents=True, exist_ok=True)
    # `Tokenizer.save` raises a bare `Exception` where there is no room; this names the file.
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    special = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), END_OF_TEXT)
    config = {
        **special,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
    }
    for name, content in (("tokenizer_config", config), ("special_tokens_map", special)):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", "utf-8")


def write_tokens(documents: Iterable[str], tokenizer: Tokenizer, path: Path) -> int:
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
