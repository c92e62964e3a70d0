"""Methods that a study takes from another study: ``like: <study>.<method>``.

Trials of settings must try the method that the evidence uses, so they name it instead of writing it
out once more. Keys beside ``like`` replace those of the section that is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from experiments.errors import UserError
from experiments.specs.schema import check_choice


def _sections(study: Any) -> dict[Any, Any]:
    """The sections of ``methods`` as the YAML of a study reads, well-formed or not."""
    methods = study.get("methods") if isinstance(study, dict) else None
    return methods if isinstance(methods, dict) else {}


def _place(key: Any, like: Any) -> tuple[str, str]:
    """Study and method that a ``like`` names."""
    study, dot, method = like.partition(".") if isinstance(like, str) else ("", "", "")
    if not (study and dot and method):
        raise UserError(f"methods.{key}.like is {like!r}, but must be <study>.<method>")
    return study, method


def named_studies(study: Any) -> Iterator[str]:
    """Names of the studies whose methods a study, as its YAML reads, takes.

    Raises:
        ValueError: For a ``like`` that is no ``<study>.<method>``.
    """
    for key, section in _sections(study).items():
        if isinstance(section, dict) and "like" in section:
            yield _place(key, section["like"])[0]


def with_likeness(study: Any, read: Callable[[str], Any]) -> Any:
    """The study, as its YAML reads, with every ``like`` replaced by the section that it names.

    Raises:
        ValueError: For a ``like`` that names no method, or that leads back to itself.
    """
    methods = {key: _resolved(key, section, read, ()) for key, section in _sections(study).items()}
    return {**study, "methods": methods} if methods else study


def _resolved(
    key: Any, section: Any, read: Callable[[str], Any], seen: tuple[tuple[str, str], ...]
) -> Any:
    if not isinstance(section, dict) or "like" not in section:
        return section
    place = _place(key, section["like"])
    if place in seen:
        raise UserError(f"methods.{key}.like is {section['like']!r}, which leads back to itself")
    study, method = place
    others = _sections(read(study))
    check_choice(
        f"methods.{key}.like", method, map(str, others), f"experiments/studies/{study}.yaml"
    )
    base = dict(_resolved(method, others[method], read, (*seen, place)))
    own = {name: value for name, value in section.items() if name != "like"}
    for one, other in (("levels", "final_sparsity"), ("final_sparsity", "levels")):
        if one in own and other not in own:
            base.pop(other, None)
    return {**base, **own}
