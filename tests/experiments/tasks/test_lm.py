"""The data section of language models."""

import pytest

from experiments.tasks.lm import Data

SIZES = {"vocab_size": 257, "context": 8}


@pytest.mark.parametrize("name", ["gpt2", "openai-community/gpt2", "glyphs", ""])
def test_a_tokenizer_is_that_of_a_text_dataset(name):
    with pytest.raises(ValueError, match="data.tokenizer is .*, but must be the name of a text"):
        Data(name="wikipedia-start", tokenizer=name, **SIZES)


def test_an_unknown_dataset_or_one_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="data.name is 'wikipedai', .*; did you mean 'wikipedia'"):
        Data(name="wikipedai", **SIZES)
    with pytest.raises(ValueError, match="data.name is 'glyphs', but must be one of .*wikipedia"):
        Data(name="glyphs", **SIZES)
