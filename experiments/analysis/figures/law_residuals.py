"""What the laws leave over: measured loss over the law's, of each cell (mean over seeds), against
data, one panel per method; larger points are larger models, stars are held out. Points around zero
without a trend say that the form fits, a trend that it does not; grey is twice the noise of a mean
of as many seeds as each fitted cell of the method has at least."""

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis import law_cells, scaling, style
from experiments.analysis.figures import law_curves
from experiments.specs.planned import PlannedStudy

EVERY_RECIPE = True


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per cell that a law speaks of: its relative residual in percent."""
    means = law_curves.data(records, curves, study).dropna(subset=["law"])
    return means.assign(residual=100 * (means["loss"] / means["law"] - 1))


def seeds(study: PlannedStudy, algorithm: str) -> int:
    """The fewest seeds that the study plans for a fitted cell of an algorithm."""
    rows = law_cells.planned(study)
    own = rows[(rows["algorithm"] == algorithm) & ~rows["held_out"].astype(bool)]
    return int(own.groupby(["method", "model", "data"])["seed"].nunique().min())


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """One panel per method, over data; the size of a point is that of the model."""
    rows = data(records, curves, study)
    laws = scaling.fit_all(law_cells.finished(records, study))
    names = list(dict.fromkeys(rows["algorithm"]))
    colors = style.level_colors(rows["sparsity"])
    figure, axes = style.panels(len(names), height=2.0)
    if not names:
        style.say_empty(axes[0], "No method has a law yet.")
    for panel, name in zip(axes, names, strict=False):
        own = rows[rows["algorithm"] == name]
        noise = 200 * laws[name].seed_sd / np.sqrt(seeds(study, name))
        panel.axhspan(-noise, noise, color="0.9", zorder=0)
        panel.axhline(0, color="0.3", lw=0.8)
        for (level, is_held_out), at in own.groupby(["sparsity", "held_out"]):
            size = (120 if is_held_out else 60) * at["weights"] / rows["weights"].max()
            panel.scatter(at["data"], at["residual"], s=size, color=colors[level],
                          marker="*" if is_held_out else "o")  # fmt: skip
        style.count_axis(panel, law_cells.subject(study).data, own["data"].unique())
        panel.set_title(law_cells.name_of(study, name))
        panel.set_ylabel("residual (%)")
    handles = [
        matplotlib.lines.Line2D([], [], color=color, lw=0, marker="o", label=f"{100 * level:g}%")
        for level, color in colors.items()
    ]
    if handles:
        figure.legend(handles=handles, fontsize=8, ncols=len(handles), title="sparsity",
                      title_fontsize=8, loc="outside upper left")  # fmt: skip
    return figure


def caption(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> str:
    """Say the trends: slope of the residual over tenfold data, of each size of model."""
    rows = data(records, curves, study)
    fitted = rows[~rows["held_out"].astype(bool)]
    parts = []
    for _, own in fitted.groupby("weights"):
        slopes = [
            float(np.polyfit(np.log10(line["data"]), line["residual"], 1)[0])
            for _, line in own.groupby("method")
            if line["data"].nunique() > 2
        ]
        if slopes:
            ends = f"{min(slopes):+.1f} to {max(slopes):+.1f}%"
            parts.append(f"{own['model'].iloc[0]} {ends} ({len(slopes)} lines)")
    if not parts:
        return ""
    counts = [
        f"{seeds(study, name)} for {law_cells.name_of(study, name)}"
        for name in rows["algorithm"].unique()
    ]
    return (
        f"Seeds behind the grey band: {', '.join(counts)}. "
        f"Slope of a line's residual over ten times the data, least to largest: "
        f"{'; '.join(parts)}. Slopes of one sign at a size say that the form misses how size and "
        "data act together; bands hold another form besides, in which they do (table laws)."
    )
