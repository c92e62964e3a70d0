"""The sparsity of least loss at fixed non-zero weights against training cost, by the fitted laws.
Cost is in data that a dense model of as many weights could be trained on. Counted in FLOPs, a model
that is sparse throughout costs as much as that dense one, and gradual pruning, dense at first, more
(Frantar et al., section 3.1), so it sees less; counted in time, it is by the steps of this CPU, or
of a simulated CS-2. One panel per method, at the non-zeros of the smallest fitted dense model;
bands are 95% of the bootstrap. Dashed is where the best sparsity, or 0%, is beyond the sizes or
budgets that were fitted at it: a model of that many non-zeros was not trained there."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis import clocks, effects, law_cells, scaling, style
from experiments.analysis.laws import gradual_cost
from experiments.specs.planned import PlannedStudy

EVERY_RECIPE = True
#: Methods that are shown: one that prunes gradually, and one that is sparse throughout.
METHODS = ("gmp", "static")
COSTS = {"FLOPs": "#0072B2", "this CPU": "#D55E00", "CS-2": "#009E73"}
NUM_BUDGETS = 17
COLUMNS = ["method", "cost", "nonzero", "data", "sparsity", "low", "high", "extrapolated"]


def costs(study: PlannedStudy, method: str) -> dict[str, Callable[[Any], Any]]:
    """Name of `COSTS` to sparsities (S,) to cost over a dense model of as many weights, (S,)."""
    gradual = bool(np.ptp(clocks.path(study, method, 0.75)))
    found: dict[str, Callable[[Any], Any]] = {"FLOPs": gradual_cost if gradual else np.ones_like}
    levels = np.linspace(0.0, 0.99, 100)
    for name, clock in zip(("this CPU", "CS-2"), clocks.of_study(study).values(), strict=False):
        whole = [clock.cost(clocks.path(study, method, level)) for level in levels]
        found[name] = functools.partial(np.interp, xp=levels, fp=np.array(whole) / (1 - levels))
    return found


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per method, cost and budget."""
    laws = scaling.fit_all(law_cells.finished(records, study))
    rows = []
    for name in (name for name in METHODS if name in laws):
        law = laws[name]
        highest = float(law.rows["sparsity"].max())
        dense, fitted = law.rows[law.rows["sparsity"] == 0], law.rows["data"]
        nonzero = float(dense["weights"].min())
        for title, cost in costs(study, name).items():
            for budget in np.geomspace(fitted.min(), effects.BEYOND * fitted.max(), NUM_BUDGETS):
                best = [
                    one.best_sparsity(nonzero, budget, highest=highest, cost=cost)
                    for one in (law.law, *law.draws)
                ]
                low, high = effects.interval(np.array(best[1:]))
                places = ((0.0, budget), (best[0], budget / float(cost(np.array([best[0]]))[0])))
                beyond = any(law.extrapolated(s, nonzero, amount) for s, amount in places)
                rows.append((name, title, nonzero, budget, best[0], low, high, beyond))
    return pd.DataFrame(rows, columns=COLUMNS)


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """One panel per method."""
    rows = data(records, curves, study)
    names = list(dict.fromkeys(rows["method"]))
    figure, axes = style.panels(len(names), height=2.6)
    if not names:
        style.say_empty(axes[0], "Neither Static nor gradual pruning has a law yet.")
    for panel, name in zip(axes, names, strict=False):
        own = rows[rows["method"] == name]
        ends = []
        for index, (title, line) in enumerate(own.groupby("cost", sort=False)):
            color = COSTS[str(title)]
            panel.fill_between(line["data"], 100 * line["low"], 100 * line["high"], color=color,
                               alpha=0.15, lw=0)  # fmt: skip
            width = style.nested_width(index)
            beyond = line["extrapolated"].astype(bool)
            for shown, how in ((~beyond, "-"), (beyond, "--")):
                panel.plot(line["data"], 100 * line["sparsity"].where(shown), how, color=color,
                           lw=width)  # fmt: skip
            ends.append((100 * float(line["sparsity"].iloc[-1]), str(title), color))
        about = law_cells.subject(study).data
        style.count_axis(panel, f"{about} of dense at equal cost (dashed: extrapolated)")
        panel.set_ylabel("best sparsity (%)")
        panel.set_ylim(-4, 104)
        style.label_ends(panel, ends)
        panel.set_title(
            f"{law_cells.name_of(study, name)}, {own['nonzero'].iloc[0]:,.0f} non-zero weights"
        )
    return figure


def caption(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> str:
    """Say how the best sparsity moves with the budget, and name the methods without a law."""
    rows = law_cells.finished(records, study)
    parts = []
    for (name, title), line in data(records, curves, study).groupby(["method", "cost"], sort=False):
        first, last = (line.iloc[at] for at in (0, -1))
        parts.append(
            f"{law_cells.name_of(study, str(name))} by {title} "
            f"{100 * first['sparsity']:.0f}% at {first['data'] / 1e6:.1f} "
            f"million, {100 * last['sparsity']:.0f}% at {last['data'] / 1e6:.0f}"
        )
    said = f"Best sparsity by the laws: {'; '.join(parts)}." if parts else ""
    names = [name for name in METHODS if law_cells.waits_for(rows, name)]
    waiting = (f"{law_cells.name_of(study, name)} has no law yet." for name in names)
    return " ".join([said, *waiting]).strip()
