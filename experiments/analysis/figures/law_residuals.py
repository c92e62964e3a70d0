"""What the laws leave over: measured loss over the law's, of each cell (mean over seeds), against
data, one panel per method; larger points are larger models. Points around zero without a trend
say that the form fits; grey is twice the noise between seeds of a mean of three."""

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis import law_cells, scaling, style
from experiments.analysis.figures import law_curves
from experiments.analysis.methods import Methods
from experiments.specs.planned import PlannedStudy

EVERY_RECIPE = True
SEEDS = 3


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per cell that a law speaks of: its relative residual in percent."""
    means = law_curves.data(records, curves, study).dropna(subset=["law"])
    return means.assign(residual=100 * (means["loss"] / means["law"] - 1))


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """One panel per method, over data; the size of a point is that of the model."""
    rows, looks = data(records, curves, study), Methods(study)
    laws = scaling.fit_all(law_cells.finished(records, study))
    names = list(dict.fromkeys(rows["algorithm"]))
    figure, axes = style.panels(len(names), height=2.0)
    if not names:
        style.say_empty(axes[0], "No method has a law yet.")
    for panel, name in zip(axes, names, strict=False):
        own = rows[rows["algorithm"] == name]
        noise = 200 * laws[name].seed_sd / np.sqrt(SEEDS)
        panel.axhspan(-noise, noise, color="0.9", zorder=0)
        panel.axhline(0, color="0.3", lw=0.8)
        levels = sorted(own["sparsity"].unique())
        colors = matplotlib.colormaps["viridis"](np.linspace(0.05, 0.85, max(2, len(levels))))
        for color, level in zip(colors, levels, strict=False):
            at = own[own["sparsity"] == level]
            size = 60 * at["weights"] / rows["weights"].max()
            panel.scatter(at["data"], at["residual"], s=size, color=color, label=f"{level:.3g}")
        style.count_axis(panel, law_cells.subject(study).data, own["data"].unique())
        panel.set_title(looks[name].name)
        panel.set_ylabel("residual (%)")
        panel.legend(fontsize=7, title="sparsity", title_fontsize=7)
    return figure
