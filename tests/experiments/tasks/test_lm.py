"""The data section of language models, and the sizes of GPT-2 as published."""

import math

import pytest
import torch

from experiments.models import gpt2, llama
from experiments.tasks.lm import Data
from sparse_lib import ift

SIZES = {"vocab_size": 257, "context": 8}


@pytest.mark.parametrize("name", ["gpt2", "openai-community/gpt2", "glyphs", ""])
def test_a_tokenizer_is_that_of_a_text_dataset(name):
    with pytest.raises(ValueError, match="data.tokenizer is .*, but must be the name of a text"):
        Data(name="wikipedia-start", tokenizer=name, **SIZES)


def test_a_dataset_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="data.name is 'glyphs', but must be one of .*wikipedia"):
        Data(name="glyphs", **SIZES)


@pytest.mark.parametrize(
    ("width", "layers", "heads", "parameters"),
    [(768, 12, 12, 124_439_808), (1024, 24, 16, 354_823_168)],
)
def test_sizes_of_gpt2_are_those_of_the_published_models(width, layers, heads, parameters):
    config = gpt2.Config(hidden_size=width, num_layers=layers, num_heads=heads)
    with torch.device("meta"):
        model = gpt2.build(config, vocab_size=50257, context=1024, eos_id=0)
    assert sum(p.numel() for p in model.parameters()) == parameters


@pytest.mark.parametrize(
    ("module", "own"),
    [(gpt2, {"init_std": 0.3}), (llama, {"intermediate_size": 32, "initialization": "torch"})],
)
def test_a_cpu_in_bfloat16_attends_by_products_as_in_float32(module, own):
    config = module.Config(hidden_size=16, num_layers=1, num_heads=2, **own)
    model = module.build(config, vocab_size=16, context=8, eos_id=0)
    ids = torch.randint(16, (3, 8))
    logits = model(ids).logits
    with torch.autocast("cpu", torch.bfloat16), torch.profiler.profile() as profile:
        half = model(ids).logits
        changed = model(torch.cat([ids[:, :7], 15 - ids[:, 7:]], dim=1)).logits
    assert half.dtype == torch.bfloat16
    assert not any("scaled_dot_product" in event.key for event in profile.key_averages())
    assert torch.equal(half[:, :7], changed[:, :7])
    torch.testing.assert_close(half.float(), logits, atol=0.02 * logits.abs().max().item(), rtol=0)


def test_a_widened_decoder_starts_as_the_dense_one_does():
    shared = {"hidden_size": 32, "num_layers": 1, "num_heads": 2}
    dense = gpt2.Config(**shared, init_std=0.1, positions="sinusoidal")
    model = gpt2.build(dense, vocab_size=16, context=40, eos_id=0)
    wide, _, _ = ift.transform(model, "wide", 0.75)
    for each, width in ((model, 32), (wide, 64)):
        waves = each.transformer.wpe.weight.detach() / (0.1 * 2**0.5)
        assert torch.equal(waves[0], torch.tensor([0.0, 1.0]).repeat(width // 2))
        angle = math.atan2(*waves[7, 2:4])
        assert angle % (2 * math.pi) == pytest.approx(7 / 10_000 ** (2 / width) % (2 * math.pi))
    drawn = llama.Config(**shared, intermediate_size=64, initialization="torch")
    model = llama.build(drawn, vocab_size=512, context=8, eos_id=0)
    for each in (model, ift.transform(model, "wide", 0.75)[0]):
        assert each.lm_head.weight.abs().max() < each.config.hidden_size**-0.5
        assert each.model.embed_tokens.weight.std().item() == pytest.approx(1, rel=0.05)
