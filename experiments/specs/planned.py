"""A study at one scale with its runs: what tables, figures, claims and pages know of it."""

from __future__ import annotations

from typing import Any

from experiments.specs.run import Run
from experiments.specs.schema import Scale, Study


class PlannedStudy(Study):
    """A study, a scale, and the runs of the study at this scale in the order of its file."""

    scale: Scale
    runs: tuple[Run, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The JSON form; it changes with the study's file and with what its runs are."""
        value = self.model_dump(mode="json", exclude={"scales", "runs"})
        runs = [{"spec": run.spec.to_json()} for run in self.runs]
        return value | {"runs": runs}


#: What records by themselves belong to: a study without methods and runs.
NO_STUDY = PlannedStudy(
    name="none", title="", source="", description="", tables=[], figures=[], scale="small"
)
