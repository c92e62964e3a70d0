"""Figures, one file each; a study names the files it shows.

A figure module has a docstring (its caption), ``draw(records, curves, study)`` and
``data(records, curves, study)`` (the table that is drawn). Optional are ``caption`` (sentences
generated from the data) and ``AXES`` (further x axes that ``draw`` takes as ``x=``). Records
hold the study's headline runs only, unless the module sets ``EVERY_RECIPE = True``. Data that are
curves are saved with a column per run if it sets ``CURVES = True``.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pandas as pd

from experiments.analysis import select as selection
from experiments.analysis import svg
from experiments.errors import UserError, not_one_of
from experiments.specs.planned import PlannedStudy
from experiments.specs.schema import module_names
from experiments.store import tidy

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def names() -> list[str]:
    """Return the names of all figures."""
    return module_names(Path(__file__).parent)


def load(name: str) -> ModuleType:
    """Return the module of one figure.

    Raises:
        ValueError: If there is no such figure.
    """
    if name not in names():
        raise UserError(not_one_of("figure", name, names(), "experiments/analysis/figures"))
    return importlib.import_module(f"{__name__}.{name}")


def shown(name: str, records: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """Return the records that a figure is drawn from."""
    every = getattr(load(name), "EVERY_RECIPE", False)
    return records if every else selection.headline(records, study)


def caption(name: str, records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> str:
    """Return a figure's docstring, followed by the sentences its data generates."""
    text = " ".join((load(name).__doc__ or "").split())
    return f"{text} {findings(name, records, curves, study)}".strip()


def findings(name: str, records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> str:
    """Return the sentences that a figure's data generates, nothing where it generates none."""
    generate = getattr(load(name), "caption", None)
    return generate(shown(name, records, study), curves, study) if generate else ""


def save(
    name: str,
    figure: Figure,
    out_dir: Path,
    data: pd.DataFrame | None = None,
    *,
    like: Figure | None = None,
) -> None:
    """Write a figure as SVG, and with its data also as PNG and CSV; files are repeatable.

    Args:
        name: Name of the files without suffix.
        figure: What to draw.
        out_dir: Folder to write to.
        data: The table that was drawn; None (another axis of the same
            figure) writes the SVG only.
        like: A saved figure with the same panels, whose layout is taken over.
    """
    import matplotlib

    from experiments.analysis.style import sheet

    out_dir.mkdir(parents=True, exist_ok=True)
    figure.patch.set_gid("background")
    with sheet(), matplotlib.rc_context({"figure.constrained_layout.use": False}):
        # Solving the layout is the slow part: once is enough for all formats and axes. With an
        # engine, even an idle one, a figure is drawn twice for each file.
        if like is None:
            figure.draw_without_rendering()
        figure.set_layout_engine(None)
        if like is not None:
            for axes, solved in zip(figure.axes, like.axes, strict=True):
                axes.set_position(solved.get_position())
        matplotlib.rcParams["svg.hashsalt"] = name
        figure.savefig(out_dir / f"{name}.svg", metadata={"Date": None, "Creator": None})
        if data is not None:
            figure.savefig(out_dir / f"{name}.png", metadata={"Software": None})
    path = out_dir / f"{name}.svg"
    text = svg.compact(path.read_text(encoding="utf-8"))
    path.write_text(re.sub(r"[ \t]+\n", "\n", text), encoding="utf-8")
    if data is not None:
        data.to_csv(out_dir / f"{name}.csv", index=False)


def x_axes(name: str) -> tuple[str, ...]:
    """Return the x axes that a figure can be drawn over, its own first; most have that one only."""
    return tuple(getattr(load(name), "AXES", ()))


def write(
    name: str,
    records: pd.DataFrame,
    curves: pd.DataFrame,
    study: PlannedStudy,
    out_dir: Path,
    *,
    x: str | None = None,
) -> None:
    """Draw one figure and save it: over its own x axis with its data, over others as SVG.

    Args:
        x: One of `x_axes`; None draws the figure over each of them.
    """
    from experiments.analysis.style import sheet

    module, records = load(name), shown(name, records, study)
    own, *others = x_axes(name) or (None,)
    first = None
    with sheet():
        if x in (None, own):
            first = module.draw(records, curves, study)
            data = module.data(records, curves, study)
            is_curves = getattr(module, "CURVES", False)
            save(name, first, out_dir, tidy.by_run(data) if is_curves else data)
        for axis in others if x is None else {x} - {own}:
            figure = module.draw(records, curves, study, x=axis)
            save(f"{name}-by-{axis}", figure, out_dir, like=first)
