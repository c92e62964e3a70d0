"""Numbers and words of pages and of the terminal: the one place that writes them."""

import math
import re
from typing import Any

from markupsafe import Markup

#: Differences of equal numbers that rounding leaves; they are written as 0.
NEGLIGIBLE = 1e-12


def is_missing(value: Any) -> bool:
    """Whether there is no value."""
    if isinstance(value, float):
        return math.isnan(value)
    # pandas.NA is known by its type, so that the terminal's words need not import pandas.
    return value is None or type(value).__name__ == "NAType"


def settled(value: float) -> float:
    """A number without the noise of rounding around 0."""
    return 0.0 if abs(value) < NEGLIGIBLE else float(value)


def format_cell(value: Any, column: str = "") -> str:
    """A table value as text: 4 significant digits, counts in full, nothing for missing."""
    if is_missing(value):
        return "–"
    if column.split()[-1:] == ["sparsity"]:
        return f"{100 * float(value):.4g}%"
    if isinstance(value, bool) or isinstance(value, str):
        return str(value) if value != "" else "–"
    number = settled(value)
    if number.is_integer() and abs(number) < 1e9:
        return f"{int(number):,}"
    if abs(number) >= 1e6:
        return f"{number:.3e}".replace("e+0", "e").replace("e+", "e")
    return f"{number:.4g}" if abs(number) < 1000 else f"{number:,.1f}"


def markdown(value: Any) -> Markup:
    """A value as Markdown that shows its text and nothing else, on one line.

    Links, emphasis, code, HTML, headings, lists and the ends of table cells are escaped.
    """
    if hasattr(value, "__html__"):
        return Markup(value)
    text = re.sub(r"\s*[\r\n\v\f\x85\u2028\u2029]\s*", " ", str(value))
    text = re.sub(r"[\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", text)
    text = re.sub(r"&(?=#?\w+;)", "&amp;", text).replace("<", "&lt;")
    text = re.sub(r"^(\s*)(#+(?=\s|$)|>|[-+](?=\s|$)|[-=]{2,}\s*$)", r"\1\\\2", text)
    return Markup(re.sub(r"^(\s*\d+)([.)])(?=\s|$)", r"\1\\\2", text))


def markdown_cell(value: Any) -> Markup:
    """A value as `markdown` for a cell of a table, where lines and double spaces stay."""
    lines = map(markdown, str(value).strip().splitlines())
    return Markup("<br>").join(lines).replace("  ", Markup("&nbsp;&nbsp;"))


def markdown_code(value: Any) -> Markup:
    """A value as a span of code, in more backticks than it holds, on one line."""
    text = " ".join(str(value).split())
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " * (text.startswith("`") or text.endswith("`"))
    return Markup(f"{fence}{space}{text}{space}{fence}")


def alt(caption: str) -> str:
    """The beginning of a caption, as what its picture shows."""
    return re.split(r"[.;] ", caption, maxsplit=1)[0]


def in_words(number: float | None) -> str:
    """A count or an amount in three digits and a word: 1.23 million, 4.56e12."""
    if number is None or math.isnan(number):
        return "–"
    for size, word in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if size <= abs(number) < 1e12:
            return f"{number / size:.3g} {word}"
    return f"{number:.2e}".replace("e+", "e") if abs(number) >= 1e12 else f"{number:.3g}"


def in_minutes(minutes: float) -> str:
    """A duration in whole minutes, at least one."""
    number = max(1, round(minutes))
    return f"{number} minute{'s' if number > 1 else ''}"
