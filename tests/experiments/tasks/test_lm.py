"""The data section of language models."""

import pytest

from experiments.tasks.lm import Data

SIZES = {"vocab_size": 257, "context": 8}


def test_folders_of_prepared_data_differ_by_the_owner_of_a_tokenizer():
    ids = [
        "openai-community/gpt2",
        "other-owner/gpt2",
        "third/gpt2",
        "openai-community/gpt2-xl",
        None,
    ]
    labels = [Data(name="wikipedia-start", tokenizer=hub_id, **SIZES).label for hub_id in ids]
    assert labels[0] == "wikipedia-start-gpt2" and labels[-1] == "wikipedia-start-v257"
    assert len(set(labels)) == len(ids)


@pytest.mark.parametrize("hub_id", ["gpt2", "a/b/c", "../x", "a/..", "a/b c", "a--b/c", ""])
def test_a_tokenizer_is_named_by_owner_and_name(hub_id):
    with pytest.raises(ValueError, match="tokenizer"):
        Data(name="wikipedia-start", tokenizer=hub_id, **SIZES)


def test_an_unknown_dataset_or_one_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="data.name is 'wikipedai', .*; did you mean 'wikipedia'"):
        Data(name="wikipedai", **SIZES)
    with pytest.raises(ValueError, match="data.name is 'glyphs', but must be one of .*wikipedia"):
        Data(name="glyphs", **SIZES)
