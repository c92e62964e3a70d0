"""Figures, one file each; a study names the files it shows.

A figure module has a docstring (its caption), ``draw(records, curves, study)`` and
``data(records, curves, study)`` (the table that is drawn). Records hold the study's headline runs
only, unless the module sets ``EVERY_RECIPE = True``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from experiments.analysis import Files
from experiments.specs.schema import PlannedStudy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FILES = Files("figures")
names, load, caption, shown = _FILES.names, _FILES.load, _FILES.caption, _FILES.shown


def draw(
    name: str,
    records: pd.DataFrame,
    curves: pd.DataFrame,
    study: PlannedStudy,
    *,
    sheet: Path | None = None,
    width: float | None = None,
) -> Figure:
    """Draw one figure.

    Args:
        sheet: A style sheet of matplotlib whose settings replace those of the house.
        width: In inches; None takes the style sheet's.
    """
    from experiments.analysis import style

    module, rows = load(name), shown(name, records, study)
    with style.sheet(sheet, width=width):
        figure = module.draw(rows, curves, study)
        if has_data(figure) and module.data(rows, curves, study).empty:
            figure, (panel,) = style.panels(1)
            style.say_empty(panel, f"Its file, {name}.py, selects no records.")
        style.settle(figure)
    return figure


def data(
    name: str, records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy
) -> pd.DataFrame:
    """The table that a figure draws."""
    return load(name).data(shown(name, records, study), curves, study)


def save(figure: Figure, path: Path, kind: str) -> None:
    """Write a drawn figure; equal figures give equal files.

    Args:
        kind: ``png`` (with a palette), ``svg`` or ``pdf``.
    """
    import matplotlib

    from experiments.analysis import style

    path.parent.mkdir(parents=True, exist_ok=True)
    with style.sheet(), matplotlib.rc_context({"svg.hashsalt": path.stem}):
        if kind == "png":
            style.save_png(figure, path)
        else:
            date = {"svg": "Date", "pdf": "CreationDate"}[kind]
            figure.savefig(path, format=kind, metadata={date: None, "Creator": None})


def write(
    name: str, records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy, folder: Path
) -> bool:
    """Draw one figure into ``<folder>/<name>.png``; return whether it has data."""
    figure = draw(name, records, curves, study)
    save(figure, folder / f"{name}.png", "png")
    return has_data(figure)


def has_data(figure: Figure) -> bool:
    """Whether a figure shows more than sentences that say why it shows nothing."""
    return any(panel.axison for panel in figure.axes)
