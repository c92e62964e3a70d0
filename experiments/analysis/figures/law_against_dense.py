"""Loss of each method minus that of a dense model of as many non-zero weights (Sparse-Wide: of
equal FLOPs) on equal data, by the fitted laws, with 95% bands: where a band lies below zero,
sparsity helps. One panel per method, one line per sparsity, at the largest fitted model. Dashed is
what lies beyond the fitted sizes of either, or beyond the fitted budgets."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis import effects, law_cells, scaling, style
from experiments.specs.planned import PlannedStudy

EVERY_RECIPE = True
COLUMNS = ["method", "sparsity", "nonzero", "data", "effect", "low", "high", "extrapolated"]


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per method, sparsity and budget."""
    laws = scaling.fit_all(law_cells.finished(records, study))
    rows: list[dict[str, Any]] = []
    for name in (name for name in laws if name != law_cells.DENSE):
        law, dense = laws[name], laws[law_cells.DENSE]
        fitted = law.rows["data"]
        grid = np.geomspace(fitted.min(), effects.BEYOND * fitted.max(), 49)
        for sparsity in effects.common_levels(law, dense):
            nonzero = law.largest(sparsity)
            point, low, high = effects.effect(law, dense, sparsity, nonzero, grid)
            beyond = [
                any(law.extrapolated(level, nonzero, budget) for level in (0.0, sparsity))
                for budget in grid
            ]
            for values in zip(grid, point, low, high, beyond, strict=True):
                rows.append(dict(zip(COLUMNS, (name, sparsity, nonzero, *values), strict=True)))
    return pd.DataFrame(rows, columns=COLUMNS)


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """One panel per method."""
    rows = data(records, curves, study)
    about = law_cells.subject(study)
    names = list(dict.fromkeys(rows["method"]))
    figure, axes = style.panels(len(names), height=2.6)
    if not names:
        style.say_empty(axes[0], "No sparse method has a law yet.")
    for panel, name in zip(axes, names, strict=False):
        own = rows[rows["method"] == name]
        colors = style.level_colors(own["sparsity"])
        for level, color in colors.items():
            line = own[own["sparsity"] == level]
            panel.fill_between(line["data"], line["low"], line["high"], color=color, alpha=0.2,
                               lw=0)  # fmt: skip
            inside = ~line["extrapolated"].astype(bool)
            panel.plot(line["data"], line["effect"].where(inside), color=color)
            panel.plot(line["data"], line["effect"].where(~inside), "--", color=color)
        panel.axhline(0, color="0.3", lw=0.8)
        style.count_axis(panel, f"{about.data} (dashed: extrapolated)")
        panel.set_title(f"{law_cells.name_of(study, name)} minus dense, equal {about.equal}")
        panel.set_ylabel(about.loss)
        last = own.groupby("sparsity")["effect"].last()
        texts = [f"{100 * level:g}%" for level in colors]
        style.label_ends(panel, list(zip(last, texts, colors.values(), strict=True)))
    return figure


def caption(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> str:
    """Say what the bands say at the longest fitted budget, and who waits for runs."""
    rows = law_cells.finished(records, study)
    rows = rows[~rows["held_out"].astype(bool)]
    laws, parts = scaling.fit_all(rows), []
    for name in (name for name in laws if name != law_cells.DENSE):
        law, dense = laws[name], laws[law_cells.DENSE]
        longest = float(law.rows["data"].max())
        for sparsity in effects.common_levels(law, dense):
            place = sparsity, law.largest(sparsity), longest
            _, low, high = effects.effect(law, dense, *place)
            better = effects.words(float(low), float(high), ("sparse", "dense"))
            answer = better if better == effects.NO_ANSWER else f"{better} is better"
            parts.append(f"{law_cells.name_of(study, name)} at {100 * sparsity:g}%: {answer}")
    said = f"At the longest fitted budget, {'; '.join(parts)}." if parts else ""
    return " ".join([said, *law_cells.waiting(rows, study)]).strip()
