"""YAML with the types of JSON, no key twice, and no anchors that fill the memory."""

from __future__ import annotations

import re
from typing import Any

import yaml

from experiments.errors import UserError


# libyaml's where the wheel has it: it reads the studies ten times faster.
class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Reads 1e-3 and 1.0e6 as numbers, as YAML 1.2 does; 1.1 takes them for text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    [*"-+.0123456789"],
)
#: Types that JSON has too; dates and bytes have no place in a spec.
_PLAIN = ("null", "bool", "int", "float", "str", "seq", "map")
#: Values of a file with every anchor written out; the largest study has some 2,000.
MAX_VALUES = 100_000


def read_yaml(text: str) -> Any:
    """The value of a YAML text in which every key is text and occurs once in its mapping.

    Raises:
        yaml.YAMLError: If it is no YAML.
        UserError: For another key, a value that JSON does not have, or too many values; one
            sentence that names the line.
    """
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _count(node, set(), {})
        return loader.construct_document(node)
    except RecursionError:
        raise UserError("it is nested too deeply") from None
    except UserError:
        raise
    except ValueError as error:  # what YAML takes for a number and Python does not
        raise UserError(str(error)) from None
    finally:
        loader.dispose()


def _count(node: yaml.Node, above: set[int], counted: dict[int, int]) -> int:
    """Check keys and types of all nodes of a tree, in which anchors make nodes occur again.

    Returns:
        The number of values, those of an anchor wherever it occurs.
    """
    line = node.start_mark.line + 1
    kind = node.tag.removeprefix("tag:yaml.org,2002:")
    if kind not in _PLAIN:
        raise UserError(f"line {line}: a value of type {kind} is not allowed; quote it as text")
    if id(node) in above:
        raise UserError(f"line {line}: an anchor may not hold itself")
    if isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) not in counted:
        above.add(id(node))
        if isinstance(node, yaml.MappingNode):
            _check_keys(node)
        is_mapping = isinstance(node, yaml.MappingNode)
        children = [value for _, value in node.value] if is_mapping else node.value
        counted[id(node)] = 1 + sum(_count(child, above, counted) for child in children)
        above.remove(id(node))
    if counted[id(node)] > MAX_VALUES:
        raise UserError(
            f"line {line}: this holds {counted[id(node)]:g} values with its anchors written out, "
            f"but at most {MAX_VALUES:,} are allowed"
        )
    return counted[id(node)]


def _check_keys(node: yaml.MappingNode) -> None:
    """Check that all keys are text and differ."""
    seen = set()
    for key, _ in node.value:
        if key.tag == "tag:yaml.org,2002:merge":
            continue
        where = f"line {key.start_mark.line + 1}"
        shown = " ".join(str(getattr(key, "value", "")).split())
        if key.tag != "tag:yaml.org,2002:str":
            kind = key.tag.rpartition(":")[2]
            raise UserError(
                f"{where}: the key {shown:.80} is of type {kind}, but must be text; quote it"
            )
        if key.value in seen:
            raise UserError(f"{where}: the key {shown:.80} occurs twice in one mapping")
        seen.add(key.value)
