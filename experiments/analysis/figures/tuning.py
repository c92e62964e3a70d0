"""Validation perplexity of the trials (of images, loss) by learning rate; each point is one run,
lines join means. Large markers: settings that a study trains with. Lower is better."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.analysis import style
from experiments.analysis.methods import Methods
from experiments.specs.run import RunSpec
from experiments.specs.schema import PlannedStudy
from experiments.specs.trials import taken_by
from experiments.store import tidy

EVERY_RECIPE = True
#: Columns within which settings are compared.
KEYS = ["model", "dataset", "algorithm", "sparsity", "steps"]
UNITS = {"perplexity": "validation perplexity per token", "loss": "validation loss, nats per image"}


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """Outcome and settings of every trial."""
    rows = tidy.validation_perplexity(records)
    if rows.empty:
        rows = tidy.select(records, "loss", split="validation")
    specs = {run.id: run.spec for run in study.runs}
    settings = [_settings(specs[run]) for run in rows["run"]]
    columns = ["run", "model", "dataset", "method", "sparsity", "seed", "metric", "value"]
    rows = tidy.by_masks(rows, curves)[columns].reset_index(drop=True)
    names = ["learning rate", "drop fraction", "update interval", "steps", "precision"]
    rows = rows.join(pd.DataFrame(settings, columns=names))
    looks = Methods(study)
    rows["algorithm"] = [looks.settings_of(method) for method in rows["method"]]
    return rows.assign(**{"taken by": rows["run"].map(taken_by(study)).astype("string")})


def _title(looks: Methods, method: str, trial: pd.Series, own: pd.DataFrame) -> str:
    """A method's name, with its sparsity where several have that name."""
    same = own[[_name(looks, other) == _name(looks, method) for other in own["method"]]]
    shown = trial["sparsity"] if same["sparsity"].nunique() > 1 else 0.0
    return looks.treatment(method, shown)


def _settings(spec: RunSpec) -> tuple[Any, ...]:
    drop = spec.mask_setting("drop_fraction")
    drop = drop["init"] if isinstance(drop, dict) else drop
    interval = spec.mask_setting("update", "freq")
    recipe = spec.recipe
    return recipe.learning_rate, drop, interval, recipe.steps, recipe.precision


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """One panel per model, dataset and length that tried several rates."""
    tried, looks = data(records, curves, study), Methods(study)
    panels = [
        (f"{workload}, {steps:,} steps", own)
        for workload in tidy.workloads(tried)
        for steps, own in tidy.in_workload(tried, workload).groupby("steps")
        if own["learning rate"].nunique() > 1
    ]
    figure, axes = style.panels(len(panels))
    if not panels:
        style.say_empty(axes[0], "No second rate was tried.")
    for panel, (title, own) in zip(axes, panels, strict=False):
        _draw_panel(panel, own, looks)
        panel.set_title(title)
    return figure


def _draw_panel(panel: Axes, own: pd.DataFrame, looks: Methods) -> None:
    colors, labels = _colors(own, looks), []
    for (method, sparsity), group in own.groupby(["method", "sparsity"], sort=False):
        look = replace(looks[method], color=colors[method, sparsity])
        line = group.sort_values("learning rate")
        means = line.groupby("learning rate")["value"].mean()
        first = looks.settings_of(method)
        # Of the same sparsity as the first, it has other mask settings.
        other = method != first and look.sparsity == looks[first].sparsity
        panel.plot(means.index, means, "--" if other else "-", color=look.color, lw=1.3)
        panel.plot(line["learning rate"], line["value"], look.marker, color=look.color, ms=4)
        taken = line[line["taken by"] != ""]
        panel.plot(taken["learning rate"], taken["value"], look.marker, color=look.color, ms=9)
        labels.append((means.iloc[-1], _title(looks, method, line.iloc[0], own), look))
    panel.set_xscale("log")
    rates = _apart(own["learning rate"].unique())
    panel.set_xticks(rates, [f"{rate:g}" for rate in rates])
    panel.minorticks_off()
    panel.set_xlabel("peak learning rate")
    panel.set_ylabel(UNITS[own["metric"].iloc[0]])
    style.label_ends(panel, labels)


def _colors(own: pd.DataFrame, looks: Methods) -> dict[tuple[str, float], str]:
    """Colour of each method and sparsity: of methods of one name the sparser is the darker."""
    levels: dict[str, set[float]] = {}
    for method, sparsity in tidy.treatments(own):
        levels.setdefault(_name(looks, method), set()).add(sparsity)
    return {
        (method, sparsity): style.shade(
            looks[looks.settings_of(method)].color,
            sorted(levels[_name(looks, method)]).index(sparsity),
            len(levels[_name(looks, method)]),
        )
        for method, sparsity in tidy.treatments(own)
    }


def _name(looks: Methods, method: str) -> str:
    """Common name of methods that differ in sparsity or in mask settings."""
    return looks[looks.settings_of(method)].name


def _apart(rates: Iterable[float]) -> list[float]:
    """The rates whose tick labels have room: each at least 1.6 times the one before."""
    kept: list[float] = []
    for rate in sorted(rates):
        if not kept or rate >= 1.6 * kept[-1]:
            kept.append(rate)
    return kept
