"""Specs that differ from one of a study, for tests."""

from collections.abc import Callable
from typing import Any

from experiments.specs.run import RunSpec


def edited(spec: RunSpec, change: Callable[[dict[str, Any]], Any]) -> RunSpec:
    """A spec whose JSON was changed in place."""
    value = spec.to_json()
    change(value)
    return RunSpec.model_validate(value)
