"""When sparsity pays: loss against training time, the best dense model of each time and the best
sparse one, size and sparsity chosen by the fitted laws; the colour of the sparse line is the
sparsity that is best there, dashed is extrapolated, bands are 95%. Time is that of the products of
the blocks: above by the kernels of this library as measured on one thread of this CPU, below on a
CS-2 by simulation, at its peak rate and without streaming, so a lower bound. Dots are finished
cells at the same clock, in the colour of their sparsity, and the legend has a line for those that
are best somewhere. The thin grey line is the dense one; where the sparse line lies below it,
sparsity pays."""

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis import clocks, effects, law_cells, scaling, style
from experiments.specs.planned import PlannedStudy

EVERY_RECIPE = True
NUM_TIMES = 28
KINDS = ("sparse", "dense")
#: The dense line is drawn on top, thin, so that either is seen where both are one.
WIDTHS = {"dense": 1.2, "sparse": 3.0}
COLUMNS = ["clock", "kind", "method", "sparsity", "seconds", "nonzero", "data", "loss", "low",
           "high", "minus dense low", "minus dense high", "extrapolated"]  # fmt: skip


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per clock, kind and time."""
    laws = scaling.fit_all(law_cells.finished(records, study))
    rows = []
    for key, clock in clocks.of_study(study).items():
        fronts = {kind: _front(laws, clock, key, kind, study) for kind in KINDS}
        for row, base in zip(fronts["sparse"], fronts["dense"], strict=False):
            band = effects.interval(row["draws"] - base["draws"])
            row["minus dense low"], row["minus dense high"] = band
            row["extrapolated"] |= base["extrapolated"]
        rows += [row for kind in KINDS for row in fronts[kind]]
    return pd.DataFrame(rows, columns=COLUMNS)


def sizes(law: scaling.Fitted) -> tuple[float, float]:
    """Non-zero weights that are considered: those of the fitted dense models, and around."""
    weights = law.rows[law.rows["sparsity"] == 0]["weights"]
    return float(weights.min()) / clocks.REACH, float(weights.max()) * clocks.REACH


def _front(
    laws: dict[str, scaling.Fitted], clock: clocks.Clock, key: str, kind: str, study: PlannedStudy
) -> list[dict]:
    options = [
        (name, sparsity)
        for name, law in laws.items()
        for sparsity in sorted(set(law.rows["sparsity"]))
        if (kind == "dense") == (name == law_cells.DENSE) and bool(sparsity) == (kind == "sparse")
    ]
    if not options:
        return []
    dense = laws[law_cells.DENSE].rows
    compute = dense["weights"] * dense["data"]
    unit = clock.unit_s
    seconds = unit * np.geomspace(compute.min(), effects.BEYOND * compute.max(), NUM_TIMES)
    fronts, costs = [], []
    for name, sparsity in options:
        cost = clock.cost(clocks.path(study, name, sparsity)) / (1 - sparsity)
        law = laws[name]
        fronts.append(clocks.best(law.law, sparsity, seconds / (unit * cost), sizes(law)))
        costs.append(cost)
    chosen = np.argmin([front.loss for front in fronts], axis=0)
    rows = []
    for at, time in enumerate(seconds):
        pick = int(chosen[at])
        name, sparsity = options[pick]
        law, front = laws[name], fronts[pick]
        nonzero, amount = float(front.nonzero[at]), float(front.data[at])
        # The size stays the chosen one: a band of what this choice gives.
        drawn = law.sample(sparsity, nonzero, amount)
        values = (key, kind, name, sparsity, time, nonzero, amount, front.loss[at])
        row = dict(zip(COLUMNS, (*values, *effects.interval(drawn)), strict=False))
        beyond = law.extrapolated(sparsity, nonzero, amount)
        rows.append(row | {"extrapolated": beyond, "draws": drawn})
    return rows


def cells(records: pd.DataFrame, study: PlannedStudy, clock: clocks.Clock) -> pd.DataFrame:
    """Finished cells with the time that their training takes by a clock."""
    means = law_cells.cell_means(law_cells.finished(records, study))
    costs = [
        clock.cost(clocks.path(study, row.algorithm, row.sparsity)) for row in means.itertuples()
    ]
    return means.assign(seconds=clock.unit_s * means["weights"] * means["data"] * costs)


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """One panel per clock."""
    rows, known = data(records, curves, study), clocks.of_study(study)
    figure, axes = style.panels(len(known), height=3.2)
    if rows.empty:
        for panel in axes:
            style.say_empty(panel, "No method has a law yet." if known else clocks.missing(study))
        return figure
    levels = sorted({0.0, *law_cells.planned(study)["sparsity"]})
    colors = {0.0: "#7F7F7F"} | style.level_colors(levels[1:])
    for panel, (key, clock) in zip(axes, known.items(), strict=True):
        finished = cells(records, study, clock)
        measured = set(finished["sparsity"])
        for level, own in finished.groupby("sparsity"):
            panel.plot(own["seconds"], own["loss"], ".", color=colors[level], alpha=0.5, ms=4)
        for kind in KINDS:
            line = rows[(rows["clock"] == key) & (rows["kind"] == kind)]
            for one, other in zip(line.to_dict("records"), line.to_dict("records")[1:]):
                how = "--" if other["extrapolated"] else "-"
                ends = [one["seconds"], other["seconds"]]
                color = colors[other["sparsity"]]
                panel.plot(ends, [one["loss"], other["loss"]], how, color=color, lw=WIDTHS[kind])
                lows, highs = ([each[end] for each in (one, other)] for end in ("low", "high"))
                panel.fill_between(ends, lows, highs, color=color, alpha=0.15, lw=0)
        best = set(rows["sparsity"])
        handles = [
            matplotlib.lines.Line2D([], [], color=colors[level], lw=2 if level in best else 0,
                                    marker="." if level in measured else "",
                                    label=f"{100 * level:g}%" if level else "dense")
            for level in levels
            if level in best | measured
        ]  # fmt: skip
        panel.legend(handles=handles, fontsize=8, title="sparsity", title_fontsize=8)
        panel.set_xscale("log")
        panel.set_xlabel("seconds of training (products of the blocks)")
        panel.set_ylabel(law_cells.subject(study).loss)
        beyond = rows[rows["clock"] == key]["extrapolated"].astype(bool)
        panel.set_title(f"{clock.title}, all extrapolated" if beyond.all() else clock.title)
    return figure


def caption(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> str:
    """Say at which times the best sparse model is better than the best dense one, by the band of
    their difference.

    All of it is what the laws say: the clocks are measured or simulated, the losses are not.
    """
    rows = data(records, curves, study)
    parts = []
    for key, clock in clocks.of_study(study).items():
        own = rows[rows["clock"] == key]
        sparse = own[own["kind"] == "sparse"]
        if sparse.empty:
            continue
        parts.append(f"{clock.title}: {_verdict(sparse)}")
    if parts:
        parts.insert(
            0,
            "Compared are the best size of a dense model and the best size and sparsity of a "
            "sparse one in equal time. The table law_advice compares models of equal non-zero "
            "weights instead.",
        )
    return " ".join([*parts, *law_cells.waiting(law_cells.finished(records, study), study)])


def _verdict(sparse: pd.DataFrame) -> str:
    """One clock in sentences: how many times have an answer, and where they lie.

    Args:
        sparse: Rows of the best sparse model, one per time.
    """
    beyond = sparse["extrapolated"].astype(bool)
    places = (("within what was fitted", ~beyond), ("beyond what was fitted", beyond))
    found = []
    for where, chosen in places:
        own = sparse[chosen]
        if len(own) == 0:
            found.append(f"No time lies {where}.")
            continue
        pays, loses = (own["minus dense high"] < 0).sum(), (own["minus dense low"] > 0).sum()
        of = f"Of {len(own)} times {where}" if len(own) > 1 else f"At the one time {where}"
        if not pays and not loses:
            at = f"At all {len(own)} times {where}" if len(own) > 1 else of
            found.append(f"{at}, the band of sparse minus dense covers zero: no answer.")
        elif len(own) == 1:
            found.append(f"{of}, the {'sparse' if pays else 'dense'} model is better.")
        else:
            found.append(
                f"{of}, the sparse model is better at {pays} and the dense one at {loses}; "
                f"{len(own) - pays - loses} have no answer."
            )
    return " ".join(found)
