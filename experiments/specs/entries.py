"""Entries of a study: a folder of files, each of which adds one method on a workload of its own.

The study says by ``entries`` what all of them share at each scale; `experiments/race` is such a
folder, and docs/race.md says what its files are for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, PositiveFloat

from experiments.specs.run import Transform
from experiments.specs.schema import SCALES, Model, Name, NumSeeds, Scale, Variant, checked_name
from experiments.tasks import Strict


class Terms(Strict):
    """What all entries share at a scale."""

    data: dict[str, Any] = Field(description="``Data`` of the task")
    recipe: dict[str, Any] = Field({}, description="replaces what an entry's recipe says")
    suite: Name
    seeds: dict[Name, NumSeeds] | None = Field(
        None, description="recipe variant -> number of seeds; None takes each entry's own"
    )
    core_seconds: PositiveFloat | None = Field(
        None, description="expected cost of one run; None takes each entry's own"
    )


class Entries(Strict):
    """The folder of the entries, and their terms at each scale that they run at."""

    folder: Name
    scales: dict[Scale, Terms]


class Entry(Strict):
    """One file of such a folder; its name is the method's."""

    by: str = Field(description="whose entry it is")
    idea: str = Field(description="why it should be fast, in one sentence")
    label: str | None = Field(None, description="name in figures and tables")
    model: Model
    recipe: dict[str, Any] = Field(description="``Recipe`` of the task")
    final_sparsity: float = Field(0.0, ge=0, lt=1)
    sparsity: dict[str, Any] | None = None
    transform: Transform | None = None
    seeds: dict[Name, NumSeeds] = Field(description="recipe variant -> number of seeds")
    core_seconds: PositiveFloat = Field(
        description="cost of a run at budget_scale 1, with start-up"
    )

    def method(self) -> dict[str, Any]:
        """The section ``methods.<name>`` of a study."""
        section: dict[str, Any] = {
            "recipe": next(iter(self.seeds), ""),
            "final_sparsity": self.final_sparsity,
            "sparsity": self.sparsity,
            "label": self.label,
        }
        if self.transform is not None:
            section["transform"] = self.transform.model_dump(mode="json")
        return section

    def workload(self, terms: Terms) -> dict[str, Any]:
        """Model, data and recipe at a scale."""
        return {
            "model": self.model.model_dump(mode="json"),
            "data": terms.data,
            "recipe": {**self.recipe, **terms.recipe},
        }

    def grids(self, name: str, terms: Terms, variants: dict[str, Any]) -> list[dict[str, Any]]:
        """The grids of a scale: one for each recipe variant."""
        found = []
        for variant, seeds in (self.seeds if terms.seeds is None else terms.seeds).items():
            scale = Variant.model_validate(variants.get(variant) or {}).budget_scale
            found.append(
                {
                    **self.workload(terms),
                    "suite": terms.suite,
                    "variant": variant,
                    "methods": {name: seeds},
                    "core_seconds": terms.core_seconds or scale * self.core_seconds,
                }
            )
        return found


def files_of(study: Any, root: Path) -> list[Path]:
    """The entries' files that a study, as its YAML reads, names; none where it has none.

    Args:
        study: What the file of the study holds.
        root: Folder that the entries' folder lies in.
    """
    section = study.get("entries") if isinstance(study, dict) else None
    folder = section.get("folder") if isinstance(section, dict) else None
    if not isinstance(folder, str):
        return []
    return sorted((root / checked_name(folder)).glob("*.yaml"))


def with_entries(
    study: dict[str, Any], section: Entries, entries: dict[str, Entry]
) -> dict[str, Any]:
    """The study's sections with those that its entries stand for, and without ``entries``.

    Args:
        study: What the file of the study holds.
        section: Its key ``entries``.
        entries: Name to entry.

    Raises:
        ValueError: For an entry that has the name of a method.
    """
    variants = study.get("recipes") or {}
    methods = dict(study.get("methods") or {})
    for name, entry in entries.items():
        if checked_name(name) in methods:
            raise ValueError(f"{name!r} is an entry and a method; rename one of them")
        methods[name] = entry.method()
    scales = dict(study.get("scales") or {})
    for scale in (name for name in SCALES if name in section.scales):
        terms = section.scales[scale]
        added = [
            grid for name, entry in entries.items() for grid in entry.grids(name, terms, variants)
        ]
        scales[scale] = [*(scales.get(scale) or []), *added]
    rest = {key: value for key, value in study.items() if key != "entries"}
    return {**rest, "methods": methods, "scales": scales}
