"""The grammar's floor against exhaustive enumeration, parsing and sampling."""

import json
import math
import random

import pytest

from experiments import data
from experiments.data import grammar


def all_sentences(rules, symbol="S"):
    """Every derivation of a small grammar: (words, probability)."""
    if symbol not in rules:
        return [([symbol], 1.0)]
    found = []
    for probability, right in rules[symbol]:
        partial = [([], probability)]
        for part in right:
            partial = [
                (words + more, p * q)
                for words, p in partial
                for more, q in all_sentences(rules, part)
            ]
        found += partial
    return found


@pytest.fixture(scope="module")
def small_rules():
    """The real grammar with its two most frequent words per category."""
    lexical = {s for s, rules in grammar.GRAMMAR.items() if s.split(".")[0] in grammar.LEXICAL}
    return {
        symbol: grammar.zipf([right[0] for _, right in rules[:2]])
        if symbol in lexical and symbol not in ("Adj", "Adverb", "Prep")
        else grammar.zipf([rules[0][1][0]])
        if symbol in lexical
        else rules
        for symbol, rules in grammar.GRAMMAR.items()
    }


def test_floor_is_the_entropy_of_the_enumerated_sentences(small_rules):
    table = all_sentences(small_rules)
    assert math.fsum(p for _, p in table) == pytest.approx(1, abs=1e-12)
    strings = {}
    for words, p in table:
        strings[" ".join(words)] = strings.get(" ".join(words), 0.0) + p
    assert len(strings) == len(table)  # no sentence has two derivations
    entropy = -math.fsum(p * math.log(p) for p in strings.values())
    length = math.fsum(p * (len(s.split()) + 1) for s, p in strings.items())
    floor = grammar.floor(small_rules)
    assert floor.nats_per_sentence == pytest.approx(entropy, rel=1e-9)
    assert floor.tokens_per_sentence == pytest.approx(length, rel=1e-9)
    assert floor.nats_per_token == pytest.approx(entropy / length, rel=1e-9)
    assert floor.perplexity == pytest.approx(math.exp(entropy / length), rel=1e-9)


def test_floor_of_a_coin_by_hand():
    coin = {"S": [(0.25, ("heads",)), (0.75, ("tails", "tails"))]}
    entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert grammar.floor(coin).nats_per_token == pytest.approx(entropy / 2.75, rel=1e-12)


def test_each_word_has_one_category_and_only_the_article_two_numbers():
    categories = {}
    for symbol, rules in grammar.GRAMMAR.items():
        if symbol.split(".")[0] in grammar.LEXICAL:
            for _, (word,) in rules:
                categories.setdefault(word, []).append(symbol)
    assert {w for w, symbols in categories.items() if len(symbols) > 1} == {"the"}
    assert "that" not in categories


def test_rules_are_distributions():
    for rules in grammar.GRAMMAR.values():
        assert math.fsum(p for p, _ in rules) == pytest.approx(1, abs=1e-12)


def test_samples_have_one_derivation_with_the_sampled_probability():
    rng = random.Random(7)
    for _ in range(150):
        words, log_probability = grammar.sample(rng)
        (parsed,) = grammar.derivations(" ".join(words))
        assert parsed == pytest.approx(log_probability, abs=1e-9)


def test_sampled_loss_agrees_with_the_floor():
    rng = random.Random(3)
    drawn = [grammar.sample(rng) for _ in range(4000)]
    losses = [-log_probability for _, log_probability in drawn]
    mean = sum(losses) / len(losses)
    spread = math.sqrt(sum((x - mean) ** 2 for x in losses) / len(losses) ** 2)
    assert abs(mean - grammar.floor().nats_per_sentence) < 4 * spread


def test_good_is_possible_and_bad_impossible_by_one_word():
    pairs = grammar.minimal_pairs(12)
    assert len({tuple(pair.values()) for pair in pairs}) == len(pairs) == 12 * 6
    for pair in pairs:
        good, bad = pair["good"].split(), pair["bad"].split()
        assert len(grammar.derivations(pair["good"])) == 1
        assert grammar.derivations(pair["bad"]) == []
        assert len(good) == len(bad)
        assert sum(a != b for a, b in zip(good, bad, strict=True)) == 1


def test_prepared_grammar_is_deterministic_and_one_token_per_word(tmp_path, monkeypatch):
    monkeypatch.setattr(grammar, "NUM_SENTENCES", {"train": 300, "validation": 40, "test": 40})
    metas = [data.prepare("grammar", out=tmp_path / x, vocab_size=999) for x in "ab"]
    assert metas[0]["hash"] == metas[1]["hash"]
    corpus = data.load(tmp_path / "a")
    texts = corpus.text("validation")
    assert len(corpus.tokens("validation")) == sum(len(t.split()) + 1 for t in texts)
    losses = [grammar.derivations(text)[0] for text in texts]
    exact = -sum(losses) / len(corpus.tokens("validation"))
    assert corpus.meta["floor_of_split"]["validation"] == pytest.approx(exact, rel=1e-9)
    assert corpus.meta["floor"]["perplexity"] == pytest.approx(grammar.floor().perplexity)
    assert corpus.meta["vocab_size"] == len(grammar.vocabulary()) + 1
    lines = (tmp_path / "a" / "pairs.jsonl").read_text().splitlines()
    assert len(lines) == 6 * grammar.NUM_PAIRS_PER_KIND
    assert set(json.loads(lines[0])) == {"good", "bad", "kind"}
