"""When sparsity pays: bits per byte against training time, dense and the best sparse model of each
time, every point a finished cell (mean over seeds). Above, seconds measured here on one thread
while other work shared the machine; below, the time that a CS-2 would compute by simulation, at
its peak rate and without streaming, so a lower bound. A line joins the cells that nothing of its
kind beats in less time. Where the sparse line lies below the dense one, sparsity pays."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis import scaling, style
from experiments.analysis import select as selection
from experiments.specs.planned import PlannedStudy
from experiments.store import tidy

EVERY_RECIPE = True
CLOCKS = {"seconds": "Measured · this CPU", "simulated": "Simulated · CS-2 at peak"}
KINDS = {True: ("dense", "#333333"), False: ("sparse", "#d95f0e")}
COLUMNS = ["algorithm", "model", "sparsity", "tokens", "bits", "seconds", "simulated"]


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """Mean loss and times of each cell."""
    rows = scaling.finished(records, study)
    costs = selection.per_run(records, "wall_s", "flops_executed", "flops_dense_equivalent")
    rows = rows.join(costs, on="run")
    if rows.empty:
        return pd.DataFrame(columns=COLUMNS)
    overhead, peak = cs2(study.scale)
    dense, executed = rows["flops_dense_equivalent"], rows["flops_executed"]
    rows = rows.assign(
        seconds=rows["wall_s"], simulated=(executed + overhead * (dense - executed)) / peak
    )
    keys = ["algorithm", "model", "sparsity", "tokens"]
    return rows.groupby(keys, sort=False)[["bits", *CLOCKS]].mean().reset_index()


def cs2(scale: str) -> tuple[float, float]:
    """Cost of a masked FLOP over a dense one, and the peak in FLOP/s, of the simulated CS-2."""
    facts = tidy.computed(scale, "device", "facts")
    facts = facts[facts["device"].str.contains("CS-2")].set_index("fact")["value"]
    return float(facts["sparse_overhead"]), float(facts["peak_flops"])


def front(rows: pd.DataFrame, clock: str) -> pd.DataFrame:
    """The rows that none beats in less time, by time."""
    rows = rows.sort_values([clock, "bits"], kind="stable")
    best = rows["bits"].cummin()
    return rows[rows["bits"] <= best.shift(fill_value=np.inf) - 1e-12]


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """One panel per clock."""
    rows = data(records, curves, study)
    figure, axes = style.panels(len(CLOCKS), height=2.8)
    for panel, (clock, title) in zip(axes, CLOCKS.items(), strict=True):
        if rows.empty:
            style.say_empty(panel, "No cell of a law has finished yet.")
            continue
        for is_dense, (name, color) in KINDS.items():
            own = rows[(rows["algorithm"] == scaling.DENSE) == is_dense]
            panel.plot(own[clock], own["bits"], ".", color=color, alpha=0.5, ms=4)
            edge = front(own, clock)
            panel.step(edge[clock], edge["bits"], where="post", color=color, label=name)
        style.count_axis(panel, "seconds")
        panel.set_title(title)
        panel.set_ylabel("bits per byte")
        panel.legend(fontsize=8)
    return figure


def caption(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> str:
    """Say at which times the best cell so far is sparse."""
    rows, parts = data(records, curves, study), []
    for clock, title in CLOCKS.items():
        edge = front(rows, clock) if len(rows) else rows
        if len(edge):
            sparse = edge[edge["algorithm"] != scaling.DENSE]
            parts.append(
                f"{title}: {len(sparse)} of the {len(edge)} cells that no other beats in less time "
                "are sparse."
            )
    return " ".join(parts)
