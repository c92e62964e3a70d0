"""A probabilistic grammar of small English sentences whose entropy is known exactly.

    S     -> NP(n) VP(n)                  n: singular or plural
    NP(n) -> NP'(n) [PP | RC(n)]
    NP'(n)-> Det(n) [Adj] Noun(n)
    PP    -> Prep NP'(m)                  an attractor: its number m is drawn anew
    RC(n) -> "that" NP'(m) Verb(m)        object relative clause: the verb agrees with m
           | "that" Verb(n) NP'(m)        subject relative clause: the verb agrees with n
    VP(n) -> Verb(n) [NP'(m) | Adverb]

Every sentence has exactly one derivation: each word belongs to one category (and, "the" apart,
to one number), and the word that follows decides every optional part. Its probability is therefore
the product of its choices, and the entropy per sentence obeys
H(A) = sum over rules r of A of p(r) * (-log p(r) + sum of H over the symbols of r).
By Gibbs' inequality no model has a lower expected loss. Reported losses are sums over tokens
divided by the number of tokens, so the floor per token is H(S) / (expected words + 1), the one
being the end of text.
"""

import functools
import itertools
import math
import random
from bisect import bisect
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from experiments.data.base import Dataset, Source, Texts

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Production = tuple[float, tuple[str, ...]]
Grammar = dict[str, list[Production]]

SEED = 1
NUM_SENTENCES = {"train": 200_000, "validation": 10_000, "test": 10_000}
NUM_PAIRS_PER_KIND = 200
NUMBERS = ("singular", "plural")
OTHER = {"singular": "plural", "plural": "singular"}

# Singular and plural forms, most frequent first.
NOUNS = [
    tuple(pair.split("/"))
    for pair in """dog/dogs cat/cats farmer/farmers teacher/teachers child/children bird/birds
    pilot/pilots doctor/doctors horse/horses singer/singers friend/friends judge/judges
    painter/painters wolf/wolves sailor/sailors woman/women""".split()
]
VERBS = [
    tuple(pair.split("/"))
    for pair in """sees/see likes/like follows/follow hears/hear knows/know helps/help finds/find
    watches/watch leaves/leave greets/greet""".split()
]
DETERMINERS = {"singular": "the this every each".split(), "plural": "the these some many".split()}
ADJECTIVES = "old young small tall happy quiet clever brave tired strange".split()
ADVERBS = "often today again quickly slowly here".split()
LEXICAL = ("Det", "Noun", "Verb", "Adj", "Adverb", "Prep")
PREPOSITIONS = "near behind beside with above".split()


def zipf(words: list[str]) -> list[Production]:
    """Return one rule per word, with probabilities proportional to 1/rank (Zipf's law)."""
    total = sum(1 / rank for rank in range(1, len(words) + 1))
    return [(1 / rank / total, (word,)) for rank, word in enumerate(words, start=1)]


def _either(symbol: str) -> list[Production]:
    return [(0.5, (f"{symbol}.{number}",)) for number in NUMBERS]


def _grammar() -> Grammar:
    rules: Grammar = {
        "S": [(0.5, (f"NP.{n}", f"VP.{n}")) for n in NUMBERS],
        "PP": [(1.0, ("Prep", "Object"))],
        "Object": _either("NP'"),
        "Prep": zipf(PREPOSITIONS),
        "Adj": zipf(ADJECTIVES),
        "Adverb": zipf(ADVERBS),
    }
    for i, n in enumerate(NUMBERS):
        inner = [(0.25, ("that", f"NP'.{m}", f"Verb.{m}")) for m in NUMBERS]
        rules |= {
            f"NP.{n}": [
                (0.5, (f"NP'.{n}",)),
                (0.25, (f"NP'.{n}", "PP")),
                (0.25, (f"NP'.{n}", f"RC.{n}")),
            ],
            f"NP'.{n}": [
                (0.75, (f"Det.{n}", f"Noun.{n}")),
                (0.25, (f"Det.{n}", "Adj", f"Noun.{n}")),
            ],
            f"RC.{n}": [*inner, (0.5, ("that", f"Verb.{n}", "Object"))],
            f"VP.{n}": [
                (0.25, (f"Verb.{n}",)),
                (0.5, (f"Verb.{n}", "Object")),
                (0.25, (f"Verb.{n}", "Adverb")),
            ],
            f"Det.{n}": zipf(DETERMINERS[n]),
            f"Noun.{n}": zipf([forms[i] for forms in NOUNS]),
            f"Verb.{n}": zipf([forms[i] for forms in VERBS]),
        }
    return rules


GRAMMAR = _grammar()


def vocabulary(grammar: Grammar = GRAMMAR) -> list[str]:
    """Return the words of a grammar in alphabetical order."""
    symbols = {symbol for rules in grammar.values() for _, right in rules for symbol in right}
    return sorted(symbols - grammar.keys())


@dataclass(frozen=True)
class Floor:
    """The lowest expected loss of any model.

    Attributes:
        nats_per_token: Entropy per token, end of text included.
        perplexity: Its exponential.
        nats_per_sentence: Entropy of a sentence.
        tokens_per_sentence: Expected tokens of a sentence, end of text included.
    """

    nats_per_token: float
    perplexity: float
    nats_per_sentence: float
    tokens_per_sentence: float


def floor(grammar: Grammar = GRAMMAR) -> Floor:
    """Return the exact entropy of a grammar without recursion or ambiguity, in closed form."""

    @functools.cache
    def measure(symbol: str) -> tuple[float, float]:
        if symbol not in grammar:
            return 0.0, 1.0
        entropy = length = 0.0
        for probability, right in grammar[symbol]:
            parts = [measure(part) for part in right]
            entropy += probability * (sum(part[0] for part in parts) - math.log(probability))
            length += probability * sum(part[1] for part in parts)
        return entropy, length

    entropy, length = measure("S")
    rate = entropy / (length + 1)
    return Floor(rate, math.exp(rate), entropy, length + 1)


