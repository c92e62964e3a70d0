"""The base of all that is read from a person's YAML: types as they are written, ranges, no more."""

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

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
