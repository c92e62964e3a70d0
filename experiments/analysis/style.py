"""Shared parts of figures: panels, axes, lines of methods, and labels at their ends."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import matplotlib
import matplotlib.style
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from experiments.analysis.methods import Method
from experiments.errors import UserError, reason
from experiments.specs.schema import PlannedStudy
from experiments.store.tidy import Workload

#: Colours of a PNG.
NUM_COLORS = 256
PANEL_HEIGHT = 2.5
SHEET = Path(__file__).with_name("style.mplstyle")
#: What a larger font of a sheet makes larger.
SIZES = ("axes.titlesize", "axes.labelsize", "xtick.labelsize", "ytick.labelsize")


def progress(rows: pd.DataFrame) -> tuple[str, str]:
    """The column of tokens, or of images where there are none, and its name."""
    if rows["tokens"].isna().all() and rows["images"].notna().any():
        return "images", "training images"
    return "tokens", "training tokens"


def tokens(rows: pd.DataFrame, study: PlannedStudy) -> list[float]:
    """Lengths of the trainings of some rows, in millions of tokens, ascending."""
    lengths = {run.id: getattr(run.spec.recipe, "tokens", 0) / 1e6 for run in study.runs}
    return sorted({lengths[run] for run in rows["run"]})


def title(workload: Workload, lengths: Sequence[float]) -> str:
    """A workload with its lengths of training, see `tokens`."""
    return f"{workload}, {' or '.join(f'{length:.3g}' for length in lengths)}M tokens"


def loss_unit(rows: pd.DataFrame) -> str:
    """The unit of the losses of runs."""
    return f"nats per {progress(rows)[0].removesuffix('s')}"


def progress_axis(axes: Axes, name: str) -> None:
    """Name the x axis of a curve, and write its large numbers short."""
    axes.set_xlabel(name)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


@contextmanager
def sheet(own: Path | None = None, *, width: float | None = None) -> Iterator[None]:
    """Draw by the house's style sheet.

    Args:
        own: A style sheet whose settings go before the house's. Its ``font.size`` scales the
            sizes of titles, labels and ticks that it does not set.
        width: Of the figure, in inches; None takes the sheets' ``figure.figsize``.

    Raises:
        UserError: If a sheet cannot be read, or has a wrong key or value; it names the file.
    """
    mine = _settings(own) if own else {}
    with matplotlib.style.context([SHEET, mine]):
        house = matplotlib.rc_params_from_file(SHEET, use_default_template=False)
        factor = mine.get("font.size", house["font.size"]) / house["font.size"]
        for size in {*SIZES} - {*mine}:
            matplotlib.rcParams[size] = house[size] * factor  # type: ignore[index]
        if width is not None:
            height = matplotlib.rcParams["figure.figsize"][1]
            matplotlib.rcParams["figure.figsize"] = (width, height)
        yield


def _settings(path: Path) -> dict[str, Any]:
    """Settings of a style sheet; raises for a wrong key or value, of which matplotlib warns."""

    def refuse(record: logging.LogRecord) -> bool:
        raise ValueError(record.getMessage())

    log = logging.getLogger("matplotlib")
    log.addFilter(refuse)
    try:
        return dict(matplotlib.rc_params_from_file(str(path), use_default_template=False).items())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be a style sheet: {reason(error)}") from None
    finally:
        log.removeFilter(refuse)


def settle(figure: Figure) -> None:
    """Wrap titles and solve a figure's layout, which is slow: once is enough for all formats."""
    for panel in figure.axes:
        if title := panel.get_title(loc="left"):
            panel.set_title(title, loc="left", wrap=True)
    if (layout := figure.get_layout_engine()) is not None:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "constrained_layout not applied")
            try:
                layout.execute(figure)
            except UserWarning:
                width = f"{figure.get_figwidth():g}"
                raise UserError(f"the figure does not fit in a width of {width} inches") from None
        figure.set_layout_engine("none")


