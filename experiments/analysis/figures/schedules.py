"""Sparsity, learning rate and drop fraction by step, one seed per method, at the lowest sparsity
of the study's main workload. Where lines coincide, the thicker one lies beneath.
Compare Figure 7 of the source."""

import math
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis import select as selection
from experiments.analysis import style
from experiments.analysis.methods import Methods
from experiments.specs.planned import PlannedStudy
from experiments.store import tidy

CURVES = True
TITLES = {
    "sparsity": "Sparsity of the masked weights",
    "drop_fraction": "Drop fraction",
    "learning_rate": "Learning rate",
}


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """Schedules of the first seed of each method at the lowest sparsity."""
    rows = tidy.label_curves(curves[curves["metric"].isin(list(TITLES))], records)
    rows = rows[rows["kind"] == "train"]
    if rows.empty:
        return rows
    _, rows = selection.by_level(selection.main(rows, study))[0]
    rows = _with_drop_fractions(rows, study)
    return rows[rows["seed"] == rows.groupby("method")["seed"].transform("min")]


def _with_drop_fractions(rows: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """Add the configured drop fraction where a run has not logged it."""
    specs = {run.id: run.spec for run in study.runs}
    logged = set(rows[rows["metric"] == "drop_fraction"]["run"])
    added = []
    for run, group in rows[rows["metric"] == "sparsity"].groupby("run", sort=False):
        setting = specs[run].mask_setting("drop_fraction") if run in specs else None
        if run in logged or setting is None:
            continue
        stop = specs[run].mask_setting("update", "stop")
        known = group if stop is None else group[group["step"] <= stop]
        values = [drop_fraction(setting, step) for step in known["step"]]
        added.append(known.assign(metric="drop_fraction", value=values).dropna(subset=["value"]))
    return pd.concat([rows, *added], ignore_index=True)


def drop_fraction(setting: Any, step: int) -> float:
    """Return a configured drop fraction at a step: a number or a cosine; NaN for other schedules.

    A cosine falls from ``init`` to ``minimum`` in ``half_period`` steps and stays there.
    """
    if isinstance(setting, int | float):
        return float(setting)
    if not isinstance(setting, dict) or setting.get("type") != "cosine" or "compat" in setting:
        return math.nan
    least = setting.get("minimum", 0.0)
    wave = (1 + math.cos(math.pi * min(1.0, step / setting["half_period"]))) / 2
    return least + (setting["init"] - least) * wave


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """One panel per schedule."""
    rows, looks = data(records, curves, study), Methods(study)
    coordinate, name = style.progress(rows)
    figure, axes = style.panels(len(TITLES), height=2.2)
    for panel, (metric, title) in zip(axes, TITLES.items(), strict=True):
        labels = []
        chosen = rows[rows["metric"] == metric]
        for (method, sparsity), group in chosen.groupby(["method", "sparsity"], sort=False):
            look, width = looks[method], style.nested_width(len(labels))
            style.method_line(panel, group[coordinate], group["value"], look, lw=width)
            text = looks.treatment(method, sparsity)
            labels.append((group["value"].iloc[-1], text, look.color))
        if not labels:
            style.say_empty(panel, f"No run has logged its {title.lower()}.")
            continue
        panel.set_ylim(bottom=0)
        style.label_ends(panel, labels)
        panel.set_title(title)
        style.progress_axis(panel, name)
    return figure
