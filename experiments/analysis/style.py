"""What all figures share: a fixed look per method, axes, and labels at the ends of lines."""

import hashlib
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator

from experiments.analysis import stats
from experiments.specs.schema import algorithm_names

matplotlib.use("Agg")

WIDTH = 5.6
PANEL_HEIGHT = 2.5
INK = "#1b1f24"
SHEET = Path(__file__).with_name("style.mplstyle")


@dataclass(frozen=True)
class MethodStyle:
    """How one method looks in every figure and table."""

    name: str
    color: str
    marker: str


# Okabe and Ito's colour-blind-safe set; markers carry the same information without colour.
METHODS = {
    "dense": MethodStyle("Dense", "#7F7F7F", "o"),
    # Dense with the batch and steps of the sparse runs.
    "dense-control": MethodStyle("Dense control", INK, "X"),
    "static": MethodStyle("Static", "#D55E00", "s"),
    "set": MethodStyle("SET", "#009E73", "^"),
    "rigl": MethodStyle("RigL", "#0072B2", "D"),
    "granet": MethodStyle("GraNet", "#E69F00", "v"),
    "gmp": MethodStyle("GMP", "#CC79A7", "P"),
}
# A study's Sparse-IFT methods are named <family><sparsity>-<algorithm>, un-widened ones
# <algorithm> or <algorithm><sparsity>; the sparsity is a column of its own. Any other name stands
# for itself.
FAMILIES = {
    "wide": ("Sparse-Wide", "#332288"),
    "parallel": ("Sparse-Parallel", "#44AA99"),
    "factorized": ("Sparse-Factorized", "#999933"),
    "doped": ("Sparse-Doped", "#AA4499"),
}
WIDE_COLORS = {"static": "#88CCEE", "set": "#117733", "iso": "#AA3377"}
ALGORITHM = "|".join(sorted({*METHODS, *algorithm_names()}, key=len, reverse=True))
METHOD_NAME = re.compile(rf"(?:({'|'.join(FAMILIES)})\d*-)?(?:({ALGORITHM})(?:-?\d+|-rare)?|(.*))")
#: End of the name of a method at settings that were chosen after its study had run.
RETUNED = "-retuned"
# What Tol's sets have left, for methods that the lists above do not know.
SPARE_COLORS = ("#882255", "#CC6677", "#EE3377", "#33BBEE", "#6699CC", "#997700", "#994455")
SPARE_MARKERS = ("X", "<", ">", "p", "h", "*", "d")

AXES = {
    "tokens": ("tokens", "training tokens"),
    "steps": ("step", "optimizer steps"),
    "flops": ("flops_executed", "executed training FLOPs"),
}


def progress(rows: pd.DataFrame, x: str) -> tuple[str, str]:
    """Return the column that holds an axis of `AXES`, and its name; images stand for tokens."""
    if x == "tokens" and rows["tokens"].isna().all() and rows["images"].notna().any():
        return "images", "training images"
    return AXES[x]


def loss_unit(rows: pd.DataFrame) -> str:
    """Return what a loss is measured in: language models have tokens, image models have none."""
    return f"nats per {progress(rows, 'tokens')[0].removesuffix('s')}"


def progress_axis(axes: Axes, name: str) -> None:
    """Name the x axis of a curve, and write its large numbers short."""
    axes.set_xlabel(name)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def method_style(method: str) -> MethodStyle:
    """Return the look of a method; an unknown one gets a look derived from its name."""
    if method.endswith(RETUNED):
        look = method_style(method.removesuffix(RETUNED))
        return MethodStyle(f"{look.name}, retuned", look.color, "*")
    family, algorithm = split_method(method)
    look = METHODS.get(algorithm) or _spare(algorithm)
    if family is None:
        return look
    name, color = FAMILIES[family]
    if family == "wide":
        color = WIDE_COLORS.get(algorithm, color)
    return MethodStyle(f"{name} {look.name}", color, look.marker)