def save_png(figure: Figure, path: Path) -> None:
    """Write a settled figure as PNG with a palette, a quarter of the full size."""
    from PIL import Image

    usual, figure.dpi = figure.dpi, matplotlib.rcParams["savefig.dpi"]
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    figure.dpi = usual
    palette = image.quantize(NUM_COLORS, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    palette.save(path)


def panels(
    rows: int, *, height: float = PANEL_HEIGHT, heights: Sequence[float] = ()
) -> tuple[Figure, list[Axes]]:
    """A figure of stacked panels that stays readable on a phone, and its axes.

    Args:
        rows: Number of panels; 0 gives one, to say that it is empty.
        heights: Heights of the panels one by one, in place of ``height``.
    """
    heights = list(heights) or [height] * max(1, rows)
    figure = Figure(figsize=(matplotlib.rcParams["figure.figsize"][0], sum(heights)))
    axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    return figure, list(axes)


def say_empty(axes: Axes, sentence: str) -> None:
    """Write why a panel shows nothing; a figure of such panels alone is as tall as its text."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, sentence, ha="center", va="center", transform=axes.transAxes)
    figure = cast(Figure, axes.figure)
    if not any(panel.axison for panel in figure.axes):
        figure.set_figheight(0.5 * len(figure.axes))


def label_ends(axes: Axes, labels: Sequence[tuple[float, str, Method]]) -> None:
    """Name lines at their right ends, moved apart where they would overlap.

    A figure whose panels are too low for that many names becomes higher.

    Args:
        axes: Panel with its final y limits.
        labels: (y of the line's end, text, its look) per line.
    """
    low, high = axes.yaxis.get_transform().transform(np.array(axes.get_ylim(), float))
    figure = cast(Figure, axes.figure)
    height = figure.get_figheight() / max(1, len(figure.axes))
    needed = 0.17 * (len(labels) + 1) / 0.72
    if height < needed:
        figure.set_figheight(figure.get_figheight() * needed / height)
        height = needed
    gap = 0.17 / (0.72 * height)
    ordered = sorted(labels, key=lambda label: label[0])
    places = axes.yaxis.get_transform().transform(np.array([y for y, _, _ in ordered], float))
    spots = spread([(y - low) / (high - low) if high > low else 0.5 for y in places], gap)
    for (_, text, look), y in zip(ordered, spots, strict=True):
        axes.plot([1.01, 1.025, 1.04], [y] * 3, transform=axes.transAxes, color=look.color,
                  marker=look.marker, markevery=[1], clip_on=False)  # fmt: skip
        axes.text(1.05, y, text, transform=axes.transAxes, va="center",
                  fontsize=matplotlib.rcParams["xtick.labelsize"])  # fmt: skip


def spread(places: Sequence[float], gap: float) -> list[float]:
    """Ascending places, moved apart to at least ``gap``, none above 0.96."""
    spots: list[float] = []
    for place in places:
        spots.append(max(place, spots[-1] + gap) if spots else place)
    ceiling = 0.96
    for index in reversed(range(len(spots))):
        spots[index] = min(spots[index], ceiling)
        ceiling = spots[index] - gap
    return spots


def shade(color: str, place: int, count: int) -> str:
    """One of ``count`` shades of a colour, light ones first; the colour itself of one."""
    if count == 1:
        return color
    at = 2 * place / (count - 1) - 1  # -1 is the lightest, 0 the colour itself, 1 the darkest
    end = 0.0 if at > 0 else 1.0
    red, green, blue = (part + 0.5 * abs(at) * (end - part) for part in to_rgb(color))
    return to_hex((red, green, blue))


def seed_lines(axes: Axes, rows: pd.DataFrame, coordinate: str, color: str) -> None:
    """Draw the value of each run as a thin line; all of them are one artist, which is faster."""
    rows = rows.sort_values("run", kind="stable")
    starts = np.flatnonzero(rows["run"].to_numpy()[1:] != rows["run"].to_numpy()[:-1]) + 1
    x, y = (np.insert(rows[key].to_numpy(float), starts, np.nan) for key in (coordinate, "value"))
    axes.plot(x, y, color=color, lw=0.7, alpha=0.45)


def method_line(
    axes: Axes, x: Sequence[float], y: Sequence[float], look: Method, *, marks: int = 8, **how: Any
) -> None:
    """Draw the line of a method with about ``marks`` of its markers on it."""
    every = max(1, round(len(x) / marks))
    axes.plot(x, y, color=look.color, marker=look.marker, markevery=every, **how)


def mean_by(rows: pd.DataFrame, coordinate: str) -> pd.DataFrame:
    """The mean over seeds at each step, placed at the mean of the coordinate."""
    steps, group, sizes = np.unique(rows["step"], return_inverse=True, return_counts=True)
    full = sizes == rows["run"].nunique()
    means = {
        key: (np.bincount(group, rows[key].to_numpy(float), len(steps)) / sizes)[full]
        for key in (coordinate, "value")
    }
    return pd.DataFrame(means, index=pd.Index(steps[full], name="step"))
