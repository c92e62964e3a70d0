"""Token, word and byte perplexity of a causal language model.

Two readings of the same text:

* **corpus**: the split's token stream, documents joined by the end-of-document token as in
  training, under a sliding window. Each window feeds at most ``context`` tokens and scores the
  last ``stride`` of them, so every token is predicted once with at least ``context - stride``
  tokens of left context (the stream's beginning apart).
* **documents**: each document on its own, in windows that score each token once
  (``stride = context``), divided by words and by bytes. Same definition as the
  ``word_perplexity``, ``byte_perplexity`` and ``bits_per_byte`` of lm-eval's ``wikitext`` task,
  which however first takes out the spaces that WikiText puts around punctuation; independent of
  the tokenizer, so comparable across vocabularies.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments.errors import UserError
from experiments.evaluation import metrics
from experiments.evaluation.files import prepared_rows
from experiments.evaluation.lm.scoring import Scorer, Span
from experiments.evaluation.outputs import Documents, Tokens
from experiments.evaluation.suite import Perplexity


def windows(tokens: Sequence[int], *, prefix: int, context: int, stride: int) -> Iterator[Span]:
    """Cut ``tokens`` into spans that predict each token exactly once.

    Args:
        tokens: what to predict.
        prefix: token put before the first one, so that it too is predicted.
        context: most tokens fed at once, at least 1.
        stride: tokens scored per window after the first (which scores up to ``context``);
            1 to ``context``.

    Raises:
        ValueError: if ``stride`` is out of range.
    """
    if not 1 <= stride <= context:
        raise UserError(f"stride is {stride}; it must be from 1 to the context, {context}")
    stream = (prefix, *(int(token) for token in tokens))
    done = 0
    while done < len(tokens):
        end = min(len(tokens), done + (stride if done else context))
        begin = max(0, end - context)
        yield Span(stream[begin:end], stream[done + 1 : end + 1])
        done = end


def corpus_losses(
    scorer: Scorer,
    tokens: Sequence[int],
    *,
    stride: int | None = None,
    max_tokens: int | None = None,
) -> Tokens:
    """Losses of a token stream; see the module's text.

    Args:
        scorer: the model; its prefix token goes before the stream.
        tokens: the stream.
        stride: tokens scored per window; None is half the model's context.
        max_tokens: score about so many tokens, in windows spread evenly over the stream (each
            keeps its full left context); None scores all.
    """
    stride = stride or max(1, scorer.context // 2)
    spans = list(windows(tokens, prefix=scorer.prefix, context=scorer.context, stride=stride))
    if max_tokens is not None and max_tokens < len(tokens):
        step = math.ceil(len(tokens) / max_tokens)
        spans = spans[step // 2 :: step] or spans[:1]
    losses = [-nats for nats, _ in scorer.score(spans)]
    return Tokens(losses, [len(span.targets) for span in spans], stride)


def document_losses(
    scorer: Scorer, documents: Sequence[str], encoded: Sequence[Sequence[int]]
) -> Documents:
    """Losses of documents, each on its own; see the module's text.

    Args:
        scorer: the model; its prefix token goes before each document.
        documents: texts; words are what whitespace separates, bytes are UTF-8.
        encoded: tokens of each document, no special ones.
    """
    context = scorer.context
    spans, owner = [], []
    for index, tokens in enumerate(encoded):
        for span in windows(tokens, prefix=scorer.prefix, context=context, stride=context):
            spans.append(span)
            owner.append(index)
    losses = [0.0] * len(documents)
    for index, (nats, _) in zip(owner, scorer.score(spans), strict=True):
        losses[index] -= nats
    words = [num_words(text) for text in documents]
    return Documents(losses, words, [len(text.encode()) for text in documents], context)


def split_scores(
    scorer: Scorer, data_dir: Path, split: str, settings: Perplexity
) -> list[dict[str, Any]]:
    """Scores of one split of a prepared dataset, by both readings.

    Under ``max_tokens`` the documents are taken in the order of their SHA-256 until they hold
    that many tokens, so that the sample is spread over the split. A model with another tokenizer
    than the dataset's reads the documents in its own tokens.

    Raises:
        MissingData: if the split was not prepared.
        ValueError: if it is empty, or of another vocabulary than the model's.
    """
    path = data_dir / "text" / f"{split}.jsonl"
    documents = [row["text"] for row in prepared_rows(path)]
    stream = _stream(scorer, data_dir, split, documents)
    sample, encoded = _sample(scorer, [text for text in documents if text], settings.max_tokens)
    wanted, found = metrics.read(settings.metrics), []
    if Tokens in wanted:
        options = {"stride": settings.stride, "max_tokens": settings.max_tokens}
        found.append(corpus_losses(scorer, stream, **options))
    if Documents in wanted:
        found.append(document_losses(scorer, sample, encoded))
    return [
        {**row, "stride": outputs.stride}
        for outputs in found
        for row in metrics.rows(outputs, settings.metrics, task="perplexity")
    ]


def _stream(scorer: Scorer, data_dir: Path, split: str, documents: list[str]) -> list[int]:
    """Tokens of a split, each document followed by the end of text."""
    import numpy as np

    theirs, own = data_dir / "tokenizer" / "tokenizer.json", scorer.tokenizer_file
    if theirs.is_file() and own is not None and theirs.read_bytes() != own.read_bytes():
        end = scorer.tokenizer.eos_token_id
        ends = [] if end is None else [int(end)]
        stream = [token for tokens in scorer.encode(documents) for token in [*tokens, *ends]]
    else:
        stream = np.fromfile(data_dir / f"{split}.bin", dtype=np.uint16).tolist()
    vocab_size = int(scorer.model.config.vocab_size)
    if not stream or max(stream) >= vocab_size:
        raise UserError(
            f"{data_dir / split}.bin holds {len(stream)} tokens, the largest "
            f"{max(stream, default=0)}; there must be some, all below the model's vocabulary of "
            f"{vocab_size}"
        )
    return stream


def _sample(
    scorer: Scorer, documents: Sequence[str], max_tokens: int | None
) -> tuple[list[str], list[list[int]]]:
    """Documents and their tokens: all, or by hash until ``max_tokens`` are reached."""
    if max_tokens is None:
        return list(documents), scorer.encode(documents)
    sample, encoded, total = [], [], 0
    for text in sorted(documents, key=lambda text: hashlib.sha256(text.encode()).digest()):
        if total >= max_tokens:
            break
        sample.append(text)
        encoded += scorer.encode([text])
        total += len(encoded[-1])
    return sample, encoded


def num_words(text: str) -> int:
    """Words as lm-eval counts them (pieces between runs of whitespace)."""
    return len(re.split(r"\s+", text))
