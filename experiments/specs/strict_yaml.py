"""YAML with the types of JSON and no key twice."""

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


def read_yaml(text: str) -> Any:
    """The value of a YAML text in which every key is text and occurs once in its mapping.

    Raises:
        yaml.YAMLError: If it is no YAML.
        UserError: For another key, or a value that JSON does not have; one sentence that names
            the line.
    """
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _check(node, set())
        return loader.construct_document(node)
    except RecursionError:
        raise UserError("it is nested too deeply") from None
    except UserError:
        raise
    except ValueError as error:  # what YAML takes for a number and Python does not
        raise UserError(str(error)) from None
    finally:
        loader.dispose()


def _check(node: yaml.Node, seen: set[int]) -> None:
    """Check keys and types of all nodes of a tree, each once."""
    kind = node.tag.removeprefix("tag:yaml.org,2002:")
    if kind not in _PLAIN:
        line = node.start_mark.line + 1
        raise UserError(f"line {line}: a value of type {kind} is not allowed; quote it as text")
    if isinstance(node, yaml.ScalarNode) or id(node) in seen:
        return
    seen.add(id(node))
    children = node.value
    if isinstance(node, yaml.MappingNode):
        _check_keys(node)
        children = [value for _, value in node.value]
    for child in children:
        _check(child, seen)


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