def sample(rng: random.Random, symbol: str = "S") -> tuple[list[str], float]:
    """Draw a phrase.

    Args:
        rng: Source of randomness.
        symbol: Start symbol.

    Returns:
        Its words and the natural logarithm of the probability of its derivation.
    """
    words: list[str] = []
    log_probability = 0.0
    pending = [symbol]
    while pending:
        symbol = pending.pop()
        if symbol not in GRAMMAR:
            words.append(symbol)
            continue
        rules, ends = GRAMMAR[symbol], _cumulative()[symbol]
        probability, right = rules[min(bisect(ends, rng.random()), len(rules) - 1)]
        log_probability += math.log(probability)
        pending.extend(reversed(right))
    return words, log_probability


@functools.cache
def _cumulative() -> dict[str, list[float]]:
    return {
        symbol: list(itertools.accumulate(probability for probability, _ in rules))
        for symbol, rules in GRAMMAR.items()
    }


def derivations(sentence: str, grammar: Grammar = GRAMMAR) -> list[float]:
    """Return the log-probability (nats) of each derivation of a sentence; none: impossible."""
    words = sentence.split()

    def parses(symbols: tuple[str, ...], start: int) -> Iterator[tuple[int, float]]:
        if not symbols:
            yield start, 0.0
            return
        first, rest = symbols[0], symbols[1:]
        if first not in grammar:
            if start < len(words) and words[start] == first:
                yield from parses(rest, start + 1)
            return
        for probability, right in grammar[first]:
            for middle, log_first in parses(right, start):
                for end, log_rest in parses(rest, middle):
                    yield end, math.log(probability) + log_first + log_rest

    return [log for end, log in parses(("S",), 0) if end == len(words)]


def sentences(split: str) -> tuple[list[str], float]:
    """Generate a split.

    Args:
        split: "train", "validation" or "test". Sentences are independent draws, so the splits
            may share some; the floor holds for each.

    Returns:
        Its sentences, and the exact loss in nats per token that the grammar itself has on them.
    """
    rng = random.Random(f"{SEED} {split}")
    drawn = [sample(rng) for _ in range(NUM_SENTENCES[split])]
    num_tokens = sum(len(words) + 1 for words, _ in drawn)
    loss = -sum(log_probability for _, log_probability in drawn) / num_tokens
    return [" ".join(words) for words, _ in drawn], loss


def minimal_pairs(num_per_kind: int = NUM_PAIRS_PER_KIND) -> list[dict[str, str]]:
    """Return pairs of a sentence and a copy that one word of the other number makes impossible.

    Args:
        num_per_kind: Pairs of each kind.

    Returns:
        Distinct `{"good", "bad", "kind"}`; subject and attractor differ in number wherever there
        is an attractor.
    """
    return [
        {"good": good, "bad": bad, "kind": kind}
        for kind in _KINDS
        for good, bad in _pairs(kind, num_per_kind)
    ]


# Frames of symbols; {n} is the number of the subject, {m} the other one. The symbol in angle
# brackets is the word that changes.
_KINDS = {
    "agreement": "NP'.{n} <Verb.{n}> Object",
    "agreement_across_phrase": "NP'.{n} Prep NP'.{m} <Verb.{n}> Object",
    "agreement_across_clause": "NP'.{n} that NP'.{m} Verb.{m} <Verb.{n}> Object",
    "agreement_in_clause": "NP'.{n} that NP'.{m} <Verb.{m}> Verb.{n} Object",
    "determiner_noun": "<Det.{n}> Noun.{n} Verb.{n} Object",
    "determiner_adjective_noun": "<Det.{n}> Adj Noun.{n} Verb.{n} Object",
}


def _pairs(kind: str, num_pairs: int) -> list[tuple[str, str]]:
    rng = random.Random(f"{SEED} {kind}")
    found: dict[tuple[str, str], None] = {}
    while len(found) < num_pairs:
        number = NUMBERS[rng.random() < 0.5]
        frame = _KINDS[kind].format(n=number, m=OTHER[number]).split()
        good: list[str] = []
        bad: list[str] = []
        for symbol in frame:
            words, _ = sample(rng, symbol.strip("<>"))
            good += words
            bad += [_inflected(words[0])] if symbol.startswith("<") else words
        if good != bad:
            found[" ".join(good), " ".join(bad)] = None
    return list(found)


def _inflected(word: str) -> str:
    """Return the word in the other number; a determiner's counterpart has the same rank."""
    forms = [*NOUNS, *VERBS, *zip(*(DETERMINERS[number] for number in NUMBERS), strict=True)]
    for singular, plural in forms:
        if word in (singular, plural):
            return plural if word == singular else singular
    raise ValueError(f"word is {word!r}, but must be a noun, verb or determiner of the grammar.")


def _read(source: Source) -> Texts:
    splits, losses = {}, {}
    for split in NUM_SENTENCES:
        splits[split], losses[split] = sentences(split)
    facts = {"floor": asdict(floor()), "floor_of_split": losses}
    return Texts(splits, facts, {"pairs.jsonl": minimal_pairs()})


def build_tokenizer() -> "Tokenizer":
    """One token per word of the grammar."""
    from experiments.data.tokenizer import word_level

    return word_level(vocabulary())


DATASETS = (
    Dataset(
        name="grammar",
        license="generated by this repository",
        source="probabilistic grammar (experiments/data/grammar.py)",
        splits="independent draws",
        read=_read,
        build_tokenizer=build_tokenizer,
    ),
)
