"""Inputs that are nearly right: values, YAML documents and bytes with a few faults each."""

from __future__ import annotations

import copy
import datetime
import json
import math
from typing import Any

import yaml
from hypothesis import strategies as st

#: Names that must never become a path, a shell word or a piece of HTML.
EVIL_NAMES = (
    "", " ", ".", "..", "../victim", "../../etc", "/etc/passwd", "a/b", "a\\b", "a\0b", "a\nb", "~",
    "$(touch pwned)", "`touch pwned`", "a;touch pwned", "a|b", "a&b", "'", '"', "{scale}", "{",
    "}}", "<b>", "<script>alert(1)</script>", "*", "?", "-", "--help", "-rf", "%s", "ünïcødé",
    "日", "\u202egnp", "\ud83d\ude00", "a" * 300, "a" * 5000, "CON", "NaN", "null", "true", "1e9",
    "0x10", "name__with__underscores", "__", "seed0", "all", "smoke", "model.safetensors", "\x1b[m",
)  # fmt: skip
SHARES = ("75%", "0%", "-5%", "101%", "inf%", "nan%", "1e999%", "%", "5 %", "٣%", "1_0%", "5%%")
NUMBERS = (
    0, -0.0, 1, -1, 2, 3, 7, 0.5, 0.8, 0.999999, 1.0, 1.5, -0.5, 1e-300, 1e308, -1e308, math.inf,
    -math.inf, math.nan, 10**9, 2**31, 2**63, 2**64, 10**30, 10**400, -(10**400),
)  # fmt: skip
EVIL_VALUES = (
    None, True, False, [], {}, [[]], [{}], {"a": 1}, {1: 2, "a": 3}, {None: 1}, {True: 1}, b"bytes",
    datetime.date(2026, 1, 1), datetime.datetime(2026, 1, 1), ["a", 1, None], {"name": "glyphs"},
    {"type": "cosine"}, {"algorithm": "rigl"}, [1, 2], [0.9, 0.95], [math.nan], {"": ""},
)  # fmt: skip

