import re

import pytest
import torch

from experiments.evaluation import scoring
from experiments.evaluation.scoring import Scorer, Span


def direct(model, span: Span) -> tuple[float, bool]:
    """One row, no padding, full logits, explicit softmax in float64."""
    with torch.no_grad():
        logits = model(torch.tensor([span.inputs])).logits[0].double()
    predictions = torch.log_softmax(logits, -1)[span.start :]
    total = sum(float(row[token]) for row, token in zip(predictions, span.targets, strict=True))
    greedy = predictions.argmax(-1).tolist() == list(span.targets)
    return total, greedy


def random_spans(num: int) -> list[Span]:
    generator = torch.Generator().manual_seed(3)
    spans = []
    for _ in range(num):
        length = int(torch.randint(1, 33, (1,), generator=generator))
        scored = int(torch.randint(1, length + 1, (1,), generator=generator))
        tokens = torch.randint(0, 300, (length + scored,), generator=generator).tolist()
        spans.append(Span(tuple(tokens[:length]), tuple(tokens[length:])))
    return spans


def check(model, spans, scores):
    for span, (nats, is_greedy) in zip(spans, scores, strict=True):
        expected, greedy = direct(model, span)
        assert nats == pytest.approx(expected, rel=1e-5, abs=1e-4)
        assert is_greedy == greedy


@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_scores_equal_one_row_at_a_time(model, tokenizer, batch_size):
    spans = random_spans(40)
    check(model, spans, Scorer(model, tokenizer, batch_size=batch_size).score(spans))


def test_greedy_continuation_is_recognised(model, scorer):
    tokens = [5, 6, 7]
    with torch.no_grad():
        for _ in range(4):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    right = Span(tuple(tokens[:-1]), tuple(tokens[3:]))
    wrong = Span(right.inputs, (*right.targets[:-1], (right.targets[-1] + 1) % 300))
    assert [greedy for _, greedy in scorer.score([right, wrong])] == [True, False]


def fed_shapes(model, score) -> list[tuple[int, ...]]:
    """Shapes of the inputs that the model got."""
    shapes = []
    handle = model.register_forward_pre_hook(lambda _, args: shapes.append(tuple(args[0].shape)))
    try:
        score()
    finally:
        handle.remove()
    return shapes


def test_equal_inputs_run_once_and_keep_their_order(model, tokenizer):
    long = tuple(range(20))
    spans = [Span(long, (9,)), Span((4, 5), (7, 8)), Span(long, (5, 6)), Span(long, (7,))]
    scorer = Scorer(model, tokenizer, batch_size=8)
    assert fed_shapes(model, lambda: scorer.score(spans)) == [(1, 32)]
    check(model, spans, scorer.score(spans))


def test_memory_limit_splits_batches(model, tokenizer, monkeypatch):
    monkeypatch.setattr(scoring, "MAX_LOGITS", 8 * 320)
    spans = [Span(tuple(range(i, i + 32)), (1, 2, 3, 4)) for i in range(6)]
    scorer = Scorer(model, tokenizer, batch_size=64)
    assert fed_shapes(model, lambda: scorer.score(spans)) == [(2, 32)] * 3
    check(model, spans, scorer.score(spans))


def test_a_long_row_does_not_pad_short_ones(model, tokenizer):
    spans = [Span(tuple(range(i, i + length)), (1,)) for i, length in enumerate([32, 5, 4, 4])]
    scorer = Scorer(model, tokenizer, batch_size=64)
    assert fed_shapes(model, lambda: scorer.score(spans)) == [(1, 32), (1, 16)]
    check(model, spans, scorer.score(spans))


def test_rows_are_never_wider_than_the_context(model, tokenizer, monkeypatch):
    monkeypatch.setattr(scoring, "MULTIPLE", 24)
    spans = random_spans(20)
    scorer = Scorer(model, tokenizer, batch_size=4)
    assert {width for _, width in fed_shapes(model, lambda: scorer.score(spans))} <= {24, 32}
    check(model, spans, scorer.score(spans))


def test_nothing_to_score(scorer):
    assert scorer.score([]) == []
    assert scorer.score([Span((1, 2), ())]) == [(0.0, True)]
    assert scorer.encode([]) == []


def test_context_and_prefix_are_read_from_the_model(scorer, model, tokenizer):
    assert scorer.context == 32
    assert scorer.prefix == tokenizer.eos_token_id


