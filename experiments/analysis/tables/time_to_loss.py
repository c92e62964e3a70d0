"""Time to the loss that the slowest learner of the same model and data reaches at its end: seconds
of training measured here, and simulated seconds of computing on a CS-2 (peak rate, no streaming).
Linear between validations; means over seeds. Speed-ups are against the first row of a workload."""

from typing import Any

import numpy as np
import pandas as pd

from experiments.analysis.figures import time_to_loss
from experiments.store import tidy

CLOCKS = {"elapsed_s": "measured", "simulated_s": "simulated"}
COLUMNS = ["model", "dataset", "method", "sparsity", "seeds", "target loss", "measured (s)",
           "speed-up (measured)", "simulated (s)", "speed-up (simulated)", "runs"]  # fmt: skip


def make(records: pd.DataFrame, curves: pd.DataFrame, study: dict[str, Any]) -> pd.DataFrame:
    """One row per model, dataset, method and sparsity."""
    losses = time_to_loss.data(records, curves, study).sort_values("step")
    rows = []
    for workload in tidy.workloads(losses):
        own = tidy.in_workload(losses, workload)
        ends = own.groupby(["method", "sparsity", "run"], sort=False)["value"].last()
        target = ends.max()
        first: dict[str, float] = {}
        for (method, sparsity), group in own.groupby(["method", "sparsity"], sort=False):
            row = dict(zip(COLUMNS, (*workload, method, sparsity), strict=False))
            row |= {"seeds": group["run"].nunique(), "target loss": target}
            row["runs"] = " ".join(group["run"].drop_duplicates())
            for clock, words in CLOCKS.items():
                seconds = float(
                    np.mean([_reaches(run, clock, target) for _, run in group.groupby("run")])
                )
                first.setdefault(clock, seconds)
                row[f"{words} (s)"] = seconds
                row[f"speed-up ({words})"] = first[clock] / seconds
            rows.append(row)
    return pd.DataFrame(rows, columns=COLUMNS)


def _reaches(run: pd.DataFrame, clock: str, target: float) -> float:
    """When the loss first is at most the target, between two validations by a straight line."""
    best = run["value"].cummin().to_numpy()
    at = int(np.argmax(best <= target))
    times = run[clock].to_numpy()
    if at == 0 or best[at] > target:
        return float(times[at] if best[at] <= target else np.nan)
    share = (best[at - 1] - target) / (best[at - 1] - best[at])
    return float(times[at - 1] + share * (times[at] - times[at - 1]))
