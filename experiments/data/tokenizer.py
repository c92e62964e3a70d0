"""Tokenizers trained on a dataset, saved as folders that `AutoTokenizer` loads."""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from experiments.data.base import END_OF_TEXT, MAX_VOCABULARY, MIN_VOCABULARY
from experiments.errors import UserError


def train_bpe(documents: Iterable[str], *, vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE whose token 0 is the end of text.

    Args:
        vocab_size: Largest vocabulary; little text may give a smaller one.

    Raises:
        ValueError: If `vocab_size` is not in 257..65536.
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


def save(tokenizer: Tokenizer, folder: Path) -> None:
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


def load(folder: Path) -> Tokenizer:
    """Read a tokenizer saved by `save`."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))
