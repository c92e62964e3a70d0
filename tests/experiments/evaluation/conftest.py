"""A tiny exported model and a tiny prepared dataset, made once per test session."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments import data
from experiments.data.files import LIST, META, seal

CONTEXT = 32
EOS = "<|endoftext|>"
NOUNS = "mask weight layer model schedule gradient tensor window token batch".split()
VERBS = "drops grows keeps scores trains reads writes moves counts".split()
EXTRAS = "always slowly often quickly".split()


def make_sentence(rng: random.Random) -> str:
    first, second = rng.sample(NOUNS, 2)
    verb, extra = rng.choice(VERBS), rng.choice(EXTRAS)
    return f"The {first} {extra} {verb} every small {second} of the {rng.choice(NOUNS)}."


@pytest.fixture(scope="session")
def documents() -> dict[str, list[str]]:
    rng = random.Random(0)
    return {
        split: [" ".join(make_sentence(rng) for _ in range(rng.randint(2, 12))) for _ in range(num)]
        for split, num in (("train", 40), ("validation", 6), ("test", 14))
    }


@pytest.fixture(scope="session")
def tokenizer(documents):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=[EOS], initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(documents["train"], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token=EOS, eos_token=EOS)


@pytest.fixture(scope="session")
def model(tokenizer):
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(0)
        sizes = {"vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 48}
        sizes |= {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
        sizes |= {"max_position_embeddings": CONTEXT, "bos_token_id": 0, "eos_token_id": 0}
        # Far from uniform, so that errors show.
        config = LlamaConfig(**sizes, initializer_range=0.3)
        return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="session")
def lm(model, tokenizer):
    from experiments.evaluation.lm.model import CausalLM

    return CausalLM(model, tokenizer, batch_size=4)


@pytest.fixture(scope="session")
def model_dir(model, tokenizer, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "model"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def reseal(folder: Path) -> None:
    """List the files of a prepared dataset as they are."""
    files = [path for path in folder.rglob("*.*") if path.name not in (META, LIST)]
    seal(folder, {"name": "tiny", "hash": "0123", "vocab_size": 2**16}, files)


def write_corpus(folder: Path, documents: dict[str, list[str]], tokenizer) -> None:
    """Write the tokens and texts of splits as prepared data have them."""
    (folder / "text").mkdir(parents=True)
    for split, texts in documents.items():
        encoded = tokenizer(texts, add_special_tokens=False)["input_ids"]
        stream = [token for tokens in encoded for token in [*tokens, tokenizer.eos_token_id]]
        np.array(stream, dtype=np.uint16).tofile(folder / f"{split}.bin")
        rows = [json.dumps({"text": text}) + "\n" for text in texts]
        (folder / "text" / f"{split}.jsonl").write_text("".join(rows))


@pytest.fixture
def data_dir(documents, tokenizer, tmp_path) -> Path:
    folder = tmp_path / "data"
    write_corpus(folder, {split: documents[split] for split in ("validation", "test")}, tokenizer)
    reseal(folder)
    return folder


@pytest.fixture(scope="session")
def glyphs(tmp_path_factory) -> Path:
    """A dataset of 47 classes of images."""
    folder = tmp_path_factory.mktemp("glyphs")
    data.prepare("glyphs", out=folder, num_images=141)
    return folder
