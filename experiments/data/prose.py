"""Turn docstrings into paragraphs of plain English sentences.

Everything here is a pure function of its text argument, so that the extracted corpus depends
on nothing but the sources it is read from.
"""

import ast
import re
from collections.abc import Iterator

MIN_PARAGRAPH_WORDS = 12
MIN_SENTENCE_WORDS = 5

# Sections that hold code or citations rather than prose (NumPy and Google styles).
_DROPPED_SECTIONS = frozenset(
    """citation command demo doctest example reference see source test todo usage""".split()
)
_UNDERLINE = re.compile(r"\s*([-=~^*#`.+])\1{2,}\s*$")
_CODE_LINE = re.compile(r"(>>>|\.\.\.(\s|$)|\$ |In \[|Out\[|%|@|\||\+[-=]|#|!)")
_DIRECTIVE = re.compile(r"\.\.(\s|$)")
_FENCE = re.compile(r"(```|~~~)")
# The head of a parameter's entry: ":param x:", "x (int):" or NumPy's "x : int" (a whole line).
_ENTRY = re.compile(r"(:[A-Za-z][^:]*:|\*{0,2}\w+(\s\([^)]*\))?:|[*\w][*\w, ]* : .*$)(\s+|$)")
_ITEM = re.compile(r"([-*+•]|\(?(\d{1,2}|[a-z])[.)])\s+")

_ROLE = re.compile(r":(?:[a-z]+:)?([a-z]+):`([^`]*)`")
_LITERAL = re.compile(r"``([^`]*)``|`([^`]*)`_{0,2}")
_TARGET = re.compile(r"^(.*?)\s*<[^>]*>$", re.DOTALL)
_MARKDOWN_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_CITATION = re.compile(r"\s*\[[^\]]*\]_")
_EMPHASIS = re.compile(r"(?<![\w*])(\*{1,2})(?=\S)([^*]+?)(?<=\S)\1(?![\w*])")
_SPACE = re.compile(r"\s+")
_URL = re.compile(r"https?:|www\.|ftp:|\.com\b|\.org\b|doi:")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[\"'(]?[A-Z])")
_SENTENCE = re.compile(r"[\"'(]?[A-Z].*[.!?:][\"')]{0,2}$")
_PLAIN = re.compile(r"[\"'(]?[A-Za-z][a-z]*(?:['-][A-Za-z]+)*[\"')]*[.,;:!?]?[\"')]*")
_WORD = re.compile(r"[A-Za-z0-9]+")
_FUNCTION_WORDS = frozenset(
    """a an and are as at be by can for from has have if in is it its may not of on or should such
    that the their then there these they this to use used using was when which will with you
    your""".split()
)
_QUOTES = str.maketrans(
    {"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u2014": "-"}
)


def docstrings(source: bytes | str) -> Iterator[str]:
    """Yield the docstrings of a module, its classes and functions, in source order.

    Args:
        source: Python source text. It is parsed, never executed.

    Yields:
        Each docstring, indentation included. Nothing if the source does not parse.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        body = getattr(node, "body", None) or []
        if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            if isinstance(body[0].value.value, str):
                yield body[0].value.value
        defined = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        pending.extend(child for child in reversed(body) if isinstance(child, defined))


def paragraphs(docstring: str) -> list[str]:
    """Return the paragraphs of real sentences in a docstring, free of markup.

    Code blocks, doctests, tables, parameter lists, citations and sentences with addresses are
    dropped; what remains is cut into sentences, and only English-looking ones stay.

    Args:
        docstring: Docstring text with its original indentation.

    Returns:
        Paragraphs of at least `MIN_PARAGRAPH_WORDS` words, each on one line.
    """
    if len(docstring) < 60:
        return []
    found = []
    for block in _blocks(docstring):
        kept = " ".join(filter(_is_english, _SENTENCE_END.split(_strip_markup(block))))
        if kept.count(" ") + 1 >= MIN_PARAGRAPH_WORDS:
            found.append(kept)
    return found


def words(text: str) -> list[str]:
    """Return the lower-cased alphanumeric words of a text (the unit of overlap checks)."""
    return _WORD.findall(text.lower())


def _blocks(docstring: str) -> Iterator[str]:
    """Yield runs of prose lines, skipping code, tables and dropped sections."""
    lines = docstring.expandtabs().split("\n")
    block: list[str] = []
    indent_of_block = 0
    skipped_indent = -1  # lines indented more than this are skipped; -1: none
    in_section = in_fence = False
    for index, line in enumerate(lines):
        text = line.lstrip()
        indent = len(line) - len(text)
        is_fence = _FENCE.match(text) is not None
        in_fence ^= is_fence
        underlined = index + 1 < len(lines) and _UNDERLINE.match(lines[index + 1]) is not None
        if text and underlined:
            in_section = _is_dropped(text)
        if text and 0 <= skipped_indent and indent <= skipped_indent:
            skipped_indent = -1
        skipped = in_fence or in_section or 0 <= skipped_indent < indent
        entry = _ITEM.match(text) or _ENTRY.match(text)
        if block and (
            skipped
            or not text
            or entry
            or underlined
            or (len(block) > 1 and indent != indent_of_block)
        ):
            yield " ".join(block)
            block = []
        if skipped or is_fence or underlined or not text:
            continue
        if _CODE_LINE.match(text) or _UNDERLINE.match(text):
            continue
        if _is_dropped_header(text) or _DIRECTIVE.match(text):
            skipped_indent = indent
            continue
        block.append(text[entry.end() :] if entry else text)
        indent_of_block = indent
        if text.rstrip().endswith("::"):
            skipped_indent = indent
    if block:
        yield " ".join(block)


def _is_dropped(header: str) -> bool:
    return header.split()[0].lower().rstrip(":s") in _DROPPED_SECTIONS


def _is_dropped_header(line: str) -> bool:
    return line.rstrip().endswith(":") and len(line.split()) <= 2 and _is_dropped(line)


def _strip_markup(text: str) -> str:
    """Replace reStructuredText and Markdown inline markup by the words it shows."""
    if not text.isascii():
        text = text.translate(_QUOTES)
    if "`" in text:
        text = _ROLE.sub(_role_text, text)
        text = _LITERAL.sub(lambda match: _link_text(match[1] or match[2] or ""), text)
    if "[" in text:
        text = _CITATION.sub("", _MARKDOWN_LINK.sub(r"\1", text))
    if "*" in text:
        text = _EMPHASIS.sub(r"\2", text)
    return _SPACE.sub(" ", text).replace("::", ":").strip()


def _role_text(match: re.Match[str]) -> str:
    if match[1] == "math":
        return "$"  # not English: the sentence filter drops it
    text = _link_text(match[2])
    return text.rsplit(".", 1)[-1] if text.startswith("~") else text


def _link_text(text: str) -> str:
    target = _TARGET.match(text)
    return target[1] if target and target[1] else text


def _is_english(sentence: str) -> bool:
    """Whether a sentence reads as English prose: mostly plain words, some function words."""
    if not _SENTENCE.match(sentence) or _URL.search(sentence) or "$" in sentence:
        return False
    tokens = sentence.split(" ")
    if len(tokens) < MIN_SENTENCE_WORDS or not sentence.isascii():
        return False
    plain = sum(1 for token in tokens if _PLAIN.fullmatch(token))
    function = sum(1 for token in tokens if token.lower() in _FUNCTION_WORDS)
    return plain >= 0.8 * len(tokens) and function >= 0.2 * len(tokens)
