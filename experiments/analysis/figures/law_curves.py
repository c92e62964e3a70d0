"""Loss (bits per byte, or test error) against training data, and the law fitted to it: one panel
per method, colours are sparsities, thicker lines are larger models. Dots are means over the seeds
of a cell; stars are held-out cells, which no fit has read. Lines are dashed where the law
extrapolates."""

from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.analysis import law_cells, scaling, style
from experiments.specs.planned import PlannedStudy

EVERY_RECIPE = True
#: Of the legend above the panels, in inches.
LEGEND_HEIGHT = 0.6


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per finished cell: mean loss, and what the law of its method says."""
    rows = law_cells.finished(records, study)
    means, laws = law_cells.cell_means(rows), scaling.fit_all(rows)
    means["law"] = [
        float(laws[row.algorithm].law(row.sparsity, row.nonzero, row.data))
        if row.algorithm in laws
        else np.nan
        for row in means.itertuples()
    ]
    return means


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """One panel per method."""
    means = data(records, curves, study)
    laws = scaling.fit_all(law_cells.finished(records, study))
    names = list(dict.fromkeys(means["algorithm"]))
    figure, axes = style.panels(len(names), height=3.0)
    if not names:
        style.say_empty(axes[0], "No cell of a law has finished yet.")
    about = law_cells.subject(study)
    colors = style.level_colors(means["sparsity"])
    sizes = means.groupby("weights")["model"].first()
    widths = {weights: 0.8 + 0.6 * at for at, weights in enumerate(sizes.index)}
    for panel, name in zip(axes, names, strict=False):
        _panel(panel, means[means["algorithm"] == name], laws.get(name), about, colors, widths)
        title = law_cells.name_of(study, name)
        panel.set_title(f"{title}: no law yet" if law_cells.waits_for(means, name) else title)
    lines = [{"color": color, "label": f"{100 * level:g}%"} for level, color in colors.items()]
    lines += [
        {"color": "0.3", "lw": widths[weights], "label": str(model)}
        for weights, model in sizes.items()
    ]
    handles = [matplotlib.lines.Line2D([], [], **line) for line in lines]
    if handles:
        figure.legend(handles=handles, fontsize=8, ncols=max(len(colors), len(sizes)),
                      title="sparsity, model", title_fontsize=8,
                      loc="outside upper left")  # fmt: skip
        figure.set_figheight(figure.get_figheight() + LEGEND_HEIGHT)
    return figure


def _panel(
    axes: Axes,
    means: pd.DataFrame,
    law: scaling.Fitted | None,
    about: law_cells.Subject,
    colors: dict[float, Any],
    widths: dict[int, float],
) -> None:
    """Cells and lines of one method; colours by sparsity, widths by weights."""
    for (sparsity, weights), own in means.groupby(["sparsity", "weights"]):
        color = colors[sparsity]
        fitted, out = own[~own["held_out"]], own[own["held_out"]]
        axes.plot(fitted["data"], fitted["loss"], "o", color=color, ms=3 + widths[weights])
        axes.plot(out["data"], out["loss"], "*", color=color, ms=11)
        if law is not None:
            grid = np.geomspace(means["data"].min(), means["data"].max(), 60)
            grid = np.union1d(grid, fitted["data"])  # lines end at the fitted budgets
            nonzero = float(own["nonzero"].iloc[0])
            inside = np.array([not law.extrapolated(sparsity, nonzero, x) for x in grid])
            line = law.law(sparsity, nonzero, grid)
            for where, kind in ((inside, "-"), (~inside, "--")):
                shown = np.where(where, line, np.nan)
                axes.plot(grid, shown, kind, color=color, lw=widths[weights])
    style.count_axis(axes, about.data, means["data"].unique())
    axes.set_ylabel(about.loss)


def caption(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> str:
    """Say how many cells are there, and how far laws are from them."""
    planned, means = law_cells.planned(study), data(records, curves, study)
    keys = ["method", "model", "data"]
    total = len(planned.drop_duplicates(keys))
    text = f"{len(means)} of {total} planned cells have finished."
    errors = (means["law"] / means["loss"] - 1).abs()
    for held_out, where in ((False, "of the fit"), (True, "held out")):
        own = errors[means["held_out"] == held_out].dropna()
        if len(own):
            found = means.loc[own.index, "algorithm"].unique()
            names = ", ".join(law_cells.name_of(study, name) for name in found)
            text += (
                f" Laws are {100 * own.mean():.2f}% off on average in the {len(own)} cells {where} "
                f"({names})."
            )
    return text
