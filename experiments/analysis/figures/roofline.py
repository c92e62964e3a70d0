"""FLOPs per second against FLOPs per byte moved. Above, measured on this CPU in float32: one
layer's training step, dense and skipping, under a probed roof. Below, simulated at peak: GPT-3
XL on one CS-2 and one H100."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.analysis import style
from experiments.specs.planned import PlannedStudy
from experiments.store import tidy

HOST = "host"
PANELS = {"Measured · this CPU": True, "Simulated · GPT-3 XL": False}

NAMED = (0.0, 0.5, 0.75, 0.9, 0.95)


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """The points, each with the roof of its device."""
    points = tidy.computed(study.scale, "device", "roofline")
    return points.merge(tidy.computed(study.scale, "device", "roofs"), on="device")


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """Two panels: measured and simulated."""
    rows = data(records, curves, study)
    figure, axes = style.panels(2, height=3.0)
    for panel, (title, is_host) in zip(axes, PANELS.items(), strict=True):
        shown = rows[(rows["device"] == HOST) == is_host]
        panel.set_title(title)
        if shown.empty:
            style.say_empty(panel, "The kernels could not be built here.")
            continue
        low, high = shown["intensity"].min() / 4, shown["intensity"].max() * 4
        for _, own in shown.groupby("device", sort=False):
            _draw_device(panel, own, own["device_color"].iloc[0], low, high)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xlim(low, high)
        panel.set_ylim(shown["flops_per_s"].min() / 2.5, shown["peak_flops"].max() * 1.5)
        panel.xaxis.set_minor_formatter("")
        panel.set_xlabel("FLOPs per byte")
        panel.set_ylabel("FLOPs per second")
        panel.legend(loc="lower right")
    return figure


def _draw_device(panel: Axes, own: pd.DataFrame, color: str, low: float, high: float) -> None:
    peak, bandwidth = own["peak_flops"].iloc[0], own["bandwidth"].iloc[0]
    ridge = peak / bandwidth
    places = sorted({low, min(max(ridge, low), high), high})
    roof = [min(peak, bandwidth * place) for place in places]
    panel.plot(places, roof, color=color, lw=1.2, label=f"{own['title'].iloc[0]}, roof")
    for row in own.itertuples():
        dense = row.sparsity == 0 and row.series != "skip"
        panel.plot(row.intensity, row.flops_per_s, "o", color=color, mfc=color if dense else "none")
        words = "dense" if dense else f"{100 * row.sparsity:g}%"
        if dense or row.sparsity in NAMED:
            offset = (3, 5 if dense else -10)
            panel.annotate(words, (row.intensity, row.flops_per_s), offset, fontsize=7.5,
                           textcoords="offset points")  # fmt: skip
