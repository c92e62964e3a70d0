"""The runs of a scale over all studies: what each is, and what was measured on it."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from experiments.errors import UserError
from experiments.findings.claim import Outcome, Place, nine, supporting
from experiments.findings.estimate import Arm
from experiments.specs.run import Run
from experiments.specs.schema import PlannedStudy
from experiments.store import tidy

COLUMNS = (
    "run study trials model architecture dataset data budget stable batch method recipe rate masks "
    "algorithm transform sparsity seed first"
).split()


def alike(rows: pd.DataFrame, **values: Any) -> pd.DataFrame:
    """The rows that have these values in their columns."""
    kept = np.ones(len(rows), bool)
    for column, value in values.items():
        kept &= (rows[column] == value).to_numpy(bool)
    return rows[kept]


@dataclass(frozen=True, eq=False)
class Evidence:
    """Finished and planned runs of a scale.

    Attributes:
        runs: One row per planned run; the columns are `COLUMNS`; a trial's study is the one that
            it is for.
        scores: Tidy records of the finished ones.
        elsewhere: Evidence at other scales that trends of its claims name, by scale.
        computed: The tables of checks that were computed, by their claim's name.
    """

    scale: str
    runs: pd.DataFrame
    scores: pd.DataFrame
    elsewhere: Mapping[str, Evidence] = field(default_factory=dict)
    computed: Mapping[str, pd.DataFrame] = field(default_factory=dict)

    @functools.cache  # noqa: B019 - one evidence per scale and process
    def values(self, outcome: Outcome) -> pd.Series[float]:
        """Run to value, in the outcome's unit."""
        rows = self.scores[self.scores["metric"] == outcome.metric]
        if outcome.split is not None:
            rows = rows[rows["split"] == outcome.split]
        # A trainer's last pass is over more of the data than an evaluation's.
        rows = rows.assign(other=rows["task"] != "training").sort_values("other", kind="stable")
        rows = rows.dropna(subset=["value"]).drop_duplicates("run")
        return rows.set_index("run")["value"] * outcome.times

    def of_runs(self, metric: str, runs: Iterable[str]) -> pd.Series[float]:
        """Run to the value of a metric of training, as recorded; NaN where there is none."""
        rows = self.scores[self.scores["metric"] == metric].drop_duplicates("run")
        return rows.set_index("run")["value"].reindex(list(runs))

    @functools.cached_property
    def finished(self) -> set[str]:
        """Ids of the runs that have a score."""
        return set(self.scores["run"])

    @functools.cached_property
    def sizes(self) -> pd.DataFrame:
        """Run to its parameters and the FLOPs of its dense model."""
        names = ["num_parameters", "flops_dense_equivalent"]
        rows = self.scores[self.scores["metric"].isin(names)]
        return rows.pivot_table("value", "run", "metric")

    def at(self, place: Place) -> pd.DataFrame:
        """Runs of evidence on a workload, finished or not."""
        rows = self.runs[~self.runs["trials"]]
        wanted = [*place.models, *([place.b_model] if place.b_model else [])]
        rows = rows[rows["model"].isin(wanted) & (rows["dataset"] == place.data)]
        budgets = [place.budget, place.b_budget or place.budget]
        return rows[rows["budget"].isin(budgets) & (rows["stable"] == place.stable)]

    def cells(self, rows: pd.DataFrame, values: pd.Series[float]) -> dict[Arm, dict[int, float]]:
        """Arm to seed to value, of the runs that have one."""
        found: dict[Arm, dict[int, float]] = {}
        columns = (rows[name] for name in ("run", "model", "method", "recipe", "rate", "seed"))
        for run, *arm, seed in zip(*columns, strict=True):
            if run in values.index:
                found.setdefault(Arm(*arm), {})[seed] = float(values.at[run])
        return found


#: Keys of masks that count optimizer steps.
STEPS = ("freq", "start", "stop", "half_period", "sparsity_start_step", "sparsity_end_step")


def _shares(masks: Any, steps: int) -> Any:
    """Settings of masks but for the seed, steps as shares of the run: runs of other lengths are
    alike."""
    if not isinstance(masks, dict):
        return masks
    return {
        key: round(value / steps, 2)
        if key in STEPS and isinstance(value, int | float)
        else _shares(value, steps)
        for key, value in masks.items()
        if key != "seed"
    }


def _facts(run: Run) -> dict[str, object]:
    """The facts that determine a run, as a row."""
    spec, recipe = run.spec, run.spec.recipe
    transform = spec.transform
    return {
        **spec.labels,
        "run": run.id,
        "architecture": spec.model.name,
        "data": f"{spec.data.label}/{getattr(spec.data, 'context', '')}",
        "budget": float(getattr(recipe, recipe.BUDGET)),
        "stable": recipe.stable is not None,
        "batch": recipe.batch_size,
        "method": spec.method or "",
        "rate": recipe.learning_rate,
        "masks": json.dumps(_shares(spec.sparsity, recipe.steps), sort_keys=True),
        "sparsity": spec.final_sparsity or 0.0,
        "transform": "" if transform is None else json.dumps(transform.to_json(), sort_keys=True),
        "first": run.first or "",
    }


def gather(studies: Sequence[PlannedStudy], records: Sequence[pd.DataFrame]) -> Evidence:
    """Put studies of a scale and their tidy records together; a run of several counts once.

    A run counts as a trial where only studies of trials ask for it.
    """
    rows: dict[str, dict[str, object]] = {}
    for study in sorted(studies, key=lambda study: bool(study.trials)):
        for run in study.runs:
            if run.id not in rows:
                name = study.trials_for[0] if study.trials_for else study.name
                rows[run.id] = {"study": name, "trials": bool(study.trials), **_facts(run)}
    scores = [table[list(tidy.SCORE_COLUMNS)] for table in records if len(table)]
    kept = (
        pd.concat(scores).drop_duplicates(["run", "metric", "split", "task"])
        if scores
        else pd.DataFrame(columns=list(tidy.SCORE_COLUMNS))
    )
    planned = pd.DataFrame(list(rows.values()), columns=COLUMNS)
    # Text as objects: pandas compares it in half the time.
    planned = planned.astype(dict.fromkeys(planned.select_dtypes("str"), object))
    return Evidence(studies[0].scale, planned, kept)


@functools.lru_cache(maxsize=4)
def load(scale: str, study: str = "") -> Evidence:
    """The evidence of a scale, from the tables of its studies or of one of them."""
    from experiments.specs.lookup import planned_study
    from experiments.specs.read import study_names
    from experiments.store import results

    studies = [planned_study(name, scale) for name in ([study] if study else study_names())]
    return gather(studies, [results.scores(study) for study in studies])


def judged(scale: str, study: str = "") -> Evidence:
    """The evidence on which claims are judged: all of them, or those of a study."""
    own = [claim for claim in (*nine(), *supporting()) if study in ("", claim.study)]
    trends = [
        (place.scale, claim.study)
        for claim in own
        for comparison in claim.comparisons()
        for place in comparison.trend.get(scale, [])  # type: ignore[call-overload]
    ]
    elsewhere = {key[0]: load(*key) for key in trends if key[0]}
    computed = {}
    for claim in own:
        with contextlib.suppress(UserError):  # not made at this scale
            if check := claim.check:
                computed[claim.name] = tidy.computed(scale, check.computation, check.table)
    return replace(load(scale), elsewhere=elsewhere, computed=computed)
