"""Who is fastest to a loss: ends of runs, and how much longer one entry takes than another.

The clock of a run is the seconds of its steps, validations excluded. Only the end of a run counts,
where its learning rate is annealed; on its way there a run is behind one with a shorter budget.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from experiments.analysis import stats
from experiments.store import tidy

#: Seconds of a run's steps, as its validation rows carry them, and what it computed in them.
CLOCK, CPU_CLOCK = "trained_s", "trained_cpu_s"
KEYS = ["run", "model", "dataset", "method", "algorithm", "sparsity", "recipe", "seed", "machine"]


@dataclass(frozen=True)
class Ratio:
    """How much longer ``a`` takes than ``b`` to the loss at which the slower one ends.

    Attributes:
        value: Geometric mean of the seeds' ratios of seconds; above 1 ``b`` is faster.
        low: Lower end of its 95% t interval, of logarithms; NaN below two seeds.
        high: Upper end.
        num_seeds: Seeds that both have.
        target: Mean loss at which the slower one ends.
        cpu: As ``value``, of processor seconds: where it differs, others had the cores.
        inside: Whether the faster one has that loss between its own budgets, so that its time is
            interpolated; else it is extrapolated.
    """

    value: float
    low: float
    high: float
    num_seeds: int
    target: float
    cpu: float
    inside: bool


def ends(records: pd.DataFrame) -> pd.DataFrame:
    """Return one row per finished run.

    The columns are `KEYS`, ``seconds`` (its clock), ``cpu_seconds`` and ``loss`` (held out, nats).
    Runs without a clock, of versions that did not keep it, are left out.
    """
    trained = records[records["task"] == "training"]
    found = trained.drop_duplicates("run")[KEYS]
    measured = {"seconds": CLOCK, "cpu_seconds": CPU_CLOCK, "loss": "loss"}
    for name, metric in measured.items():
        rows = tidy.select(trained, metric, split="validation")
        found = found.merge(rows[["run", "value"]].rename(columns={"value": name}), how="left")
    return found.dropna(subset=["seconds", "loss"])


def ratio(a: pd.DataFrame, b: pd.DataFrame) -> Ratio | None:
    """Compare two entries over the seeds of which both ran two budgets or more.

    The target is the loss at which the slower of the two ends its longest budget. The other one's
    time there is read from a straight line of loss over the logarithm of seconds, between the two
    of its budgets that are nearest to the target.

    Args:
        a: Rows of `ends` of one entry on one machine.
        b: Rows of another one there.

    Returns:
        The ratio of seconds, a over b; None without a seed that serves.
    """
    found = _logarithms(a, b, "seconds")
    if found is None:
        return None
    logs, target, inside = found
    value, low, high = map(math.exp, stats.t_interval(logs))
    computed = _logarithms(a, b, "cpu_seconds")
    cpu = math.nan if computed is None else math.exp(float(np.mean(computed[0])))
    return Ratio(value, low, high, len(logs), target, cpu, inside)


def _logarithms(
    a: pd.DataFrame, b: pd.DataFrame, clock: str
) -> tuple[list[float], float, bool] | None:
    """Logarithm of each seed's ratio on a clock, the target, and whether budgets enclose it."""
    own = [_by_seed(rows, clock) for rows in (a, b)]
    seeds = sorted(set(own[0]) & set(own[1]))
    if not seeds:
        return None
    last = [np.mean([rows[seed][-1][1] for seed in seeds]) for rows in own]
    first = last[0] >= last[1]
    sign, slow, fast = (1.0, own[0], own[1]) if first else (-1.0, own[1], own[0])
    logs, inside = [], True
    for seed in seeds:
        seconds, target = slow[seed][-1]
        at, between = _reaches(fast[seed], target)
        logs.append(sign * (math.log(seconds) - at))
        inside &= between
    return logs, float(max(last)), inside


def _by_seed(rows: pd.DataFrame, clock: str) -> dict[int, list[tuple[float, float]]]:
    """Seed to (seconds, loss) of its budgets, the shortest first; seeds of one budget are out."""
    found = {
        int(seed): sorted(zip(own[clock], own["loss"], strict=True))
        for seed, own in rows.groupby("seed")
    }
    return {seed: points for seed, points in found.items() if len(points) > 1}


def _reaches(points: list[tuple[float, float]], target: float) -> tuple[float, bool]:
    """Logarithm of the seconds at a loss, and whether the budgets enclose it."""
    above = sum(loss > target for _, loss in points)
    first = min(max(above - 1, 0), len(points) - 2)
    (short, high), (long, low) = points[first : first + 2]
    share = (high - target) / (high - low) if high > low else math.nan
    begin, end = math.log(short), math.log(long)
    return begin + share * (end - begin), 0 <= share <= 1


def verdicts(finished: pd.DataFrame) -> pd.DataFrame:
    """Return each sparse entry beside the best dense one of the same machine and data.

    The best dense entry is the one of least mean loss at the longest budget, of those with the
    most seeds.

    Args:
        finished: What `ends` returns.

    Returns:
        ``machine``, ``dense``, ``sparse``, ``sparsity``, and the fields of `Ratio`, dense over
        sparse; ``runs`` with the ids of both.
    """
    rows = []
    for machine, here in tidy.on_one_machine(finished):
        for _, data in here.groupby("dataset"):
            dense = best(data[data["algorithm"] == "dense"])
            for method, own in data[data["algorithm"] != "dense"].groupby("method", sort=False):
                found = None if dense is None else ratio(dense, own)
                if found is None or dense is None:
                    continue
                runs = " ".join([*dense["run"], *own["run"]])
                place = {"machine": machine, "dense": dense["method"].iloc[0], "sparse": method}
                place["sparsity"] = own["sparsity"].iloc[0]
                rows.append({**place, **vars(found), "runs": runs})
    columns = ["machine", "dense", "sparse", "sparsity", *Ratio.__dataclass_fields__, "runs"]
    return pd.DataFrame(rows, columns=columns)


def best(finished: pd.DataFrame) -> pd.DataFrame | None:
    """Return the rows of the entry of least mean loss at its longest budget; None without one."""
    chosen, least = None, (0, math.inf)
    for _, own in finished.groupby("method", sort=False):
        longest = own.sort_values("seconds").groupby("seed").last()
        place = (-len(longest), longest["loss"].mean())
        if place < least:
            chosen, least = own, place
    return chosen
