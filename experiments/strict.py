"""Types of the YAML that a person writes: JSON types as written, ranges, no key twice."""

import re
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from experiments.errors import UserError

Item = TypeVar("Item")
#: A list in YAML.
Several = Annotated[tuple[Item, ...], Field(strict=False)]
#: The seeds that torch and NumPy take.
Seed = Annotated[int, Field(ge=0, lt=2**63)]
#: A decay rate of a moving average.
Decay = Annotated[float, Field(ge=0, lt=1)]
Betas = Annotated[tuple[Decay, Decay], Field(strict=False)]


class Strict(BaseModel):
    """Frozen; an unknown key is an error, and so is a number as text, ``true`` or infinite."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def in_64_bits(cls, values: Any) -> Any:
        """No integer has more than 64 bits, which torch and NumPy cannot take."""
        for key, value in values.items() if isinstance(values, dict) else ():
            if isinstance(value, int) and not -(2**63) <= value < 2**63:
                digits = len(str(abs(value)))
                raise ValueError(f"{key} has {digits} digits, but must be from -2**63 to 2**63 - 1")
        return values


def first_problem(error: ValidationError) -> tuple[str, str]:
    """The key of an error's first problem, and the problem on one line."""
    first = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ")
    return ".".join(map(str, first["loc"])), " ".join(message.split())


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
