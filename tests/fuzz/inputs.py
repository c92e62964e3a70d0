"""Inputs that are nearly right: YAML documents and bytes with a few faults each."""

from __future__ import annotations

import copy
import datetime
import math
from typing import Any

import yaml
from hypothesis import strategies as st

#: Names that must never become a path, a shell word or a piece of HTML.
EVIL_NAMES = (
    "", " ", "..", "../victim", "/etc/passwd", "a\\b", "a\0b", "a\nb", "$(touch pwned)", "a;b", "'",
    "{scale}", "}}", "<script>alert(1)</script>", "*", "--help", "-rf", "%s", "ünïcødé", "\u202e",
    "\ud83d\ude00", "a" * 300, "NaN", "null", "true", "1e9", "__", "seed0", "all", "\x1b[m",
)  # fmt: skip
ODD_VALUES: tuple[Any, ...] = (
    None, True, [], {}, [[]], {"a": 1}, {1: 2, "a": 3}, {None: 1}, b"bytes",
    datetime.date(2026, 1, 1), ["a", 1, None], [math.nan], "75%", "101%", "nan%", "1_0%", 0, -1,
    0.8, 1e308, math.inf, math.nan, 2**63, 10**400,
)  # fmt: skip

odd_values = st.one_of(
    st.sampled_from(ODD_VALUES), st.sampled_from(EVIL_NAMES), st.integers(-5, 5), st.floats(0, 1)
).map(copy.deepcopy)  # later faults go into it


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all mappings, lists and leaves of a document."""
    listed = enumerate(value) if isinstance(value, list) else ()
    inner = value.items() if isinstance(value, dict) else listed
    return [path, *(found for key, item in inner for found in places(item, (*path, key)))]


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
        paths = [path for path in places(document) if path]
        if not paths:
            break
        path, other = (paths[draw(st.integers(0, len(paths) - 1))] for _ in range(2))
        parent, key = at(document, path[:-1]), path[-1]
        fault = draw(st.sampled_from(["value", "gone", "moved", "renamed", "added", "nested"]))
        if fault == "gone":
            del parent[key]
        elif fault == "moved":  # what is right elsewhere
            parent[key] = copy.deepcopy(at(document, other))
        elif fault == "renamed" and isinstance(parent, dict):
            parent[draw(st.sampled_from([*EVIL_NAMES, 0, 1.5, None, True]))] = parent.pop(key)
        elif fault == "added" and isinstance(parent, dict):
            parent[other[-1]] = draw(odd_values)
        elif fault == "nested":
            parent[key] = draw(st.sampled_from([[parent[key]], {"x": parent[key]}]))
        else:
            parent[key] = draw(odd_values)
    return document


LINES = (
    "name: again", "\t- tab", "x: &a [*a]", "<<: *nothing", "? [complex, key]\n: 1", "- item",
    "!!python/object/apply:os.system ['touch pwned']", "a: !!timestamp 9999-99-99", "a: !!float x",
    "--- # second document", "%YAML 9.9", "key: value: value", "'", "a: [" + "[" * 500,
)  # fmt: skip


@st.composite
def yaml_files(draw: st.DrawFn, documents: list[Any]) -> bytes:
    """The bytes of a YAML file: faults in what it says, in its lines, or in its bytes."""
    text = yaml.dump(draw(mutated(documents)), Dumper=_Dumper, sort_keys=False)
    content = text.encode("utf-8", "surrogatepass")
    kind = draw(st.integers(0, 7))
    if kind == 0:
        return draw(damaged(content))
    if kind == 1:
        lines = content.split(b"\n")
        lines.insert(draw(st.integers(0, len(lines) - 1)), draw(st.sampled_from(LINES)).encode())
        return b"\n".join(lines)
    return content


class _Dumper(yaml.SafeDumper):
    """No anchors of its own: copies of one value are written out."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes that are flipped, cut, doubled or overwritten; never the same as before."""
    place = draw(st.integers(0, max(0, len(content) - 1)))
    fault = draw(st.integers(0, 4))
    if fault == 0:
        return content[:place]
    if fault == 1:
        odd = draw(st.sampled_from([b"\xff\xfe", b"\x00", b"\xc3", b"\x85", b"\xed\xa0\x80"]))
        return content[:place] + odd + content[place:]
    if fault == 2:
        length = draw(st.integers(1, 64))
        return content[:place] + bytes(length) + content[place + length :]
    if fault == 3:
        return content + content[place:] + b"\x00"
    changed = bytearray(content or b"\x00")
    changed[place % len(changed)] ^= draw(st.integers(1, 255))
    return bytes(changed)
