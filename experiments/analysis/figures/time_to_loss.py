"""Validation loss against time: seconds of training, a panel per machine, and seconds on a CS-2
by simulation at peak rate, a lower bound. Runs share a machine, so seconds are noisy. Thin lines
are seeds, thick ones their mean."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis import style
from experiments.analysis.methods import Methods
from experiments.specs.planned import PlannedStudy
from experiments.store import tidy

MEASURED = "elapsed_s"
CLOCKS = {
    MEASURED: ("Measured · machine", "of training"),
    "simulated_s": ("Simulated · CS-2 at peak", "of computing, simulated"),
}
COLUMNS = ["model", "dataset", "method", "sparsity", "seeds", "target loss", "clock", "machine",
           "seconds", "speed-up", "runs"]  # fmt: skip
UNITS = {"seconds": 1, "milliseconds": 1e3, "microseconds": 1e6}


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """Validation loss of every run by measured and simulated seconds.

    A product at sparsity s takes ``(1 - s) + c s`` of its dense time, so a step with executed and
    dense-equivalent FLOPs takes ``executed + c (dense - executed)`` over the peak.
    """
    facts = tidy.computed(study.scale, "device", "facts")
    facts = facts[facts["device"].str.contains("CS-2")].set_index("fact")["value"]
    losses = curves[(curves["metric"] == "loss") & (curves["kind"] == "validation")].copy()
    losses["flops_dense"] = np.nan
    for run, group in curves[curves["metric"] == "flops_dense"].groupby("run"):
        own = losses["run"] == run
        steps = losses.loc[own, "step"]
        losses.loc[own, "flops_dense"] = np.interp(steps, group["step"], group["value"])
    executed, dense = losses["flops_executed"], losses["flops_dense"]
    overhead, peak = float(facts["sparse_overhead"]), float(facts["peak_flops"])
    losses["simulated_s"] = (executed + overhead * (dense - executed)) / peak
    return tidy.label_curves(losses, records)


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """Per model and dataset a panel for each machine that measured, and one of simulation."""
    losses, looks = data(records, curves, study), Methods(study)
    shown = [
        (workload, clock, rows)
        for workload in tidy.workloads(losses)
        for clock, rows in _clocks(tidy.in_workload(losses, workload))
    ]
    figure, axes = style.panels(len(shown))
    if not shown:
        style.say_empty(axes[0], "No run has finished yet.")
    for panel, (workload, clock, rows) in zip(axes, shown, strict=False):
        title, name = CLOCKS[clock]
        if clock == MEASURED:
            title = f"{title} {rows['machine'].iloc[0]}"
        labels = []
        unit = _unit(rows[clock].max())
        for (method, sparsity), group in rows.groupby(["method", "sparsity"], sort=False):
            look = looks[method]
            group = group.assign(**{clock: UNITS[unit] * group[clock]})
            style.seed_lines(panel, group, clock, look.color)
            mean = style.mean_by(group, clock)
            panel.plot(mean[clock], mean["value"], color=look.color, marker=look.marker)
            text = looks.treatment(method, sparsity)
            labels.append((mean["value"].iloc[-1], text, look.color))
        style.label_ends(panel, labels)
        panel.set_title(f"{title} · {workload}")
        panel.set_xlabel(f"{unit} {name}")
        panel.set_ylabel("nats per token")
    return figure


def times(losses: pd.DataFrame) -> pd.DataFrame:
    """Return the seconds to the loss that all runs of a workload reach; the columns are `COLUMNS`.

    Args:
        losses: What `data` returns.
    """
    rows = []
    for workload in tidy.workloads(losses):
        own = tidy.in_workload(losses.sort_values("step"), workload)
        target = own.groupby("run", sort=False)["value"].last().max()
        for clock, timed in _clocks(own):
            is_measured, first = clock == MEASURED, None
            for (method, sparsity), group in timed.groupby(["method", "sparsity"], sort=False):
                runs = [run for _, run in group.groupby("run", sort=False)]
                seconds = float(np.mean([_reaches(run, clock, target) for run in runs]))
                first = seconds if first is None else first
                rows.append(
                    dict(
                        zip(
                            COLUMNS, (*workload, method, sparsity, len(runs), target), strict=False
                        ),
                        clock="measured" if is_measured else "simulated",
                        machine=timed["machine"].iloc[0] if is_measured else None,
                        seconds=seconds,
                        runs=" ".join(group["run"].drop_duplicates()),
                        **{"speed-up": first / seconds},
                    )
                )
    return pd.DataFrame(rows, columns=COLUMNS)


def _reaches(run: pd.DataFrame, clock: str, target: float) -> float:
    """When the loss first is at most the target, between two validations by a straight line."""
    best = run["value"].cummin().to_numpy()
    at = int(np.argmax(best <= target))
    seconds = run[clock].to_numpy()
    if at == 0 or best[at] > target:
        return float(seconds[at] if best[at] <= target else np.nan)
    share = (best[at - 1] - target) / (best[at - 1] - best[at])
    return float(seconds[at - 1] + share * (seconds[at] - seconds[at - 1]))


def _clocks(losses: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Each clock with the runs that it may compare: measured seconds of one machine at a time."""
    for _, rows in tidy.on_one_machine(losses):
        yield MEASURED, rows
    yield "simulated_s", losses


def _unit(seconds: float) -> str:
    """The largest unit in which a time is above 1, else the smallest."""
    return next((name for name, factor in UNITS.items() if seconds * factor > 1), "microseconds")
