"""Loss of one method minus that of another at equal non-zero weights (Sparse-Wide: at equal FLOPs),
sparsity and data, by the fitted laws, with 95% bands: below zero the first one is better. One panel
per pair, one line per sparsity, at the middle size. Shaded is what lies beyond the fitted
budgets."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis import effects, law_cells, scaling, style
from experiments.specs.planned import PlannedStudy

EVERY_RECIPE = True
COLUMNS = ["a", "b", "sparsity", "nonzero", "data", "effect", "low", "high", "extrapolated"]


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per pair of methods, sparsity and budget."""
    laws = scaling.fit_all(law_cells.finished(records, study))
    rows: list[dict[str, Any]] = []
    for a, b in effects.pairs(laws):
        for sparsity in effects.common_levels(laws[a], laws[b]):
            nonzero, fitted = laws[a].middle(sparsity), laws[a].rows["data"]
            grid = np.geomspace(fitted.min(), effects.BEYOND * fitted.max(), 49)
            point, low, high = effects.effect(laws[a], laws[b], sparsity, nonzero, grid)
            beyond = [laws[a].extrapolated(sparsity, nonzero, budget) for budget in grid]
            for values in zip(grid, point, low, high, beyond, strict=True):
                place = (a, b, sparsity, nonzero, *values)
                rows.append(dict(zip(COLUMNS, place, strict=True)))
    return pd.DataFrame(rows, columns=COLUMNS)


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """One panel per pair."""
    rows = data(records, curves, study)
    shown = list(dict.fromkeys(zip(rows["a"], rows["b"], strict=True)))
    figure, axes = style.panels(len(shown), height=2.4)
    if not shown:
        style.say_empty(axes[0], "No two sparse methods have a law yet.")
    for panel, (a, b) in zip(axes, shown, strict=False):
        own = rows[(rows["a"] == a) & (rows["b"] == b)]
        colors = style.level_colors(own["sparsity"])
        for level, color in colors.items():
            line = own[own["sparsity"] == level]
            panel.fill_between(
                line["data"], line["low"], line["high"], color=color, alpha=0.2, lw=0
            )
            panel.plot(line["data"], line["effect"], color=color, label=f"{100 * level:g}%")
        panel.axhline(0, color="0.3", lw=0.8)
        fitted = law_cells.planned(study)
        fitted = fitted[fitted["algorithm"].isin([a, b]) & ~fitted["held_out"].astype(bool)]
        panel.axvspan(fitted["data"].max(), own["data"].max(), color="0.93", zorder=0)
        style.count_axis(panel, f"{law_cells.subject(study).data} (shaded: extrapolated)")
        panel.set_title(" minus ".join(law_cells.name_of(study, name) for name in (a, b)))
        panel.set_ylabel(law_cells.subject(study).loss)
        panel.legend(fontsize=8, title="sparsity", title_fontsize=8)
    return figure


def caption(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> str:
    """Say what each band says at the longest fitted budget."""
    rows, parts = data(records, curves, study), []
    inside = rows[~rows["extrapolated"].astype(bool)]
    for (a, b, level), own in inside.groupby(["a", "b", "sparsity"], sort=False):
        last = own.iloc[-1]
        first, second = (law_cells.name_of(study, str(name)) for name in (a, b))
        better = effects.words(last["low"], last["high"], (first, second))
        answer = better if better == effects.NO_ANSWER else f"{better} is better"
        parts.append(f"{first} and {second} at {100 * level:g}%: {answer}")
    return f"At the longest fitted budget, {'; '.join(parts)}." if parts else ""