def test_tokenizer_without_a_prefix_is_refused(model):
    class Bare:
        bos_token_id = eos_token_id = None

    with pytest.raises(ValueError, match="neither bos_token nor eos_token"):
        Scorer(model, Bare(), batch_size=1)


def branching_spans() -> list[Span]:
    """Questions with several choices, pairs that differ in the middle, prefixes of one another."""
    generator = torch.Generator().manual_seed(5)

    def draw(num):
        return tuple(torch.randint(0, 300, (num,), generator=generator).tolist())

    spans = []
    for length in (3, 9, 20):
        question = draw(length)
        for size in (1, 4, 7):
            choice = draw(size)
            spans.append(Span((*question, *choice[:-1]), choice))
    whole = draw(14)
    for cut in (4, 9, 14):
        spans.append(Span(whole[:cut], draw(cut)))
    changed = (*whole[:7], *draw(7))
    spans += [Span(changed, draw(14)), Span(whole, draw(2))]
    return spans


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_sequences_that_begin_alike_score_as_if_alone(model, tokenizer, batch_size, monkeypatch):
    monkeypatch.setattr(scoring, "MULTIPLE", 1)
    spans = branching_spans() + random_spans(8)
    scorer = Scorer(model, tokenizer, batch_size=batch_size)
    shapes = fed_shapes(model, lambda: scorer.score(spans))
    check(model, spans, scorer.score(spans))
    if batch_size == 1:  # no padding: a shared beginning is fed once
        alone = sum(len(inputs) for inputs in {span.inputs for span in spans})
        assert sum(rows * width for rows, width in shapes) < 0.8 * alone


def test_gpt2_shares_beginnings_too(tokenizer):
    from transformers import GPT2Config, GPT2LMHeadModel

    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = GPT2Config(
            vocab_size=320, n_positions=32, n_embd=32, n_layer=2, n_head=2, initializer_range=0.3
        )
        model = GPT2LMHeadModel(config).eval()
    spans = branching_spans()
    check(model, spans, Scorer(model, tokenizer, batch_size=4).score(spans))


def test_a_model_without_positions_runs_each_sequence_alone(model, tokenizer):
    class Plain(torch.nn.Module):
        config, dtype, device = model.config, model.dtype, model.device

        def forward(self, input_ids, use_cache=False):
            return model(input_ids)

    spans = branching_spans()
    check(model, spans, Scorer(Plain(), tokenizer, batch_size=4).score(spans))


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_zeros_are_skipped_with_the_same_scores(kind, tokenizer, tmp_path):
    """The dense model with the same zeros is the reference."""
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    from sparse_lib.device import Ledger, kernels

    if why := kernels.unavailable():
        pytest.skip(why)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "gpt2":
            model = GPT2LMHeadModel(
                GPT2Config(vocab_size=320, n_positions=32, n_embd=256, n_layer=1, n_head=2)
            )
        else:
            model = LlamaForCausalLM(
                LlamaConfig(
                    vocab_size=320,
                    hidden_size=256,
                    intermediate_size=512,
                    num_hidden_layers=1,
                    num_attention_heads=2,
                    max_position_embeddings=32,
                    tie_word_embeddings=True,
                )
            )
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if weight.dim() == 2 and not re.search("embed|wte|wpe", name):
                    weight *= torch.rand_like(weight) > 0.9
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    dense, auto = (
        scoring.load(tmp_path, batch_size=4, dtype="float32", execution=execution)
        for execution in ("dense", "auto")
    )
    assert type(dense.model) is type(model)
    spans = branching_spans() + random_spans(8)
    with Ledger(auto.model) as ledger:
        scores = auto.score(spans)
    totals = ledger.totals("forward")
    assert totals["skipped_flops"] > 0.5 * totals["dense_flops"]
    for (nats, greedy), (expected, is_greedy) in zip(scores, dense.score(spans), strict=True):
        assert nats == pytest.approx(expected, rel=1e-6)
        assert greedy == is_greedy


def test_a_dense_model_and_other_formats_are_left_as_they_are(model_dir):
    for options in ({"dtype": "float32"}, {"dtype": "bfloat16"}):
        loaded = scoring.load(model_dir, batch_size=4, **options).model
        assert type(loaded).__module__.startswith("transformers")
        assert not any(name.endswith("_mask") for name, _ in loaded.named_buffers())
