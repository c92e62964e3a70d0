"""`CausalLM` against lm-eval's own `HFLM` on the same folder, and against written-out loops."""

import copy
import math
import re
import statistics

import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from tokenizers.processors import TemplateProcessing

from experiments.errors import UserError
from experiments.evaluation.lm.model import CausalLM
from experiments.evaluation.lm.perplexity import (
    corpus_losses,
    document_losses,
    repeat_losses,
    windows,
)
from experiments.evaluation.metrics import rows
from experiments.evaluation.outputs import ratio
from experiments.evaluation.suite import Perplexity

LOAD = {"batch_size": 4, "dtype": "float32", "execution": "auto"}
PAIRS = [
    ("The mask", " drops every weight."),
    ("The mask ", "drops every weight."),
    ("", "The layer often scores."),
    ("", " The layer often scores."),
    ("", "<|endoftext|>The token"),
    ("The mask", " grows"),
    ("The mask", " x"),
    ("The mask", " grows every weight"),
    ("The mask always drops every small weight of the layer. " * 6, " The tensor"),
]


def requests(kind: str, arguments) -> list[Instance]:
    return [
        Instance(request_type=kind, doc={}, arguments=args, idx=0, metadata=("t", i, 1))
        for i, args in enumerate(arguments)
    ]


@pytest.fixture(scope="module", params=["plain", "begins with a special token"])
def both(request, model, tokenizer, tmp_path_factory):
    """Both for a model whose tokenizer adds no special token, or one before each text."""
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    tokenizer = copy.deepcopy(tokenizer)
    if request.param != "plain":
        tokenizer._tokenizer.post_processor = TemplateProcessing(
            single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
        )
        assert tokenizer.encode("The mask")[0] == 0
    tokenizer.save_pretrained(folder)
    theirs = HFLM(pretrained=str(folder), batch_size=4, device="cpu", dtype="float32")
    return CausalLM.load(folder, **LOAD), theirs


def test_loglikelihoods_and_generations_are_those_of_lm_eval(both, documents):
    ours, theirs = (lm.loglikelihood(requests("loglikelihood", PAIRS)) for lm in both)
    assert [greedy for _, greedy in ours] == [greedy for _, greedy in theirs]
    assert [nats for nats, _ in ours] == pytest.approx([nats for nats, _ in theirs], rel=1e-5)
    assert both[0].truncated == {PAIRS[-1][0]}
    texts = [(" ".join(documents["test"][i : i + 3]),) for i in range(0, 12, 3)]
    ours, theirs = (lm.loglikelihood_rolling(requests("loglikelihood", texts)) for lm in both)
    assert ours == pytest.approx(theirs, rel=1e-6)
    options = {"until": ["."], "max_gen_toks": 8, "do_sample": False}
    prompts = ["The mask", "The layer always", "A batch", "The mask always drops it. " * 9]
    asked = [(prompt, dict(options)) for prompt in prompts]
    ours, theirs = (lm.generate_until(requests("generate_until", asked)) for lm in both)
    assert ours == theirs
    assert prompts[-1] in both[0].truncated and "A batch" not in both[0].truncated


def random_requests(num: int) -> list[tuple[None, list[int], list[int]]]:
    generator = torch.Generator().manual_seed(3)
    found = []
    for _ in range(num):
        length, scored = (int(torch.randint(1, 33, (1,), generator=generator)) for _ in "ab")
        tokens = torch.randint(0, 300, (length + scored,), generator=generator).tolist()
        found.append((None, tokens[:length], tokens[length:]))
    return found


def direct(model, context: list[int], targets: list[int]) -> tuple[float, bool]:
    """One row, no padding, full logits, explicit softmax in float64."""
    whole = (context + targets)[-33:]
    with torch.no_grad():
        logits = model(torch.tensor([whole[:-1]])).logits[0].double()
    rows = torch.log_softmax(logits, -1)[-len(targets) :]
    return float(rows[range(len(targets)), targets].sum()), rows.argmax(-1).tolist() == targets


@pytest.mark.parametrize("batch_size", [1, 64])
def test_scores_equal_one_row_at_a_time(model, tokenizer, batch_size):
    asked = random_requests(40)
    asked.append((None, [5], [6]))
    asked[0] = asked[-1]  # equal requests share a row
    lm = CausalLM(model, tokenizer, batch_size=batch_size)
    scores = lm._loglikelihood_tokens(asked)
    for (_, context, targets), (nats, likeliest) in zip(asked, scores, strict=True):
        expected, greedy = direct(model, context, targets)
        assert nats == pytest.approx(expected, rel=1e-5, abs=1e-4)
        assert likeliest == greedy


