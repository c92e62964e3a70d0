"""Cost of runs, continued phases included, and which runs had a core to themselves."""

from __future__ import annotations

import math
from collections.abc import Collection

import pandas as pd

from experiments.specs.planned import PlannedStudy
from experiments.store import tidy

#: Seconds of a training: of the clock, and of the processor.
CLOCK, CPU_CLOCK = "trained_s", "trained_cpu_s"
#: Least share of its seconds that a process computes which has a core to itself.
ALONE = 0.9
#: Heading of what `beside_others` returns.
BESIDE = "beside other work"


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


def core_share(records: pd.DataFrame) -> pd.Series:
    """Return of which share of the seconds of its steps each run's process computed, by run id.

    Seconds in which the process waited for a core are not among those that it computed. Runs of
    several threads, and those whose records have no such seconds, are left out.
    """
    trained = records[(records["task"] == "training") & (records["num_threads"] == 1)]
    wall, computed = (
        tidy.select(trained, name, split="validation").set_index("run")["value"]
        for name in (CLOCK, CPU_CLOCK)
    )
    return (computed / wall[wall > 0]).dropna()


def beside_others(shares: pd.Series, runs: Collection[str]) -> str:
    """Return whether other work had the core of one of these runs for a while, in words.

    Returns:
        ``yes``, ``no``, or ``not recorded`` where that is unknown of a run and true of no other.
    """
    known = shares.reindex(list(runs))
    if (known < ALONE).any():
        return "yes"
    return "not recorded" if known.isna().any() else "no"
