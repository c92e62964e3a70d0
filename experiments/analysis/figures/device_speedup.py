"""Speed-up of one layer's training step: measured on one CPU against its fastest dense float32
step (bars: quartiles), digitised from SPDF's supplement, Figure 1, for a CS-2, simulated by a
model fitted to those points (dotted: extrapolated), and ideal."""

import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis import style
from experiments.specs.schema import PlannedStudy
from experiments.store import tidy

TICKS = (0.0, 0.5, 0.75, 0.8, 0.9, 0.95)
SPEEDS = (0.5, 1, 2, 5, 10, 20)


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """All points of the four series."""
    return tidy.computed(study.scale, "device", "speedup")


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """One panel, both axes logarithmic."""
    series = dict(list(data(records, curves, study).groupby("series")))
    figure, (panel,) = style.panels(1, height=4.0)
    ideal, simulated = series["ideal"], series["simulated"]
    panel.plot(ideal["inverse_density"], ideal["speedup"], ":", color="#7F7F7F", label="ideal")
    fitted = simulated[simulated["sparsity"] <= 0.9]
    beyond = simulated[simulated["sparsity"] >= 0.9]
    panel.plot(
        fitted["inverse_density"],
        fitted["speedup"],
        color="#E69F00",
        label="CS-2, simulated, fitted to these points",
    )
    panel.plot(beyond["inverse_density"], beyond["speedup"], ":", color="#E69F00")
    published = series["published"]
    panel.plot(
        published["inverse_density"], published["speedup"], "s", color="#D55E00",
        label="CS-2, published, one product",
    )  # fmt: skip
    if "measured" in series:
        measured = series["measured"]
        errors = [measured["speedup"] - measured["low"], measured["high"] - measured["speedup"]]
        panel.errorbar(
            measured["inverse_density"], measured["speedup"], yerr=errors, color="#0072B2",
            marker="D", capsize=2, label="this CPU, training step, measured",
        )  # fmt: skip
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xticks([1 / (1 - s) for s in TICKS], [f"{100 * s:g}%" for s in TICKS])
    panel.set_yticks(SPEEDS, [f"{value:g}x" for value in SPEEDS])
    panel.minorticks_off()
    panel.set_xlabel("sparsity, at 1 / (1 - sparsity)")
    panel.set_ylabel("speed-up over dense")
    panel.set_title("A layer's training step here, one product on a CS-2")
    panel.legend(loc="upper left")
    return figure
