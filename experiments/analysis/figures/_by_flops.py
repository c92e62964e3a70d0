"""Scores against training FLOPs, with the arrows of the Sparse-IFT blog's Figures 1 and 4."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.analysis import select as selection
from experiments.analysis import style
from experiments.analysis.methods import DENSE, INK, Methods
from experiments.specs.planned import PlannedStudy
from experiments.store import tidy

#: So many numbers still stand beside their points.
MOST_NUMBERS = 20
#: Distance of numbers above each other, and from where on a line leads from a number to its point;
#: both as shares of the panel's height.
GAP, MOVED = 0.042, 0.02
#: Highest place of a number, as a share of the panel's height.
TOP = 0.96
#: How far the FLOPs of a run may be from those of the dense model to count as equal.
EQUAL = 0.15
#: How far its training data may be from those of the dense model to count as equal.
SAME_LENGTH = 0.02
KEYS = ["dataset", "model", "method", "sparsity"]


def scores(records: pd.DataFrame, study: PlannedStudy, metric: str, split: str) -> pd.DataFrame:
    """One row per run that has the metric: its value, executed training FLOPs and training data.

    Data are counted in images, or in tokens where the models have none.
    Methods at settings that were chosen after the study had run are left out.
    """
    looks = Methods(study)
    retuned = {method for method in records["method"].unique() if looks[method].retuned}
    records = records[~records["method"].isin(retuned)]
    values = tidy.select(records, metric, split=split)
    flops = tidy.select(records, "flops_executed").set_index("run")["value"]
    counts = selection.per_run(records, "images", "tokens")
    amount = counts["images"].fillna(counts["tokens"])
    columns = ["run", *KEYS, "algorithm", "family", "seed", "split", "value"]
    rows = values[columns].assign(
        flops=values["run"].map(flops), data=values["run"].map(amount).astype(float)
    )
    return rows.dropna(subset=["flops"])


def is_dense(rows: pd.DataFrame) -> pd.Series:
    """Whether each row is of a model without masks or transformation."""
    return (rows["algorithm"] == DENSE) & rows["family"].isna()


def base_model(rows: pd.DataFrame) -> str | None:
    """The model that most methods were applied to, if it has dense runs."""
    counts = rows.groupby("model", sort=False)["method"].nunique()
    dense = set(rows[is_dense(rows)]["model"])
    counts = counts[counts.index.isin(dense)]
    return None if counts.empty else str(counts.idxmax())


def means(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean over seeds of each model, method and sparsity.

    Returns:
        Also ``ratio`` and ``length``, FLOPs and training data relative to those of the dense base
        (the one of the shortest training, should there be several).
    """
    groups = rows.groupby([*KEYS, "algorithm", "family"], sort=False, dropna=False)
    table = groups[["value", "flops", "data"]].mean().reset_index()
    base = base_model(rows)
    if base is None:
        return table.iloc[:0].assign(ratio=[], length=[])
    dense = table[(table["model"] == base) & is_dense(table)]
    dense = dense.sort_values("data", kind="stable").iloc[0]
    return table.assign(ratio=table["flops"] / dense["flops"], length=table["data"] / dense["data"])


def has_other_length(table: pd.DataFrame) -> pd.Series:
    """Whether each row of `means` trains on more or less data than the dense base."""
    return (table["length"] - 1).abs() > SAME_LENGTH


def has_other_flops(table: pd.DataFrame, base: str) -> pd.Series:
    """Whether each row of `means` transforms the base and has not about its FLOPs."""
    transformed = (table["model"] == base) & table["family"].notna()
    return transformed & ((table["ratio"] - 1).abs() > EQUAL)


def _length(length: float) -> str:
    return f"{length:.3g}x as long"


