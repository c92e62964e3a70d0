import math
import statistics

import pytest
import torch

from experiments.evaluation.lm.perplexity import (
    corpus_losses,
    document_losses,
    num_words,
    windows,
)
from experiments.evaluation.metrics import rows
from experiments.evaluation.outputs import ratio
from experiments.evaluation.suite import Perplexity

TOKENS = list(range(10))


def scores(outputs) -> list[dict]:
    return list(rows(outputs, Perplexity().metrics, task="perplexity"))


def test_windows_by_hand():
    spans = list(windows(TOKENS, prefix=99, context=4, stride=2))
    assert [(list(s.inputs), list(s.targets)) for s in spans] == [
        ([99, 0, 1, 2], [0, 1, 2, 3]),
        ([1, 2, 3, 4], [4, 5]),
        ([3, 4, 5, 6], [6, 7]),
        ([5, 6, 7, 8], [8, 9]),
    ]


@pytest.mark.parametrize("context,stride", [(4, 4), (4, 1), (7, 3), (32, 8), (1, 1)])
def test_every_token_is_predicted_once(context, stride):
    spans = list(windows(TOKENS, prefix=99, context=context, stride=stride))
    assert [token for span in spans for token in span.targets] == TOKENS
    assert all(len(span.inputs) <= context for span in spans)


def test_disjoint_windows_equal_those_of_lm_eval():
    from lm_eval.utils import get_rolling_token_windows

    tokens = list(range(23))
    theirs = get_rolling_token_windows(tokens, prefix_token=99, max_seq_len=8, context_len=1)
    ours = windows(tokens, prefix=99, context=8, stride=8)
    assert [tuple(map(tuple, pair)) for pair in theirs] == [tuple(span) for span in ours]


@pytest.mark.parametrize("stride", [0, 5])
def test_stride_out_of_range(stride):
    with pytest.raises(ValueError, match=f"stride is {stride}"):
        list(windows(TOKENS, prefix=0, context=4, stride=stride))


def test_ratio_error_is_that_of_a_mean_when_sizes_are_equal():
    losses = [1.0, 4.0, 2.0, 7.0]
    value, error = ratio(losses, [2, 2, 2, 2])
    per_item = [loss / 2 for loss in losses]
    assert value == pytest.approx(statistics.mean(per_item))
    assert error == pytest.approx(statistics.stdev(per_item) / 2)
    assert ratio([3.0], [2]) == (1.5, None)


def loop_loss(model, stream: list[int], prefix: int, context: int, stride: int) -> list[float]:
    """Loss of each token, one forward pass per window, written out."""
    losses: list[float] = []
    whole = [prefix, *stream]
    while len(losses) < len(stream):
        end = min(len(stream), len(losses) + (stride if losses else context))
        chunk = whole[max(0, end - context) : end + 1]
        with torch.no_grad():
            logits = model(torch.tensor([chunk[:-1]])).logits[0].double()
        steps = -torch.log_softmax(logits, -1)[range(len(chunk) - 1), chunk[1:]]
        losses += steps[len(steps) - (end - len(losses)) :].tolist()
    return losses


@pytest.mark.parametrize("stride", [None, 5, 32])
def test_corpus_perplexity_equals_the_written_out_loop(scorer, model, tokenizer, documents, stride):
    stream = tokenizer(" ".join(documents["validation"]))["input_ids"][:301]
    outputs = corpus_losses(scorer, stream, stride=stride)
    loss, perplexity = scores(outputs)
    expected = statistics.mean(loop_loss(model, stream, 0, 32, stride or 16))
    assert loss["value"] == pytest.approx(expected, rel=1e-6)
    assert perplexity["value"] == pytest.approx(math.exp(expected), rel=1e-5)
    assert perplexity["stderr"] == pytest.approx(perplexity["value"] * loss["stderr"])
    assert loss["num_items"] == 301 and outputs.stride == (stride or 16)


def test_sampled_windows_keep_their_context(scorer, model, tokenizer, documents):
    stream = tokenizer(" ".join(documents["test"]))["input_ids"]
    loss, _ = scores(corpus_losses(scorer, stream, stride=8, max_tokens=len(stream) // 3 + 1))
    every = loop_loss(model, stream, 0, 32, 8)
    blocks = [every[:32], *(every[i : i + 8] for i in range(32, len(every), 8))]
    chosen = [value for block in blocks[1::3] for value in block]
    assert loss["num_items"] == len(chosen)
    assert loss["value"] == pytest.approx(statistics.mean(chosen), rel=1e-6)


def test_document_scores_equal_the_written_out_loop(scorer, model, tokenizer, documents):
    texts = documents["validation"]
    encoded = scorer.encode(texts)
    total = sum(sum(loop_loss(model, tokens, 0, 32, 32)) for tokens in encoded)
    word, byte, bits = scores(document_losses(scorer, texts, encoded))
    num_bytes = sum(len(text.encode()) for text in texts)
    words = sum(len(text.split()) for text in texts)
    assert word["value"] == pytest.approx(math.exp(total / words), rel=1e-5)
    assert byte["value"] == pytest.approx(math.exp(total / num_bytes), rel=1e-5)
    assert bits["value"] == pytest.approx(total / num_bytes / math.log(2), rel=1e-6)
    assert word["num_items"] == len(texts)


def test_word_perplexity_does_not_depend_on_batches_or_order(scorer, documents):
    texts = documents["test"]
    forward = scores(document_losses(scorer, texts, scorer.encode(texts)))
    backward = scores(document_losses(scorer, texts[::-1], scorer.encode(texts[::-1])))
    for one, other in zip(forward, backward, strict=True):
        assert one["value"] == pytest.approx(other["value"], rel=1e-6)


def test_words_are_counted_as_lm_eval_counts_them():
    from lm_eval.api.task import Task

    for text in ("one two  three", " padded ", "", "a\nb\t c"):
        assert num_words(text) == Task.count_words(text)
