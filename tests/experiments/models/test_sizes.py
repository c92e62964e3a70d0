"""Sizes of models are those of the published ones."""

import pytest
import torch
from pydantic import ValidationError

from experiments.models import gpt2


@pytest.mark.parametrize(
    ("width", "layers", "heads", "parameters"),
    [(768, 12, 12, 124_439_808), (1024, 24, 16, 354_823_168)],
)
def test_sizes_of_gpt2_are_those_of_the_published_models(width, layers, heads, parameters):
    config = gpt2.Config(hidden_size=width, num_layers=layers, num_heads=heads)
    with torch.device("meta"):
        model = gpt2.build(config, vocab_size=50257, context=1024, eos_id=0)
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_heads_must_divide_the_width():
    with pytest.raises(ValidationError, match="hidden_size is 10; it must be a multiple of"):
        gpt2.Config(hidden_size=10, num_layers=1, num_heads=4)
