import math
import statistics

import pytest
import torch

from experiments.evaluation.lm.perplexity import corpus_losses, document_losses, windows
from experiments.evaluation.metrics import rows
from experiments.evaluation.outputs import ratio
from experiments.evaluation.suite import Perplexity

TOKENS = list(range(10))


def scores(outputs) -> list[dict]:
    return list(rows(outputs, Perplexity().metrics, task="perplexity"))


@pytest.mark.parametrize("stride", [0, 33])
def test_stride_out_of_range(lm, stride):
    with pytest.raises(ValueError, match=f"stride is {stride}"):
        windows(lm, TOKENS, stride)


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
def test_corpus_perplexity_equals_the_written_out_loop(lm, model, tokenizer, documents, stride):
    stream = tokenizer(" ".join(documents["validation"]))["input_ids"][:301]
    outputs = corpus_losses(lm, stream, stride=stride)
    loss, perplexity = scores(outputs)
    expected = statistics.mean(loop_loss(model, stream, 0, 32, stride or 16))
    assert loss["value"] == pytest.approx(expected, rel=1e-6)
    assert perplexity["value"] == pytest.approx(math.exp(expected), rel=1e-5)
    assert perplexity["stderr"] == pytest.approx(perplexity["value"] * loss["stderr"])
    assert loss["num_items"] == 301 and outputs.stride == (stride or 16)


def test_sampled_windows_keep_their_context(lm, model, tokenizer, documents):
    stream = tokenizer(" ".join(documents["test"]))["input_ids"]
    loss, _ = scores(corpus_losses(lm, stream, stride=8, max_tokens=len(stream) // 3 + 1))
    every = loop_loss(model, stream, 0, 32, 8)
    blocks = [every[:32], *(every[i : i + 8] for i in range(32, len(every), 8))]
    chosen = [value for block in blocks[1::3] for value in block]
    assert loss["num_items"] == len(chosen)
    assert loss["value"] == pytest.approx(statistics.mean(chosen), rel=1e-6)


def test_document_scores_equal_the_written_out_loop(lm, model, tokenizer, documents):
    texts = documents["validation"]
    encoded = [lm.tok_encode(text) for text in texts]
    total = sum(sum(loop_loss(model, tokens, 0, 32, 32)) for tokens in encoded)
    word, byte, bits = scores(document_losses(lm, texts, encoded))
    num_bytes = sum(len(text.encode()) for text in texts)
    words = sum(len(text.split()) for text in texts)
    assert word["value"] == pytest.approx(math.exp(total / words), rel=1e-5)
    assert byte["value"] == pytest.approx(math.exp(total / num_bytes), rel=1e-5)
    assert bits["value"] == pytest.approx(total / num_bytes / math.log(2), rel=1e-6)
    assert word["num_items"] == len(texts)