def test_the_output_head_runs_only_where_a_token_is_scored(model, lm):
    rows = []
    head = model.get_output_embeddings()
    with head.register_forward_hook(lambda module, args, out: rows.append(out.shape[-2])):
        lm._loglikelihood_tokens([(None, [*range(20)], [1, 2])])
    assert rows == [2]


def test_a_tokenizer_that_does_not_fit_is_refused(model, tokenizer):
    bare = copy.deepcopy(tokenizer)
    bare.bos_token = bare.eos_token = None
    with pytest.raises(ValueError, match="neither bos_token nor eos_token"):
        CausalLM(model, bare, batch_size=4)
    lm = CausalLM(copy.deepcopy(model), tokenizer, batch_size=4)
    tokens = lm.tok_encode("a b")
    lm.model.resize_token_embeddings(max(tokens))
    with pytest.raises(UserError, match=f"makes token {max(tokens)}, but the model knows"):
        lm.tok_encode("a b")


def test_zeros_are_skipped_with_the_same_scores(tokenizer, tmp_path):
    """The dense model with the same zeros is the reference."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from sparse_lib.checkpoint import masks_of
    from sparse_lib.device import Ledger
    from sparse_lib.execution import kernels

    if why := kernels.unavailable():
        pytest.skip(why)
    sizes = {"n_positions": 32, "n_embd": 256, "n_layer": 1, "n_head": 2}
    config = AutoConfig.for_model("gpt2", vocab_size=320, tie_word_embeddings=True, **sizes)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if weight.dim() == 2 and not re.search("embed|wte|wpe", name):
                    weight *= torch.rand_like(weight) > 0.9
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    dense, auto = (
        CausalLM.load(tmp_path, **{**LOAD, "execution": execution})
        for execution in ("dense", "auto")
    )
    assert type(dense.model) is type(model)
    assert not any(re.search("ln_|wte|wpe|bias", name) for name in masks_of(auto.model))
    asked = random_requests(30)
    with Ledger() as ledger:
        scores = auto._loglikelihood_tokens(asked)
    assert ledger.skipped_flops > 0.5 * ledger.dense_flops
    expected = dense._loglikelihood_tokens(asked)
    assert [n for n, _ in scores] == pytest.approx([n for n, _ in expected], rel=1e-6)
    assert [greedy for _, greedy in scores] == [greedy for _, greedy in expected]


def test_a_dense_model_and_other_formats_are_left_as_they_are(model_dir):
    for dtype in ("float32", "bfloat16"):
        loaded = CausalLM.load(model_dir, **{**LOAD, "dtype": dtype}).model
        assert type(loaded).__module__.startswith("transformers")


@pytest.mark.parametrize("family", ["wide", "parallel", "factorized", "doped"])
def test_a_transformed_model_is_read_as_it_was_written(family, model, tokenizer, tmp_path):
    from experiments.models import _transform as transforms
    from sparse_lib import ift

    transform = {"family": family, "sparsity": 0.75}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformed, _, _ = ift.transform(model, **transform)
    transformed.eval().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    transforms.write(tmp_path, model.config.to_dict(), transform)
    asked = random_requests(12)
    scores = CausalLM.load(tmp_path, **LOAD)._loglikelihood_tokens(asked)
    for (_, context, targets), (nats, _) in zip(asked, scores, strict=True):
        assert nats == pytest.approx(direct(transformed, context, targets)[0], rel=1e-5, abs=1e-4)


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


def test_copying_is_what_the_second_reading_of_passages_saves(lm, model, tokenizer, documents):
    stream = tokenizer(" ".join(documents["test"]))["input_ids"][:90]
    sums = {1: 0.0, 2: 0.0}
    for start in range(0, 75, 16):
        for readings in sums:
            tokens = stream[start : start + 16] * readings
            with torch.no_grad():
                logits = model(torch.tensor([tokens[:-1]])).logits[0, -8:].double()
            sums[readings] -= float(torch.log_softmax(logits, -1)[range(8), tokens[-8:]].sum())
    (copying,) = rows(repeat_losses(lm, stream), ["copying", "loss"], task="perplexity")
    assert copying["num_items"] == 5
    assert copying["value"] == pytest.approx((sums[1] - sums[2]) / 40, rel=1e-4)


def test_document_scores_equal_the_written_out_loop(lm, model, tokenizer, documents):
    texts = documents["validation"]
    encoded = [lm.tok_encode(text) for text in texts]
    total = sum(sum(loop_loss(model, tokens, 0, 32, 32)) for tokens in encoded)
    (bits,) = scores(document_losses(lm, texts, encoded))
    num_bytes = sum(len(text.encode()) for text in texts)
    assert bits["value"] == pytest.approx(total / num_bytes / math.log(2), rel=1e-6)
    assert bits["num_items"] == len(texts)
