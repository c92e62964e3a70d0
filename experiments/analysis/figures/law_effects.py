"""Loss of one method minus that of another at equal non-zero weights, sparsity and tokens, by the
fitted laws, with 95% bands: below zero the first one is better. One panel per pair, one line per
sparsity, at the middle size. Shaded is what lies beyond the fitted budgets."""

import itertools
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis import scaling, style
from experiments.analysis.methods import Methods
from experiments.specs.planned import PlannedStudy

EVERY_RECIPE = True
#: How far beyond the longest fitted budget effects are shown.
BEYOND = 10
COLUMNS = ["a", "b", "sparsity", "nonzero", "tokens", "effect", "low", "high", "extrapolated"]


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per pair of methods, sparsity and number of tokens."""
    laws = scaling.fit_all(scaling.finished(records, study))
    rows: list[dict[str, Any]] = []
    for a, b in pairs(laws):
        for sparsity in common_levels(laws[a], laws[b]):
            weights = float(np.median(laws[a].rows["weights"].unique()))
            nonzero = weights * (1 - sparsity)
            fitted = laws[a].rows["tokens"]
            grid = np.geomspace(fitted.min(), BEYOND * fitted.max(), 49)
            point, low, high = scaling.effect(laws[a], laws[b], sparsity, nonzero, grid)
            beyond = [laws[a].extrapolated(sparsity, nonzero, tokens) for tokens in grid]
            for values in zip(grid, point, low, high, beyond, strict=True):
                place = (a, b, sparsity, nonzero, *values)
                rows.append(dict(zip(COLUMNS, place, strict=True)))
    return pd.DataFrame(rows, columns=COLUMNS)


def pairs(laws: dict[str, scaling.Fitted]) -> list[tuple[str, str]]:
    """Pairs of sparse methods that have laws, Static last in each."""
    order: list[str] = [name for name in ("gmp", "granet", "rigl", "set") if name in laws]
    order += sorted(set(laws) - {*order, "static", scaling.DENSE})
    order += ["static"] * ("static" in laws)
    return list(itertools.combinations(order, 2))


def common_levels(a: scaling.Fitted, b: scaling.Fitted) -> list[float]:
    """Sparsities that both methods were trained at."""
    return sorted(set(a.rows["sparsity"]) & set(b.rows["sparsity"]) - {0.0})


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """One panel per pair."""
    rows, looks = data(records, curves, study), Methods(study)
    shown = list(dict.fromkeys(zip(rows["a"], rows["b"], strict=True)))
    figure, axes = style.panels(len(shown), height=2.4)
    if not shown:
        style.say_empty(axes[0], "No two sparse methods have a law yet.")
    for panel, (a, b) in zip(axes, shown, strict=False):
        own = rows[(rows["a"] == a) & (rows["b"] == b)]
        levels = sorted(own["sparsity"].unique())
        colors = matplotlib.colormaps["viridis"](np.linspace(0.05, 0.85, max(2, len(levels))))
        for color, level in zip(colors, levels, strict=False):
            line = own[own["sparsity"] == level]
            panel.fill_between(
                line["tokens"], line["low"], line["high"], color=color, alpha=0.2, lw=0
            )
            panel.plot(line["tokens"], line["effect"], color=color, label=f"{100 * level:g}%")
        panel.axhline(0, color="0.3", lw=0.8)
        inside = own[~own["extrapolated"].astype(bool)]["tokens"]
        if len(inside):
            panel.axvspan(inside.max(), own["tokens"].max(), color="0.93", zorder=0)
        style.count_axis(panel, "training tokens (shaded: extrapolated)")
        panel.set_title(f"{looks[a].name} minus {looks[b].name}")
        panel.set_ylabel("bits per byte")
        panel.legend(fontsize=8, title="sparsity", title_fontsize=8)
    return figure
