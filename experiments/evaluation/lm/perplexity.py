"""Token perplexity of a causal language model, and bits per byte.

Two readings of the same text, both in lm-eval's windows:

* **corpus**: the split's token stream, documents joined by the end-of-document token as in
  training, under a sliding window. Each window feeds at most as many tokens as the model takes and
  scores the last ``stride`` of them, so every token but the first ones is predicted once with at
  least ``context - stride`` tokens of left context.
* **documents**: each document on its own, in windows that score each token once
  (``stride = context``), divided by bytes. Same definition as the ``bits_per_byte`` of lm-eval's
  ``wikitext`` task, which however first takes out the spaces that WikiText puts around
  punctuation; independent of the tokenizer, so comparable across vocabularies.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from experiments.errors import UserError
from experiments.evaluation import metrics
from experiments.evaluation.files import prepared_rows
from experiments.evaluation.lm.model import CausalLM
from experiments.evaluation.outputs import Documents, Repeats, Tokens
from experiments.evaluation.suite import Perplexity

Window = tuple[list[int], list[int]]
#: Passages that are read twice, about.
NUM_PASSAGES = 256


def windows(lm: CausalLM, tokens: Sequence[int], stride: int) -> list[Window]:
    """Context and targets of the windows over a text, each token a target once.

    Args:
        lm: the model; its prefix token goes before the text.
        stride: targets of each window but the first; 1 to the model's context.

    Raises:
        UserError: if ``stride`` is out of range.
    """
    context = lm.max_length
    if not 1 <= stride <= context:
        raise UserError(f"stride is {stride}; it must be from 1 to the context, {context}")
    cut = get_rolling_token_windows(
        list(tokens), lm.prefix_token_id, context, context_len=context - stride + 1
    )
    return [make_disjoint_window(window) for window in cut]


def losses(lm: CausalLM, found: Sequence[Window]) -> list[float]:
    """Loss (nats) of each window, summed over its targets."""
    scores = lm._loglikelihood_tokens([(None, context, tokens) for context, tokens in found])
    return [-nats for nats, _ in scores]


def corpus_losses(
    lm: CausalLM, tokens: Sequence[int], *, stride: int | None = None, max_tokens: int | None = None
) -> Tokens:
    """Losses of a token stream; see the module's text.

    Args:
        stride: targets of each window; None is half the model's context.
        max_tokens: score about so many tokens, in windows spread evenly over the stream (each
            keeps its full left context); None scores all.
    """
    stride = stride or max(1, lm.max_length // 2)
    found = windows(lm, tokens, stride)
    if max_tokens is not None and max_tokens < len(tokens):
        step = math.ceil(len(tokens) / max_tokens)
        found = found[step // 2 :: step] or found[:1]
    return Tokens(losses(lm, found), [len(targets) for _, targets in found], stride)


def document_losses(lm: CausalLM, texts: Sequence[str], encoded: Sequence[list[int]]) -> Documents:
    """Losses of documents, each on its own; see the module's text.

    Args:
        texts: documents; bytes are UTF-8.
    """
    cut = [windows(lm, tokens, lm.max_length) for tokens in encoded]
    owner = [index for index, found in enumerate(cut) for _ in found]
    totals = [0.0] * len(texts)
    for index, loss in zip(owner, losses(lm, [w for found in cut for w in found]), strict=True):
        totals[index] += loss
    return Documents(totals, [len(text.encode()) for text in texts], lm.max_length)


def repeat_losses(lm: CausalLM, tokens: Sequence[int]) -> Repeats:
    """Losses of passages of half a context, spread evenly over a text, read twice in a row."""
    size = min(lm.max_length // 2, len(tokens))
    starts = range(0, len(tokens) - size + 1, max(size, len(tokens) // NUM_PASSAGES))
    passages = [[*tokens[start : start + size]] for start in starts]
    half = size // 2
    once = [(passage[:half], passage[half:]) for passage in passages]
    twice = [(passage + passage[:half], passage[half:]) for passage in passages]
    means = [loss / (size - half) for loss in losses(lm, [*once, *twice])]
    return Repeats(means[: len(once)], means[len(once) :], size)


def split_scores(
    lm: CausalLM, data_dir: Path, split: str, settings: Perplexity
) -> list[dict[str, Any]]:
    """Scores of one split of a prepared dataset, by both readings.

    Under ``max_tokens`` the documents are taken in the order of their SHA-256 until they hold
    that many tokens, so that the sample is spread over the split. A model with another tokenizer
    than the dataset's reads the documents in its own tokens.
    """
    texts = [row["text"] for row in prepared_rows(data_dir / "text" / f"{split}.jsonl")]
    wanted, found = metrics.read(settings.metrics), list[Tokens | Documents | Repeats]()
    stream = _stream(lm, data_dir, split, texts)
    if Tokens in wanted:
        options = {"stride": settings.stride, "max_tokens": settings.max_tokens}
        found.append(corpus_losses(lm, stream, **options))
    if Repeats in wanted:
        found.append(repeat_losses(lm, stream))
    if Documents in wanted:
        sample = [text for text in texts if text]
        encoded: Iterable[list[int]] = (lm.tok_encode(text) for text in sample)
        if settings.max_tokens is not None:
            sample, encoded = _sample(lm, sample, settings.max_tokens)
        found.append(document_losses(lm, sample, [*encoded]))
    return [
        {**row, "stride": outputs.stride}
        for outputs in found
        for row in metrics.rows(outputs, settings.metrics, task="perplexity")
    ]


def _stream(lm: CausalLM, data_dir: Path, split: str, texts: list[str]) -> list[int]:
    """Tokens of a split, each document followed by the end of text."""
    theirs = data_dir / "tokenizer" / "tokenizer.json"
    own = Path(lm.tokenizer.name_or_path) / "tokenizer.json"
    if theirs.is_file() and own.is_file() and theirs.read_bytes() != own.read_bytes():
        ends = [lm.tokenizer.eos_token_id] * (lm.tokenizer.eos_token_id is not None)
        stream = [
            token
            for text in texts
            for token in [*lm.tok_encode(text, add_special_tokens=False), *ends]
        ]
    else:
        stream = np.fromfile(data_dir / f"{split}.bin", dtype=np.uint16).tolist()
    vocab_size = int(lm.model.config.vocab_size)
    if not stream or max(stream) >= vocab_size:
        raise UserError(
            f"{data_dir / split}.bin holds {len(stream)} tokens, the largest "
            f"{max(stream, default=0)}; there must be some, all below the model's vocabulary of "
            f"{vocab_size}"
        )
    return stream


def _sample(
    lm: CausalLM, texts: Sequence[str], max_tokens: int
) -> tuple[list[str], list[list[int]]]:
    """Documents by hash, with their tokens, until ``max_tokens`` are reached."""
    sample: list[str] = []
    encoded: list[list[int]] = []
    total = 0
    for text in sorted(texts, key=lambda text: hashlib.sha256(text.encode()).digest()):
        if total >= max_tokens:
            break
        sample.append(text)
        encoded.append(lm.tok_encode(text))
        total += len(encoded[-1])
    return sample, encoded
