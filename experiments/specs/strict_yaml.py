"""YAML with the types of JSON and no key twice."""

from __future__ import annotations

import re
from typing import Any

import yaml

from experiments.errors import UserError


# libyaml's where the wheel has it: it reads the studies ten times faster.
class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Reads 1e-3 and 1.0e6 as numbers, as YAML 1.2 does; 1.1 takes them for text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse keys that are no text, or that occur twice."""
        seen = set()
        for key, _ in node.value:
            if not node.start_mark.index <= key.start_mark.index < node.end_mark.index:
                continue  # merged from another mapping
            where = f"line {key.start_mark.line + 1}: the key {key.value!s:.80}"
            if key.tag not in (_TEXT, "tag:yaml.org,2002:merge"):
                kind = key.tag.rpartition(":")[2]
                raise UserError(f"{where} is of type {kind}, but must be text; quote it")
            if key.tag == _TEXT and key.value in seen:
                raise UserError(f"{where} occurs twice in one mapping")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_TEXT = "tag:yaml.org,2002:str"
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    [*"-+.0123456789"],
)
for _kind in ("timestamp", "binary", "set", "omap", "pairs"):  # no type of JSON
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", yaml.SafeLoader.construct_undefined)


def read_yaml(text: str) -> Any:
    """The value of a YAML text in which every key is text and occurs once in its mapping.

    Raises:
        yaml.YAMLError: If it is no YAML, or has a value that JSON does not have.
        UserError: For another key; one sentence that names the line.
    """
    return yaml.load(text, _Loader)
