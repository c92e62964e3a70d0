"""What runs cost, the phases that they continue included."""

from __future__ import annotations

import math

import pandas as pd

from experiments.specs.planned import PlannedStudy

EXECUTED = "flops_executed"


def executed(records: pd.DataFrame, study: PlannedStudy) -> pd.Series:
    """Return the training FLOPs that each run executed, by run id, 2 per multiply-add.

    Those of a run that starts from the weights of another one include what that one executed; NaN
    where that one has no record. A run that goes on from another one's state has counted it.

    Args:
        records: Tidy records, those of first phases among them.
        study: The study, whose runs say what they start from.
    """
    own = records[records["metric"] == EXECUTED].groupby("run")["value"].first()
    first = {
        run.id: run.spec.starts_from.run
        for run in study.runs
        if run.spec.starts_from is not None and run.spec.starts_from.step is None
    }

    def whole(run: str) -> float:
        before = whole(first[run]) if run in first else 0.0
        return before + float(own.get(run, math.nan))

    return pd.Series({run: whole(run) for run in own.index}, dtype=float)
