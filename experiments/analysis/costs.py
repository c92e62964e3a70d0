"""What runs cost, the phases that they continue included."""

from __future__ import annotations

import math

import pandas as pd

from experiments.specs.planned import PlannedStudy

EXECUTED = "flops_executed"
#: What runs read, in the unit of their task.
READ = ("tokens", "images")


def executed(records: pd.DataFrame, study: PlannedStudy) -> pd.Series:
    """Return the training FLOPs that each run executed, 2 per multiply-add; see `spent`."""
    return spent(records, study, (EXECUTED,))


def spent(records: pd.DataFrame, study: PlannedStudy, metrics: tuple[str, ...]) -> pd.Series:
    """Return what each run took of something, by run id.

    A run that starts from the weights of another one includes what that one took; NaN where that
    one has no record. A run that goes on from another one's state has counted it.

    Args:
        records: Tidy records, those of first phases among them.
        study: The study, whose runs say what they start from.
        metrics: Names of what is asked for, of which each run has one.
    """
    own = records[records["metric"].isin(metrics)].groupby("run")["value"].first()
    first = {
        run.id: run.spec.starts_from.run
        for run in study.runs
        if run.spec.starts_from is not None and run.spec.starts_from.step is None
    }

    def whole(run: str) -> float:
        before = whole(first[run]) if run in first else 0.0
        return before + float(own.get(run, math.nan))

    return pd.Series({run: whole(run) for run in own.index}, dtype=float)
