"""Methods that a study takes from another study: ``like: <study>.<method>``.

Trials of settings must try the method that the evidence uses, so they name it instead of writing it
out once more. Keys beside ``like`` replace those of the section that is named.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from experiments.errors import UserError
from experiments.specs.schema import check_choice


def _sections(study: Any) -> dict[Any, Any]:
    """The sections of ``methods`` as the YAML of a study reads, well-formed or not."""
    methods = study.get("methods") if isinstance(study, dict) else None
    return methods if isinstance(methods, dict) else {}


def likes(study: Any) -> dict[Any, tuple[str, str]]:
    """Methods of a study, as its YAML reads, to the study and method that each is like.

    Raises:
        UserError: For a ``like`` that is no ``<study>.<method>``.
    """
    found = {}
    for key, section in _sections(study).items():
        if isinstance(section, dict) and "like" in section:
            like = section["like"]
            other, _, method = like.partition(".") if isinstance(like, str) else ("", "", "")
            if not (other and method):
                raise UserError(f"methods.{key}.like is {like!r}, but must be <study>.<method>")
            found[key] = other, method
    return found


def with_likeness(study: Any, read: Callable[[str], Any]) -> Any:
    """A study, as its YAML reads, with every ``like`` replaced by the section that it names.

    Raises:
        UserError: For a ``like`` that names no method, or one that is itself like another.
    """
    methods = dict(_sections(study))
    for key, (other, method) in likes(study).items():
        others = _sections(read(other))
        place = f"experiments/studies/{other}.yaml"
        check_choice(f"methods.{key}.like", method, map(str, others), place)
        base, own = others[method], dict(methods[key])
        if not isinstance(base, dict) or "like" in base:
            raise UserError(
                f"methods.{key}.like is {own['like']!r}, which has no settings of its own"
            )
        del own["like"]
        for one, two in (("levels", "final_sparsity"), ("final_sparsity", "levels")):
            if one in own and two not in own:
                base = {name: value for name, value in base.items() if name != two}
        methods[key] = {**base, **own}
    return {**study, "methods": methods} if methods else study
