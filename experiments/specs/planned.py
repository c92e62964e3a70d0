"""A study at one scale with its runs: what tables, figures, claims and pages know of it."""

from __future__ import annotations

from typing import Any, Self

from experiments.specs.run import Run
from experiments.specs.schema import Scale, Study


class PlannedStudy(Study):
    """A study, a scale, and the runs of the study at this scale in the order of its file."""

    scale: Scale
    runs: tuple[Run, ...] = ()

    def changed(self, **values: Any) -> Self:
        """This study with other values in some fields."""
        return self.model_copy(update=values)

    def to_json(self) -> dict[str, Any]:
        """The JSON form; it changes with the study's file and with what its runs are."""
        value = self.model_dump(mode="json", exclude={"scales", "runs"})
        runs = [{"spec": run.spec.to_json(), "held_out": run.held_out} for run in self.runs]
        return value | {"runs": runs}

    def inputs(self) -> dict[str, Any]:
        """The JSON form of what tables and figures are made from, not of which there are."""
        shown = ("tables", "figures")
        return {key: value for key, value in self.to_json().items() if key not in shown}


#: What records by themselves belong to: a study without methods and runs.
NO_STUDY = PlannedStudy(
    name="none", title="", source="", description="", tables=[], figures=[], scale="small"
)
