"""Held-out loss of every entry against the seconds of its steps on one thread, validations
excluded, in a panel for each machine. Thin lines are runs; a marker is the end of one, where its
rate is annealed: only ends compare."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis import race, style
from experiments.analysis.methods import Methods
from experiments.specs.planned import PlannedStudy
from experiments.store import tidy

EVERY_RECIPE = True


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """Loss at each validation of each run, and ``seconds`` of steps before it."""
    rows = curves[curves["kind"] == "validation"]
    pairs = [rows[rows["metric"] == metric] for metric in ("loss", race.CLOCK)]
    clock = pairs[1][["run", "step", "value"]].rename(columns={"value": "seconds"})
    return tidy.label_curves(pairs[0].merge(clock, on=["run", "step"]), records)


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """A panel for each machine."""
    losses, looks = data(records, curves, study), Methods(study)
    machines = tidy.on_one_machine(losses)
    figure, axes = style.panels(len(machines))
    if not machines:
        style.say_empty(axes[0], "No entry has run yet.")
    for panel, (machine, here) in zip(axes, machines, strict=False):
        labels = []
        for (method, sparsity), own in here.groupby(["method", "sparsity"], sort=False):
            look = looks[method]
            own = own.sort_values(["run", "seconds"])
            style.seed_lines(panel, own, "seconds", look.color)
            ends = own.groupby("run").last()
            panel.plot(ends["seconds"], ends["value"], ls="", color=look.color, marker=look.marker)
            last = ends.sort_values("seconds")["value"].iloc[-1]
            labels.append((last, looks.treatment(method, sparsity), look.color))
        low, high = here["value"].min(), here["value"].quantile(0.8)
        panel.set_ylim(low - 0.05 * (high - low), high)
        style.label_ends(panel, labels)
        panel.set_title(f"Machine {machine}")
        panel.set_xlabel("seconds of training steps")
        panel.set_ylabel(style.loss_unit(own, study))
    return figure


def caption(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> str:
    """State who is first on each machine, by `race.verdicts`, and by how much."""
    looks, sentences = Methods(study), []
    for row in race.verdicts(race.ends(records)).itertuples():
        dense, sparse = looks.treatment(row.dense, 0.0), looks.treatment(row.sparse, row.sparsity)
        token = study.token_name(row.runs.split())
        sentences.append(
            f"To a held-out loss of {row.target:.3f} nats per {token} the best dense entry, "
            f"{dense}, takes {row.value:.2f} [{row.low:.2f}, {row.high:.2f}] of the time of "
            f"{sparse} ({row.num_seeds} seeds, 95% interval, machine {row.machine}): {_first(row)}."
        )
    return " ".join(sentences)


def _first(row: Any) -> str:
    if row.low < 1 < row.high or row.low != row.low:
        return "neither is first"
    return "dense is first" if row.value < 1 else "sparse is first"
