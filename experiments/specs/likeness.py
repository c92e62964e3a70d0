"""Methods that a study takes from another study: ``like: <study>.<method>``.

Trials of settings must try the method that the evidence uses, so they name it instead of writing it
out once more. Keys beside ``like`` replace those of the section that is named.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from experiments.errors import UserError
from experiments.specs.schema import check_choice


def methods_of(study: Any) -> dict[Any, Any]:
    """The sections of ``methods`` as the YAML of a study reads, well-formed or not."""
    methods = study.get("methods") if isinstance(study, dict) else None
    return methods if isinstance(methods, dict) else {}


def with_likeness(study: Any, read: Callable[[str], Any]) -> Any:
    """A study, as its YAML reads, with every ``like`` replaced by the section that it names.

    Raises:
        UserError: For a ``like`` that names no method, or one that is itself like another.
    """
    methods = dict(methods_of(study))
    for key, section in methods.items():
        if isinstance(section, dict) and "like" in section:
            methods[key] = _whole(f"methods.{key}.like", section, read)
    return {**study, "methods": methods} if methods else study


def _whole(place: str, section: dict[str, Any], read: Callable[[str], Any]) -> dict[str, Any]:
    own = dict(section)
    like = own.pop("like")
    other, _, method = like.partition(".") if isinstance(like, str) else ("", "", "")
    if not (other and method):
        raise UserError(f"{place} is {like!r}, but must be <study>.<method>")
    others = methods_of(read(other))
    check_choice(place, method, map(str, others), f"experiments/studies/{other}.yaml")
    base = others[method]
    if not isinstance(base, dict) or "like" in base:
        raise UserError(f"{place} is {like!r}, which has no settings of its own")
    for one, two in (("levels", "final_sparsity"), ("final_sparsity", "levels")):
        if one in own and two not in own:
            base = {name: value for name, value in base.items() if name != two}
    return {**base, **own}
