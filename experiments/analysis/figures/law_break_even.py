"""The speedup that a sparse step needs over a dense step of the same layers, so that the best
sparse model and the best dense one tie in loss and in training time, by the fitted laws with 95%
bands: one panel per sparsity, against the training compute of the dense model. Thick lines are at
the best size of each compute, where the form of the law makes the answer nearly the same for all;
thin ones are at the non-zero weights of the smallest fitted dense model, as when a device or a
latency fixes the size, and a longer training is what compute buys. Horizontal lines are what steps
gain: on this CPU with the kernels of this library, on a CS-2 by simulation, and at
most, 1 / (1 - sparsity). Where a method's line lies below a device's, sparsity pays there. Dashed
is where the dense or the sparse model is beyond the fitted sizes or budgets. A band without an
upper edge is open: by some draws no sparse model ties. Bands hold both forms of the laws, but not
what both miss. Methods whose sparsity changes while they train are left out. The vertical axis is
logarithmic."""

import itertools
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from experiments.analysis import clocks, effects, law_cells, scaling, style
from experiments.analysis.figures.law_time import sizes
from experiments.analysis.methods import Methods
from experiments.specs.planned import PlannedStudy

EVERY_RECIPE = True
NUM_BUDGETS = 24
COLUMNS = ["method", "sparsity", "size", "compute", "speedup", "low", "high", "extrapolated"]
#: Whether each compute has the size that is best for it, and the width of its line.
SIZES = {"best": 2.2, "fixed": 1.0}
#: Of the legend above the panels, in inches.
LEGEND_HEIGHT = 0.5
LINES = {"cpu": ("this CPU", ":"), "cs2": ("CS-2, simulated", "-.")}


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per method, sparsity and compute (weights times data of the dense model)."""
    laws = scaling.fit_all(law_cells.finished(records, study))
    rows: list[dict[str, Any]] = []
    for name, law in laws.items():
        dense = law.rows[law.rows["sparsity"] == 0]
        smallest = float(dense["weights"].min())
        longest = float((dense["weights"] * dense["data"]).max()), smallest * dense["data"].max()
        shortest = smallest * float(dense["data"].min())
        considered = zip(SIZES, (sizes(law), (smallest, smallest)), longest, strict=True)
        for (size, range_, last), sparsity in itertools.product(
            list(considered), sorted(set(law.rows["sparsity"]) - {0.0})
        ):
            if np.ptp(clocks.path(study, name, sparsity)):
                continue
            grid = np.geomspace(shortest, effects.BEYOND * last, NUM_BUDGETS)
            tie = clocks.break_even(law.law, sparsity, grid, range_)
            draws = [clocks.break_even(one, sparsity, grid, range_).speedup for one in law.draws]
            low, high = effects.interval(np.array(draws))
            places = ((0.0, tie.dense), (sparsity, tie.sparse))
            beyond = [
                any(law.extrapolated(s, found.nonzero[at], found.data[at]) for s, found in places)
                for at in range(len(grid))
            ]
            for values in zip(grid, tie.speedup, low, high, beyond, strict=True):
                rows.append(dict(zip(COLUMNS, (name, sparsity, size, *values), strict=True)))
    return pd.DataFrame(rows, columns=COLUMNS)


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """One panel per sparsity."""
    rows, looks = data(records, curves, study), Methods(study)
    known = clocks.of_study(study)
    levels = sorted(rows["sparsity"].unique())
    figure, axes = style.panels(len(levels), height=2.3)
    if not levels:
        style.say_empty(axes[0], "No sparse method has a law yet.")
    for panel, level in zip(axes, levels, strict=False):
        for (name, size), own in rows[rows["sparsity"] == level].groupby(["method", "size"]):
            look, width = looks[str(name)], SIZES[str(size)]
            x = clocks.FLOPS_PER_WEIGHT * own["compute"]
            high = own["high"].where(np.isfinite(own["high"]), 1e6)  # far above the panel
            panel.fill_between(x, own["low"], high, color=look.color, alpha=0.15, lw=0)
            inside = ~own["extrapolated"].astype(bool)
            label = f"{law_cells.name_of(study, str(name))}, {size} size"
            panel.plot(x, own["speedup"].where(inside), color=look.color, lw=width, label=label)
            panel.plot(x, own["speedup"].where(~inside), "--", color=look.color, lw=width)
        gains = {LINES[key]: float(clock.speedup(level)) for key, clock in known.items()}
        gains[("at most", "-")] = 1 / (1 - level)
        for (_, how), gain in gains.items():
            panel.axhline(gain, color="0.3", lw=0.9, ls=how)
        panel.set_yscale("log")
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_formatter("")
        shown = rows.loc[rows["sparsity"] == level, "speedup"]
        shown = [*shown[np.isfinite(shown)], *gains.values()]
        panel.set_ylim(min(0.9, *shown) / 1.1, 2 * max(shown))
        style.label_ends(panel, [(g, f"{label} {g:.3g}", "0.3") for (label, _), g in gains.items()])
        panel.set_xscale("log")
        panel.set_title(f"{100 * level:g}% zeros")
        panel.set_xlabel("training FLOPs of the dense model's blocks (dashed: extrapolated)")
        panel.set_ylabel("speedup needed")
    lines = {line.get_label(): line for panel in axes for line in panel.lines}
    handles = [line for label, line in lines.items() if not str(label).startswith("_")]
    if handles:
        figure.legend(handles=handles, fontsize=8, ncols=2, loc="outside upper left")
        figure.set_figheight(figure.get_figheight() + LEGEND_HEIGHT)
    return figure


def caption(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> str:
    """Say what is needed at the longest fitted compute, and whether devices give it."""
    rows, known, parts = data(records, curves, study), clocks.of_study(study), []
    fixed = rows[rows["size"] == "fixed"]
    fitted = fixed[~fixed["extrapolated"].astype(bool)]
    for (name, level), own in fitted.groupby(["method", "sparsity"], sort=False):
        last = own.sort_values("compute").iloc[-1]
        given = [
            f"{LINES[key][0]} {_pays(float(clock.speedup(level)), last['low'], last['high'])}"
            for key, clock in known.items()
        ]
        parts.append(
            f"{law_cells.name_of(study, str(name))} at {100 * level:g}% needs "
            f"{last['speedup']:.2f} ({last['low']:.2f} to {last['high']:.2f}): {', '.join(given)}"
        )
    if parts:
        return f"At the fixed size and the longest budget inside of the fit, {'; '.join(parts)}."
    return "" if rows.empty else "All of it is extrapolated."


def _pays(speedup: float, low: float, high: float) -> str:
    word = "gives it" if speedup > high else "does not reach it" if speedup < low else "no answer"
    return f"({speedup:.2f}) {word}"
