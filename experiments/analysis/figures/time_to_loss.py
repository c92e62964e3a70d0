"""Validation loss of dense and sparse runs against time: seconds of training as measured here, and
the time that a CS-2 would compute by simulation, at its peak rate and without streaming, so a lower
bound. Runs of the pipeline share the machine, so the measured seconds are noisy; how masked layers
ran is in each run's record. Thin lines are seeds, thick ones their mean. Dense and dense-control
differ in batch size only, and the sparse runs have the control's."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis import style
from experiments.analysis.methods import Methods
from experiments.store import tidy

CLOCKS = {
    "elapsed_s": ("Measured · this CPU", "of training"),
    "simulated_s": ("Simulated · CS-2 at peak", "of computing, simulated"),
}
UNITS = {"seconds": 1, "milliseconds": 1e3, "microseconds": 1e6}


def data(records: pd.DataFrame, curves: pd.DataFrame, study: dict[str, Any]) -> pd.DataFrame:
    """Validation loss of every run by measured and simulated seconds.

    A product at sparsity s takes ``(1 - s) + c s`` of its dense time, so a step with executed and
    dense-equivalent FLOPs takes ``executed + c (dense - executed)`` over the peak.
    """
    facts = tidy.computed(study["scale"], "device", "facts")
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


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: dict[str, Any]) -> Figure:
    """Two panels per model and dataset."""
    losses, looks = data(records, curves, study), Methods(study)
    shown = [(workload, clock) for workload in tidy.workloads(losses) for clock in CLOCKS]
    figure, axes = style.panels(len(shown))
    if not shown:
        style.say_empty(axes[0], "No run has finished yet.")
    for panel, (workload, clock) in zip(axes, shown, strict=False):
        title, name = CLOCKS[clock]
        labels = []
        rows = tidy.in_workload(losses, workload)
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


def _unit(seconds: float) -> str:
    """The largest unit in which a time is above 1, else the smallest."""
    return next((name for name, factor in UNITS.items() if seconds * factor > 1), "microseconds")


def caption(records: pd.DataFrame, curves: pd.DataFrame, study: dict[str, Any]) -> str:
    """State the simulated seconds of whole runs."""
    losses, looks = data(records, curves, study), Methods(study)
    ends = losses.sort_values("step").groupby("run").last()
    sentences = []
    for workload in tidy.workloads(losses):
        rows = tidy.in_workload(ends, workload)
        unit = _unit(rows["simulated_s"].max())
        means = rows.groupby(["method", "sparsity"], sort=False)["simulated_s"].mean()
        parts = [
            f"{looks.treatment(*pair)} {UNITS[unit] * seconds:.3g} {unit}"
            for pair, seconds in means.items()
        ]
        sentences.append(f"Simulated time of a run on {workload.dataset}: {', '.join(parts)}.")
    return " ".join(sentences)
