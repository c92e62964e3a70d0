"""Matplotlib's SVG with shorter path data; what is drawn is the same to a hundredth of a point."""

from __future__ import annotations

import re

#: Digits after the point; a unit is a point, and in glyphs a sixty-fourth of one or less.
DIGITS = 2
_DATA = re.compile(r'(?<= d=")[^"]*(?=")')
_PLACE = re.compile(r'(?<= [xy]=")-?\d+\.\d+(?=")')


def compact(text: str) -> str:
    """Round path data and positions, and leave out what follows: an L after an M or an L."""
    text = _DATA.sub(lambda found: _path(found[0]), text)
    return _PLACE.sub(lambda found: _number(found[0]), text)


def _path(data: str) -> str:
    words: list[str] = []
    last = ""
    for word in data.split():
        if not word.isalpha():
            words.append(_number(word))
            continue
        if word != "L" or last not in ("M", "L"):
            words.append(word)
        last = word
    return " ".join(words)


def _number(word: str) -> str:
    shorter = f"{float(word):.{DIGITS}f}".rstrip("0").rstrip(".")
    return "0" if shorter == "-0" else shorter
