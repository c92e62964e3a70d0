"""Settings that trials try, and which of them studies of evidence train with; by specs alone."""

from __future__ import annotations

import json

from experiments.specs.expand import study_runs, unscheduled
from experiments.specs.read import load_study
from experiments.specs.run import RunSpec
from experiments.specs.schema import PlannedStudy, Study


def setting_of(spec: RunSpec, study: Study) -> str:
    """All settings that a run trains with but its seed, length and precision, as one text.

    Schedules of masks count as the study's file has them, in shares of a run.
    """
    method = study.methods[spec.method or ""]
    recipe = unscheduled(spec)
    rate = f"{recipe.pop('learning_rate'):.6g}"
    recipe.pop("precision", None)  # recipes of text may have none
    start = method.starts_from
    first = start and [study.methods[start.method].sparsity]  # masks of the first phase
    value = spec.model_dump(mode="json", include={"task", "model", "data", "transform"})
    return json.dumps([value, method.sparsity, first, recipe, rate], sort_keys=True)


def taken_by(study: PlannedStudy) -> dict[str, str]:
    """The studies of evidence that train with a trial's setting, by the id of its run.

    Of the studies that these trials are for, those runs count that train by their method's own
    recipe or by one that the study shows. A setting that was tried at several lengths is taken at
    that of the evidence, if that is among them. The method stands in brackets where it is one whose
    settings were chosen after its study had run.
    """
    lengths: dict[str, set[int]] = {}
    keys = {run.id: setting_of(run.spec, study) for run in study.runs}
    for run in study.runs:
        lengths.setdefault(keys[run.id], set()).add(run.spec.recipe.steps)
    names: dict[tuple[str, int | None], dict[str, None]] = {}
    for other in map(load_study, study.trials_for):
        for spec in (run.spec for run in study_runs(other, study.scale)):
            method = other.methods[spec.method or ""]
            key, steps = setting_of(spec, other), spec.recipe.steps
            if spec.recipe.name not in (method.recipe, *other.shown) or key not in lengths:
                continue
            name = f"{other.name} ({spec.method})" if method.retuned else other.name
            place = (key, steps if steps in lengths[key] else None)
            names.setdefault(place, {})[name] = None

    taken = {}
    for run in study.runs:
        at_length = names.get((keys[run.id], run.spec.recipe.steps), {})
        taken[run.id] = ", ".join(at_length | names.get((keys[run.id], None), {}))
    return taken
