"""A tiny exported model and a tiny prepared dataset, made once per test session."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from experiments import data
from experiments.data import packing
from experiments.data.base import END_OF_TEXT
from experiments.data.files import LIST, META, seal
from tests.sparse_lib import tiny_models

CONTEXT = 32
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
    from transformers import PreTrainedTokenizerFast

    bpe = packing.train_bpe(documents["train"], vocab_size=320)
    ends = dict.fromkeys(("bos_token", "eos_token"), END_OF_TEXT)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, **ends)


@pytest.fixture(scope="session")
def model(tokenizer):
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 48}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
    sizes |= {"max_position_embeddings": CONTEXT, "bos_token_id": 0, "eos_token_id": 0}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        # Far from uniform, so that errors show.
        return tiny_models.llama(**sizes, initializer_range=0.3).eval()


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
    for split, texts in documents.items():
        packing.write_texts(texts, folder / "text" / f"{split}.jsonl")
        packing.write_tokens(texts, tokenizer.backend_tokenizer, folder / f"{split}.bin")


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
