"""Tokenizers trained, built or fetched, saved as folders that `AutoTokenizer` loads."""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from experiments.data.base import (
    END_OF_TEXT,
    MAX_VOCABULARY,
    MIN_VOCABULARY,
    MissingData,
    Source,
)
from experiments.data.mirror import folder_of, missing_tokenizer
from experiments.errors import UserError, reason


def train_bpe(documents: Iterable[str], *, vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE whose token 0 is the end of text.

    Args:
        documents: Training texts.
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


def fetch(hub_id: str, source: Source, *, vocab_size: int) -> Tokenizer:
    """Read a published tokenizer from the mirror, or from the hub where allowed.

    Args:
        hub_id: "<owner>/<name>" on the hub and below the mirror root.
        source: Where to look.
        vocab_size: How many tokens it must have.

    Raises:
        MissingData: If it cannot be had.
        ValueError: If its vocabulary has another size or no end-of-text token.
    """
    problem = missing_tokenizer(hub_id, source)
    if problem and source.offline:
        raise MissingData(problem)
    from transformers import AutoTokenizer

    path = hub_id if problem else str(folder_of(hub_id, source, kind="models"))
    try:
        loaded = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except Exception as error:  # the library raises this class itself
        raise MissingData(f"tokenizer {hub_id} cannot be read: {reason(error)}") from error
    tokenizer = Tokenizer.from_str(loaded.backend_tokenizer.to_str())
    if num_lost := _num_unreachable(tokenizer):
        raise MissingData(
            f"tokenizer {hub_id} cannot be read: {num_lost} of its tokens have no merge, so its "
            "merges are cut short"
        )
    if tokenizer.get_vocab_size() != vocab_size:
        raise UserError(
            f"data.vocab_size is {vocab_size}, but data.tokenizer {hub_id} has "
            f"{tokenizer.get_vocab_size()} tokens."
        )
    if tokenizer.token_to_id(END_OF_TEXT) is None:
        raise UserError(f"data.tokenizer is {hub_id}, but must have a token {END_OF_TEXT}.")
    return tokenizer


def _num_unreachable(tokenizer: Tokenizer) -> int:
    """Tokens of a byte-level BPE that neither are a byte or special nor come from a merge."""
    parts = json.loads(tokenizer.to_str())
    model = parts["model"]
    byte_level = "ByteLevel" in json.dumps(parts.get("pre_tokenizer"))
    if model["type"] != "BPE" or model.get("ignore_merges") or not byte_level:
        return 0
    pairs = (pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"])
    made = {"".join(pair) for pair in pairs} | {added["content"] for added in parts["added_tokens"]}
    return sum(len(token) > 1 and token not in made for token in model["vocab"])


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Write a tokenizer as a Hugging Face folder.

    Args:
        tokenizer: Tokenizer that knows the end-of-text token.
        folder: Created if absent.
    """
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