def corners(table: pd.DataFrame, base: str) -> dict[str, pd.Series]:
    """Return the places of the blog's figures, as far as there are runs for them.

    A is the dense base; B the un-widened sparse variants of it, which cost less; C the transformed
    variants within `EQUAL` of the FLOPs of A; D the larger dense models. A place is the mean over
    all of its variants: their scores are on the split that is shown, so none is picked by it.
    Variants that train on more or less data than the dense base are in no place.

    Returns:
        Letter to ``value`` and ``ratio`` (means over variants), ``low`` and ``high`` (of the
        variants' values), their ``count`` and the ``method`` and ``sparsity`` of the first.
    """
    table = table[~has_other_length(table)]
    own = table[table["model"] == base]
    family = own["family"]
    groups = {
        "A": own[is_dense(own)],
        "B": own[family.isna() & (own["sparsity"] > 0)],
        "C": own[family.notna() & ~has_other_flops(own, base)],
        "D": table[(table["model"] != base) & is_dense(table)],
    }
    return {name: _place(group) for name, group in groups.items() if len(group)}


def _place(group: pd.DataFrame) -> pd.Series:
    first, values = group.iloc[0], group["value"]
    return pd.Series(
        {
            "value": values.mean(),
            "ratio": group["ratio"].mean(),
            "low": values.min(),
            "high": values.max(),
            "count": len(group),
            "model": first["model"],
            "method": first["method"],
            "sparsity": first["sparsity"],
        }
    )


def draw(rows: pd.DataFrame, study: PlannedStudy, *, label: str, empty: str) -> Figure:
    """One panel per dataset."""
    looks = Methods(study)
    datasets = [name for name in rows["dataset"].unique() if base_model(_of(rows, name))]
    figure, axes = style.panels(len(datasets), height=3.6)
    if not datasets:
        style.say_empty(axes[0], empty)
    for panel, name in zip(axes, datasets, strict=False):
        _draw_panel(panel, _of(rows, name), looks)
        panel.set_title(name)
        panel.set_xlabel("executed training FLOPs, relative to the dense model")
        panel.set_ylabel(label)
    return figure


def _of(rows: pd.DataFrame, dataset: str) -> pd.DataFrame:
    return rows[rows["dataset"] == dataset]


def _draw_panel(axes: Axes, rows: pd.DataFrame, looks: Methods) -> None:
    table, base = means(rows), base_model(rows)
    known: dict[str, str] = {}
    kinds = zip(table.itertuples(), is_dense(table), has_other_length(table), strict=True)
    for row, plain, has_other in kinds:
        look = looks[row.method]
        own = rows[(rows["model"] == row.model) & (rows["method"] == row.method)]
        own = own[own["sparsity"] == row.sparsity]
        dense = row.flops / row.ratio
        axes.plot(own["flops"] / dense, own["value"], ".", color=look.color, ms=3, zorder=2)
        is_larger = row.model != base
        label = f"{look.name}, {row.model}" if is_larger else look.name
        label += f" ({_length(row.length)})" if has_other else ""
        axes.plot(
            row.ratio, row.value, look.marker, color=look.color, ms=6, zorder=4 if plain else 3,
            markerfacecolor="none" if is_larger else look.color,
            label=None if label in known else label,
        )  # fmt: skip
        known[label] = look.color
    axes.set_xscale("log")
    axes.margins(x=0.1, y=0.12)
    if table["ratio"].max() - table["ratio"].min() < EQUAL:
        axes.set_xlim(0.7, 1.5)
    low, high = axes.get_xlim()
    _label_sparsity(axes, table[table["sparsity"] > 0], looks)
    ticks = [tick for tick in (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5) if low <= tick <= high]
    axes.set_xticks(ticks, [f"{tick:g}x" for tick in ticks])
    axes.minorticks_off()
    points = corners(table, base or "")
    for name, point in points.items():
        # Beside the arrow's head, on the side that the arrow does not come from.
        beside = (6, 5) if point["value"] > points["A"]["value"] else (9, -13)
        offset = beside if point["ratio"] < 1 - EQUAL else (-14, 5)
        axes.annotate(
            name, (point["ratio"], point["value"]), offset, textcoords="offset points",
            fontweight="bold", zorder=5,
        )  # fmt: skip
    for name in sorted(points.keys() - {"A"}):
        axes.annotate(
            "",
            (points[name]["ratio"], points[name]["value"]),
            (points["A"]["ratio"], points["A"]["value"]),
            arrowprops={
                "arrowstyle": "->", "lw": 1.2, "shrinkA": 7, "shrinkB": 7, "color": INK,
                "linestyle": ":" if name == "D" else "-",
            },
        )  # fmt: skip
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=8)


