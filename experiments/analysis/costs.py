"""Cost of runs, continued phases included."""

from __future__ import annotations

import math

import pandas as pd

from experiments.specs.schema import PlannedStudy


def executed(records: pd.DataFrame, study: PlannedStudy) -> pd.Series:
    """Return the training FLOPs that each run executed, 2 per multiply-add, by run id.

    A run that starts from the weights of another one includes what that one took; NaN where that
    one has no record. A run that goes on from another one's state has counted it.
    """
    own = records[records["metric"] == "flops_executed"].groupby("run")["value"].first()
    starts = {run.id: run.spec.starts_from for run in study.runs}

    def whole(run: str) -> float:
        start = starts.get(run)
        before = whole(start.run) if start is not None and start.step is None else 0.0
        return before + float(own.get(run, math.nan))

    return pd.Series({run: whole(run) for run in own.index}, dtype=float)
