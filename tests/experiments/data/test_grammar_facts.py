import random

import pytest

from experiments import data
from experiments.data import grammar, grammar_facts
from experiments.data.base import Source


@pytest.mark.parametrize(
    "sentence,meaning",
    [
        ("the dog sees", "see each the dog"),
        ("many old cats like this bird", "like many many old cat each this bird"),
        ("the dogs near this cat follow often", "follow many the dog near each this cat often"),
        ("the dog that sees some cats hears", "hear each the dog that see many some cat"),
        ("each dog that the cats see hears", "hear each each dog that many the cat see"),
    ],
)
def test_meaning_of_a_sentence(sentence, meaning):
    assert grammar_facts.meaning(sentence) == meaning


def test_a_meaning_has_one_sentence_and_a_sentence_one_meaning():
    rng = random.Random(5)
    by_meaning = {}
    for _ in range(3000):
        sentence = " ".join(grammar.sample(rng)[0])
        by_meaning.setdefault(grammar_facts.meaning(sentence), set()).add(sentence)
    assert all(len(sentences) == 1 for sentences in by_meaning.values())


def test_words_are_the_grammars_and_the_separator_is_in_no_sentence():
    rows = grammar_facts.pairs("validation")
    words = {word for row in rows for text in row.values() for word in text.split()}
    assert words <= set(grammar.vocabulary())
    texts = [text for row in rows for text in row.values()]
    assert not any(grammar_facts.SEPARATOR in text for text in texts)


def test_what_is_no_sentence_is_refused():
    for text in ("the dog", "dog the sees", ""):
        with pytest.raises(ValueError, match="no sentence of the grammar"):
            grammar_facts.meaning(text)


def test_facts_to_write_were_not_seen_in_training():
    rows = data.get("grammar-facts").read(Source()).extras["facts.jsonl"]
    seen = {row["meaning"] for row in grammar_facts.pairs("train")}
    assert len(rows) > 300 and not seen & {row["meaning"] for row in rows}
    assert len({row["meaning"] for row in rows}) == len(rows)
