"""Minimal pairs from held-out prose: a sentence against itself with two neighbours swapped.

Scored like BLiMP (Warstadt et al. 2020): the model is right when the sentence as written is the
likelier of the two. Both hold the same words, so neither length nor word frequency gives the
answer away; chance is 0.5. What is swapped is a function of the sentence alone (SHA-256), so the
same text yields the same pairs on any machine.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence

#: Shorter ones are mostly headings and fragments; longer ones would not fit small contexts.
NUM_WORDS = range(6, 19)

_BOUNDARY = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_SENTENCE = re.compile(r"[A-Z][A-Za-z ,;:'()-]*[.!?]")
_WORD = re.compile(r"[a-z]+")


def sentences(documents: Iterable[str]) -> Iterator[str]:
    """Plain prose sentences: a capital first, words and light punctuation, an end mark."""
    for document in documents:
        for paragraph in re.split(r"\n\s*\n", document):
            for piece in _BOUNDARY.split(" ".join(paragraph.split())):
                if _SENTENCE.fullmatch(piece) and len(piece.split(" ")) in NUM_WORDS:
                    yield piece


def swap(sentence: str) -> str | None:
    """The sentence with one pair of neighbouring lower-case words exchanged.

    Neither word may carry punctuation or a capital (both would show where the swap is), and the
    two must differ.

    Returns:
        The changed sentence, or None when it has no such pair.
    """
    words = sentence.split(" ")
    places = [
        index
        for index, (left, right) in enumerate(zip(words, words[1:], strict=False))
        if _WORD.fullmatch(left) and _WORD.fullmatch(right) and left != right
    ]
    if not places:
        return None
    place = places[int.from_bytes(_digest(sentence)[:8], "big") % len(places)]
    words[place], words[place + 1] = words[place + 1], words[place]
    return " ".join(words)


def prose_pairs(documents: Sequence[str]) -> list[dict[str, str]]:
    """All minimal pairs of the documents, without repeats, in an order mixed by hash.

    The order makes the first ``n`` pairs a fair sample of the whole text.

    Returns:
        Rows with ``good`` and ``bad``.
    """
    ordered = sorted(set(sentences(documents)), key=_digest)
    changed = ((sentence, swap(sentence)) for sentence in ordered)
    return [{"good": good, "bad": bad} for good, bad in changed if bad is not None]


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