evil_names = st.sampled_from(EVIL_NAMES)
odd_values = st.one_of(
    st.sampled_from(EVIL_VALUES),
    st.sampled_from(NUMBERS),
    evil_names,
    st.sampled_from(SHARES),
    st.integers(-5, 5),
    st.floats(0, 1),
    st.text(max_size=8),
).map(copy.deepcopy)  # later faults go into it
odd_keys = st.one_of(
    evil_names,
    st.sampled_from([0, -1, 1.5, None, True, b"key", datetime.date(2026, 1, 1), math.nan]),
    st.text(max_size=6),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all mappings, lists and leaves of a document."""
    found = [path]
    if isinstance(value, dict):
        for key, item in value.items():
            found += places(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            found += places(item, (*path, index))
    return found


def at(value: Any, path: tuple[Any, ...]) -> Any:
    """What lies at a path."""
    for key in path:
        value = value[key]
    return value


@st.composite
def mutated(draw: st.DrawFn, documents: list[Any], max_faults: int = 3) -> Any:
    """A copy of one of the documents with a few faults; its own keys and values come up too."""
    document = copy.deepcopy(documents[draw(st.integers(0, len(documents) - 1))])
    for _ in range(draw(st.integers(1, max_faults))):
        paths = places(document)
        path = paths[draw(st.integers(0, len(paths) - 1))]
        if not path:
            if draw(st.integers(0, 30)) == 0:
                return draw(odd_values)
            continue
        parent, key = at(document, path[:-1]), path[-1]
        _break(draw, document, paths, parent, key)
    return document


def _break(draw: st.DrawFn, document: Any, paths: list[Any], parent: Any, key: Any) -> None:
    """One fault at ``parent[key]``."""
    fault = draw(st.integers(0, 12))
    if fault >= 10:
        parent[key] = _nudged(draw, parent[key])
    elif fault <= 3:
        parent[key] = draw(odd_values)
    elif fault == 4:
        del parent[key]
    elif fault == 5:
        # What is right elsewhere.
        other = paths[draw(st.integers(0, len(paths) - 1))]
        parent[key] = copy.deepcopy(at(document, other))
    elif fault == 6 and isinstance(parent, dict):
        parent[draw(odd_keys)] = parent.pop(key)
    elif fault == 7 and isinstance(parent, dict):
        other = paths[draw(st.integers(0, len(paths) - 1))]
        parent[other[-1] if other else "x"] = draw(odd_values)
    elif fault == 8 and isinstance(parent[key], int | float):
        factor = draw(st.sampled_from([-1, 0, 0.5, 2, 3, 1e-9, 1e9]))
        parent[key] = parent[key] * factor
    elif fault == 9 and isinstance(parent[key], str):
        text = parent[key]
        place = draw(st.integers(0, len(text)))
        parent[key] = text[:place] + draw(evil_names) + text[place + 1 :]
    else:
        parent[key] = draw(st.sampled_from([[parent[key]], {"x": parent[key]}, str(parent[key])]))


def as_json(value: Any) -> str:
    """JSON of a mutated document, whose keys may be of any type."""
    return json.dumps(_json_keys(value), default=str)


def _json_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _json_keys(item) for key, item in value.items()}
    return [_json_keys(item) for item in value] if isinstance(value, list) else value


def _nudged(draw: st.DrawFn, value: Any) -> Any:
    """A value of the same kind, which may well be allowed."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return draw(st.integers(1, 64))
    if isinstance(value, float):
        return draw(st.floats(0.01, 0.99))
    if isinstance(value, str):
        return draw(st.sampled_from(["10%", "50%", "linear", "cosine", "a", "x-1", value + "1"]))
    return copy.deepcopy(value)


LINES = (
    "name: again", "\t- tab", "x: &a [*a]", "<<: *nothing", "? [complex, key]\n: 1", "- item",
    "!!python/object/apply:os.system ['touch pwned']", "a: !!python/name:os.system", "a: !!int x",
    "a: !!binary '%%%'", "a: !!timestamp 9999-99-99", "a: 2026-13-45", "a: 1:2:3", "a: !!float x",
    "a: &x {b: *x}", "--- # second document", "...", "%YAML 9.9", "key: value: value", "'", '"\\x"',
    "a: [" + "[" * 500, "a: " + "{a: " * 300, "[" * 5000, "#" * 10, "a: |\n  text", "a: 0o777",
    "<<: {seed: 3}", "<<: [1, 2]", "methods: {}", "scales:", "a: !<tag:x> 1", "? x", ": y", "0: 1",
    "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]"
    "\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]",
)  # fmt: skip
BYTES = (b"\xff\xfe", b"\x00", b"\xef\xbb\xbf", b"\xc3", b"\r", b"\x85", b"\x07", b"\xed\xa0\x80")


@st.composite
def yaml_files(draw: st.DrawFn, documents: list[Any]) -> bytes:
    """The bytes of a YAML file: faults in what it says, in its lines, or in its bytes."""
    document = draw(mutated(documents))
    content = _dumped(document, allow_unicode=draw(st.booleans()))
    kind = draw(st.integers(0, 11))
    if kind <= 7:
        return content
    lines = content.split(b"\n")
    place = draw(st.integers(0, len(lines) - 1))
    if kind == 8:  # a duplicate key, mostly
        lines.insert(draw(st.integers(0, len(lines) - 1)), lines[place])
    elif kind == 9:
        lines.insert(place, draw(st.sampled_from(LINES)).encode())
    elif kind == 10:
        lines[place] = draw(st.sampled_from([b"", b" " + lines[place], lines[place][1:], b"- x"]))
    else:
        return draw(damaged(content))
    return b"\n".join(lines)


def _dumped(document: Any, allow_unicode: bool) -> bytes:
    """YAML of a document; libyaml writes no half of a surrogate pair, Python's own writer does."""
    options: dict[str, Any] = {"sort_keys": False, "allow_unicode": allow_unicode}
    try:
        return yaml.dump(document, Dumper=_Dumper, **options).encode()
    except UnicodeEncodeError:
        text = yaml.dump(document, Dumper=_SlowDumper, **options)
        return text.encode("utf-8", "surrogatepass")


class _Plain:
    """No anchors of its own: copies of one value are written out."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


class _SlowDumper(_Plain, yaml.SafeDumper):
    """In Python."""


class _Dumper(_Plain, getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """By libyaml, where the wheel has it."""


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes that are flipped, cut, doubled or overwritten; never the same as before."""
    place = draw(st.integers(0, max(0, len(content) - 1)))
    fault = draw(st.integers(0, 6))
    if fault == 0:
        return content[:place]
    if fault == 1:
        return b""
    if fault == 2:
        return content[:place] + draw(st.sampled_from(BYTES)) + content[place:]
    if fault == 3:
        length = draw(st.integers(1, 64))
        return content[:place] + bytes(length) + content[place + length :]
    if fault == 4:
        return content + content[place:] + b"\x00"
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        if changed:
            changed[place % len(changed)] ^= draw(st.integers(1, 255))
            place = draw(st.integers(0, len(changed) - 1))
    return bytes(changed)