def _spare(algorithm: str) -> MethodStyle:
    number = int.from_bytes(hashlib.sha256(algorithm.encode()).digest()[:4], "big")
    return MethodStyle(
        algorithm,
        SPARE_COLORS[number % len(SPARE_COLORS)],
        SPARE_MARKERS[number // len(SPARE_COLORS) % len(SPARE_MARKERS)],
    )


def split_method(method: str) -> tuple[str | None, str]:
    """Return the Sparse-IFT family (None without one) and the algorithm of a method's name."""
    family, algorithm, other = METHOD_NAME.fullmatch(method).groups()  # type: ignore[union-attr]
    return family, algorithm or other


def treatment_name(method: str, sparsity: float) -> str:
    """Return for example ``RigL 80%``; ``Dense`` alone at sparsity 0."""
    name = method_style(method).name
    return name if sparsity == 0 else f"{name} {100 * sparsity:g}%"


def sheet() -> AbstractContextManager[None]:
    """Return the context in which a figure is drawn."""
    return plt.style.context(SHEET)


def panels(rows: int, *, height: float = PANEL_HEIGHT, heights: Sequence[float] = ()) -> tuple:
    """Return a figure of stacked panels that stays readable on a phone, and its axes.

    Args:
        rows: Number of panels; 0 gives one, to say that it is empty.
        height: Height of each panel, in inches.
        heights: Heights of the panels one by one, in place of ``height``.
    """
    heights = list(heights) or [height] * max(1, rows)
    figure = Figure(figsize=(WIDTH, sum(heights)))
    axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    return figure, list(axes)


def say_empty(axes: Axes, sentence: str) -> None:
    """Write why a panel shows nothing; a figure of such panels alone is as tall as its text."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, sentence, ha="center", va="center", transform=axes.transAxes)
    figure = axes.get_figure()
    if not any(panel.axison for panel in figure.axes):
        figure.set_figheight(0.5 * len(figure.axes))


def label_ends(axes: Axes, labels: Sequence[tuple[float, str, str]]) -> None:
    """Name lines at their right ends, moved apart where they would overlap.

    Args:
        axes: Panel with its final y limits.
        labels: (y of the line's end, text, colour of the line) per line.
    """
    low, high = axes.get_ylim()
    if axes.get_yscale() == "log":
        raise ValueError("label_ends needs a linear y axis")
    height = axes.get_figure().get_figheight() / max(1, len(axes.get_figure().axes))
    gap = 0.17 / (0.72 * height)
    ordered = sorted(labels, key=lambda label: label[0])
    spots = spread([(y - low) / (high - low) if high > low else 0.5 for y, _, _ in ordered], gap)
    for (_, text, color), y in zip(ordered, spots, strict=True):
        axes.plot(
            [1.012, 1.035], [y, y], transform=axes.transAxes, color=color, lw=3, clip_on=False
        )
        axes.text(1.05, y, text, transform=axes.transAxes, va="center", fontsize=9)


def spread(places: Sequence[float], gap: float, *, top: float = 0.96) -> list[float]:
    """Return ascending places moved apart to at least ``gap``, none above ``top``."""
    spots: list[float] = []
    for place in places:
        spots.append(max(place, spots[-1] + gap) if spots else place)
    ceiling = top
    for index in reversed(range(len(spots))):
        spots[index] = min(spots[index], ceiling)
        ceiling = spots[index] - gap
    return spots


def count_axis(axes: Axes, name: str, values: Sequence[float] | None = None) -> None:
    """Make the x axis logarithmic, with a tick at each value, or at 1, 2 and 5 of each decade.

    Args:
        axes: Panel whose data is drawn.
        name: Label of the axis.
        values: The few places that occur; None where they are too many or too close.
    """
    axes.set_xscale("log")
    if values is None:
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0e}".replace("e+", "e"))
    else:
        ticks = sorted(set(values))
        short = EngFormatter(sep="")
        names = [short(float(f"{tick:.3g}")) if tick >= 1 else f"{tick:g}" for tick in ticks]
        axes.set_xticks(ticks, names)
    axes.minorticks_off()
    axes.set_xlabel(name)


def nested_width(index: int) -> float:
    """Return a line width that leaves earlier lines visible beneath later ones."""
    return max(1.2, 4.2 - 0.8 * index)


def seed_lines(axes: Axes, rows: pd.DataFrame, coordinate: str, color: str) -> None:
    """Draw the value of each run as a thin line; all of them are one artist, which is faster."""
    rows = rows.sort_values("run", kind="stable")
    starts = np.flatnonzero(rows["run"].to_numpy()[1:] != rows["run"].to_numpy()[:-1]) + 1
    x, y = (np.insert(rows[key].to_numpy(float), starts, np.nan) for key in (coordinate, "value"))
    axes.plot(x, y, color=color, lw=0.7, alpha=0.45)


def interval_bars(
    axes: Axes, rows: pd.DataFrame, coordinate: str, by: str, color: str, *, most: float = np.inf
) -> None:
    """Draw the 95% t interval of each group at its mean coordinate, cut at 0 and ``most``."""
    for _, own in rows.groupby(by):
        _, low, high = stats.t_interval(own["value"])
        if low == low:
            place = own[coordinate].mean()
            axes.plot([place, place], [max(low, 0.0), min(high, most)], color=color, lw=1.4)


def mean_by(rows: pd.DataFrame, coordinate: str) -> pd.DataFrame:
    """Return the mean over seeds at each step, placed at the mean of the coordinate."""
    steps, group, sizes = np.unique(rows["step"], return_inverse=True, return_counts=True)
    full = sizes == rows["run"].nunique()
    means = {
        key: (np.bincount(group, rows[key].to_numpy(float), len(steps)) / sizes)[full]
        for key in (coordinate, "value")
    }
    return pd.DataFrame(means, index=pd.Index(steps[full], name="step"))
