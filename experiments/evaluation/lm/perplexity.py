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
import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments.data.base import MissingData
from experiments.evaluation.lm.scoring import Scorer, Span
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
        raise ValueError(f"stride is {stride}; it must be from 1 to the context, {context}")
    stream = (prefix, *(int(token) for token in tokens))
    done = 0
    while done < len(tokens):
        end = min(len(tokens), done + (stride if done else context))
        begin = max(0, end - context)
        yield Span(stream[begin:end], stream[done + 1 : end + 1])
        done = end


def ratio(losses: Sequence[float], sizes: Sequence[float]) -> tuple[float, float | None]:
    """Sum of losses over sum of sizes, with its standard error over clusters.

    The clusters (windows or documents) are treated as independent draws; the error is the
    linearised one of a ratio estimator (Cochran, Sampling Techniques, 1977, section 6.4).

    Returns:
        The ratio, and its standard error or None with fewer than two clusters.
    """
    value = math.fsum(losses) / math.fsum(sizes)
    num = len(losses)
    if num < 2:
        return value, None
    squares = math.fsum((a - value * b) ** 2 for a, b in zip(losses, sizes, strict=True))
    return value, math.sqrt(squares * num / (num - 1)) / math.fsum(sizes)


def corpus_scores(
    scorer: Scorer,
    tokens: Sequence[int],
    *,
    stride: int | None = None,
    max_tokens: int | None = None,
) -> list[dict[str, Any]]:
    """Loss (nats per token) and perplexity of a token stream; see the module's text.

    Args:
        scorer: the model; its prefix token goes before the stream.
        tokens: the stream.
        stride: tokens scored per window; None is half the model's context.
        max_tokens: score about so many tokens, in windows spread evenly over the stream (each
            keeps its full left context); None scores all.

    Returns:
        Rows with metric, value, stderr, num_items (tokens) and stride (tokens).
    """
    stride = stride or max(1, scorer.context // 2)
    spans = list(windows(tokens, prefix=scorer.prefix, context=scorer.context, stride=stride))
    if max_tokens is not None and max_tokens < len(tokens):
        step = math.ceil(len(tokens) / max_tokens)
        spans = spans[step // 2 :: step] or spans[:1]
    losses = [-nats for nats, _ in scorer.score(spans)]
    sizes = [len(span.targets) for span in spans]
    loss, error = ratio(losses, sizes)
    shared = {"num_items": sum(sizes), "stride": stride}
    return [
        {"metric": "loss", "value": loss, "stderr": error, **shared},
        {"metric": "perplexity", **exponential(loss, error), **shared},
    ]


def document_scores(
    scorer: Scorer, documents: Sequence[str], encoded: Sequence[Sequence[int]]
) -> list[dict[str, Any]]:
    """Word perplexity, byte perplexity and bits per byte; see the module's text.

    Args:
        scorer: the model; its prefix token goes before each document.
        documents: texts; words are what whitespace separates, bytes are UTF-8.
        encoded: tokens of each document, no special ones.

    Returns:
        Rows with metric, value, stderr, num_items (documents) and stride (tokens).
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
    per_word, word_error = ratio(losses, [num_words(text) for text in documents])
    per_byte, byte_error = ratio(losses, [len(text.encode()) for text in documents])
    bits_error = None if byte_error is None else byte_error / math.log(2)
    shared = {"num_items": len(documents), "stride": context}
    return [
        {"metric": "word_perplexity", **exponential(per_word, word_error), **shared},
        {"metric": "byte_perplexity", **exponential(per_byte, byte_error), **shared},
        {
            "metric": "bits_per_byte",
            "value": per_byte / math.log(2),
            "stderr": bits_error,
            **shared,
        },
    ]


def split_scores(
    scorer: Scorer, data_dir: Path, split: str, settings: Perplexity
) -> list[dict[str, Any]]:
    """Both readings of one split of a prepared dataset.

    Under ``max_tokens`` the documents are taken in the order of their SHA-256 until they hold
    that many tokens, so that the sample is spread over the split.

    Raises:
        MissingData: if the split was not prepared.
        ValueError: if it is empty, or of another vocabulary than the model's.
    """
    import numpy as np

    path = data_dir / f"{split}.bin"
    if not path.is_file():
        raise MissingData(f"{path} does not exist; prepare the dataset first")
    with (data_dir / "text" / f"{split}.jsonl").open(encoding="utf-8") as lines:
        documents = [json.loads(line)["text"] for line in lines if line.strip()]
    stream = np.fromfile(path, dtype=np.uint16)
    vocab_size = int(scorer.model.config.vocab_size)
    if not len(stream) or int(stream.max()) >= vocab_size:
        raise ValueError(
            f"{path} holds {len(stream)} tokens, the largest {stream.max(initial=0)}; there must "
            f"be some, all below the model's vocabulary of {vocab_size}"
        )
    sample, encoded = _sample(scorer, [text for text in documents if text], settings.max_tokens)
    return [
        *corpus_scores(
            scorer,
            stream.tolist(),
            stride=settings.stride,
            max_tokens=settings.max_tokens,
        ),
        *document_scores(scorer, sample, encoded),
    ]


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


def exponential(loss: float, error: float | None) -> dict[str, float | None]:
    """exp(loss) and its standard error by the delta method; infinite where exp overflows."""
    value = math.inf if loss >= 700 else math.exp(loss)
    return {"value": value, "stderr": None if error is None else value * error}