def _label_sparsity(axes: Axes, points: pd.DataFrame, looks: Methods) -> None:
    """Write the sparsity beside each point, numbers of neighbours moved apart.

    On the side away from the dense model, where no arrow comes in. A thin line leads from a number
    that was moved to its point. Where too many points are one above the other, none has a number.
    """
    to_axes = axes.transData + axes.transAxes.inverted()
    spots = to_axes.transform(points[["ratio", "value"]].to_numpy(float))
    middle = to_axes.transform((1 - EQUAL, 0.0))[0]
    order = spots[:, 0].argsort()
    columns = (np.diff(spots[order, 0], prepend=-1.0) > 0.05).cumsum()
    for column in np.unique(columns):
        members = order[columns == column]
        if len(members) > MOST_NUMBERS:
            continue
        members = members[spots[members, 1].argsort()]
        own = spots[members, 1]
        heights = np.array(style.spread(own.tolist(), GAP, top=TOP))
        is_left = bool(spots[members, 0].max() < middle)
        if not is_left:  # around their points, as far as there is room
            lowest = max(0.0, heights[0] - GAP)
            heights -= np.clip((heights - own).mean(), heights[-1] - TOP, lowest)
        is_apart = bool((abs(heights - own) > MOVED).any())
        away = 0.035 if is_apart else 0.02
        x = spots[members, 0].min() - away if is_left else spots[members, 0].max() + away
        for place, y in zip(members, heights, strict=True):
            point = points.iloc[place]
            color = looks[point["method"]].color
            axes.text(
                x, y, f"{100 * point['sparsity']:g}", transform=axes.transAxes, fontsize=7,
                va="center", ha="right" if is_left else "left", fontweight="bold", color=color,
                zorder=6,
            )  # fmt: skip
            if is_apart:
                near = x + 0.006 if is_left else x - 0.006
                axes.plot(
                    [near, spots[place, 0]], [y, spots[place, 1]], transform=axes.transAxes,
                    color=color, lw=0.5, zorder=1,
                )  # fmt: skip


def caption(rows: pd.DataFrame, study: PlannedStudy, *, unit: str, scale: float = 1.0) -> str:
    """Say for each dataset where the arrows lead: over all variants of a letter, none picked."""
    looks, sentences = Methods(study), []
    for name in rows["dataset"].unique():
        own = _of(rows, name)
        base = base_model(own)
        if base is None:
            continue
        table = means(own)
        points = corners(table, base)
        parts = [f"On {name}, A ({base}, dense) has {scale * points['A']['value']:.1f}{unit}"]
        for corner in ("B", "C", "D"):
            if corner not in points:
                continue
            point = points[corner]
            at = f"at {point['ratio']:.2f}x the FLOPs"
            if point["count"] > 1:
                parts.append(
                    f"the {point['count']} variants of {corner} have {scale * point['low']:.1f} to "
                    f"{scale * point['high']:.1f}{unit}, {scale * point['value']:.1f}{unit} in the "
                    f"mean, {at} in the mean"
                )
                continue
            who = looks.treatment(point["method"], point["sparsity"])
            who += f" {point['model']}" if corner == "D" else ""
            parts.append(f"{corner} ({who}) {scale * point['value']:.1f}{unit} {at}")
        sentences.append(", ".join(parts) + ".")
        others = [
            f"{looks.treatment(row.method, row.sparsity)} ({_length(row.length)}, "
            f"{scale * row.value:.1f}{unit} at {row.ratio:.2f}x the FLOPs)"
            for row in table[has_other_length(table)].itertuples()
        ]
        if others:
            sentences.append(f"In no letter, by the length of its training: {'; '.join(others)}.")
        dearer = table[has_other_flops(table, base) & ~has_other_length(table)]
        if len(dearer):
            named = "; ".join(
                f"{looks.treatment(row.method, row.sparsity)} ({scale * row.value:.1f}{unit} at "
                f"{row.ratio:.2f}x the FLOPs)"
                for row in dearer.itertuples()
            )
            sentences.append(f"In no letter, by FLOPs other than A's: {named}.")
    return " ".join(sentences)
