import re

import pytest
import torch

from experiments.evaluation.lm import scoring
from experiments.evaluation.lm.scoring import Scorer, Span


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


#: Small models of other kinds; a sliding window is shorter than the rows.
OTHERS = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 32},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "gpt_neox": {"intermediate_size": 48},
    "mistral": {"sliding_window": 4, "intermediate_size": 48, "num_key_value_heads": 2},
    "qwen2": {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}
    | {"num_key_value_heads": 2},
    "bloom": {"n_head": 2, "n_layer": 2, "seq_length": 32},
    "lfm2": {"num_key_value_heads": 2, "block_ff_dim": 48, "full_attn_idxs": [1]},
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_models_score_as_one_sequence_at_a_time(kind, tokenizer):
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"vocab_size": 320, "max_position_embeddings": 32}
    if kind == "gpt2":
        sizes = {"vocab_size": 320, "initializer_range": 0.3}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = AutoConfig.for_model(kind, **{**sizes, **OTHERS[kind]})
        model = AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():
            for weight in model.parameters():
                if weight.dim() > 1:
                    weight.normal_(0, 0.3)
    if kind == "bloom":  # alibi, so the config has no longest sequence
        config.max_position_embeddings = 32
    spans = branching_spans() + random_spans(8)
    check(model, spans, Scorer(model, tokenizer, batch_size=4).score(spans))


def test_long_vocabularies_are_reduced_in_several_parts(model, tokenizer, monkeypatch):
    monkeypatch.setattr(scoring, "CACHED_LOGITS", 7 * 320)
    spans = branching_spans() + random_spans(8)
    check(model, spans, Scorer(model, tokenizer, batch_size=16).score(spans))


def test_of_equal_maxima_the_first_is_greedy():
    logits = torch.zeros(1, 5)
    logits[0, 2] = logits[0, 4] = 1.0
    places = torch.zeros(3, dtype=torch.long)
    _, wrong = scoring._score_places(logits, places, torch.tensor([2, 4, 0]))
    assert wrong.tolist() == [0.0, 1.0, 1.0]


def test_the_output_head_runs_only_where_a_token_is_scored(model, tokenizer):
    rows = []
    head = model.get_output_embeddings()
    hook = head.register_forward_hook(lambda module, args, out: rows.append(out.shape[-2]))
    try:
        Scorer(model, tokenizer, batch_size=4).score([Span(tuple(range(20)), (1, 2))])
    finally:
        hook.remove()
    assert rows == [2]


def test_missing_weights_are_refused(model, tokenizer, tmp_path):
    from safetensors.torch import load_file, save_file

    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.1.mlp.down_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks 1 of the model's weights, model\.layers\.1\.mlp"):
        scoring.load(tmp_path, batch_size=1, dtype="float32")


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_zeros_are_skipped_with_the_same_scores(kind, tokenizer, tmp_path):
    """The dense model with the same zeros is the reference."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from sparse_lib.device import Ledger
    from sparse_lib.execution import kernels

    if why := kernels.unavailable():
        pytest.skip(why)
    if kind == "gpt2":
        sizes = {"n_positions": 32, "n_embd": 256, "n_layer": 1, "n_head": 2}
    else:
        sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1}
        sizes |= {"num_attention_heads": 2, "max_position_embeddings": 32}
    config = AutoConfig.for_model(kind, vocab_size=320, tie_word_embeddings=True, **sizes)
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


@pytest.mark.parametrize("family", ["wide", "parallel", "factorized", "doped"])
def test_a_transformed_model_is_read_as_it_was_written(family, model, tokenizer, tmp_path):
    from experiments.models import _transform as transforms

    transform = {"family": family, "sparsity": 0.75}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformed, _, _ = transforms.apply(model, transform)
    transformed.eval().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    transforms.write(tmp_path, model.config.to_dict(), transform)
    loaded = scoring.load(tmp_path, batch_size=4, dtype="float32")
    spans = branching_spans() + random_spans(4)
    check(transformed, spans, loaded.score(spans))
