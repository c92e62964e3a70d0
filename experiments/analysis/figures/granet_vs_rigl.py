"""Training loss of GraNet, which ramps its sparsity up, against RigL: thin lines are seeds,
thick lines their mean. Below: GraNet minus RigL at equal steps; negative favours GraNet. Figure
8 of the source has no numbers."""

import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis import style
from experiments.analysis.figures import loss_curves
from experiments.analysis.methods import INK, Methods
from experiments.specs.schema import PlannedStudy
from experiments.store import tidy

EVERY_RECIPE = True


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """Training loss of the two methods in the longest trainings that have both."""
    rows = tidy.label_curves(curves, records, ["loss"])
    rows = rows[(rows["kind"] == "train") & rows["algorithm"].isin(["rigl", "granet"])]
    groups = [own for _, own in rows.groupby(["model", "dataset", "sparsity", "recipe"])]
    both = [own for own in groups if own["algorithm"].nunique() == 2]
    return max(both, key=lambda own: own["tokens"].max(), default=rows.iloc[:0])


def difference(rows: pd.DataFrame) -> pd.DataFrame:
    """GraNet minus RigL for each seed and step that both have."""
    keys = ["seed", "step"]
    columns = [*keys, "tokens", "images", "flops_executed", "value"]
    rigl = rows[rows["algorithm"] == "rigl"][columns]
    granet = rows[rows["algorithm"] == "granet"][[*keys, "value"]]
    both = rigl.merge(granet, on=keys, suffixes=("_rigl", "_granet"))
    return both.assign(difference=both["value_granet"] - both["value_rigl"])


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """Losses above, their difference below."""
    rows, looks = data(records, curves, study), Methods(study)
    coordinate, name = style.progress(rows)
    figure, (upper, lower) = style.panels(2)
    if rows.empty:
        style.say_empty(upper, "No model has finished runs of both RigL and GraNet.")
        style.say_empty(lower, "")
        return figure
    loss_curves.draw_panel(upper, rows, looks)
    upper.set_title("Training loss")
    paired = difference(rows)
    look = looks[rows[rows["algorithm"] == "granet"]["method"].iloc[0]]
    for _, group in paired.groupby("seed"):
        lower.plot(group[coordinate], group["difference"], color=look.color, lw=0.7, alpha=0.45)
    mean = paired.groupby("step")[[coordinate, "difference"]].mean()
    style.method_line(lower, mean[coordinate], mean["difference"], look)
    lower.axhline(0, color=INK, lw=0.8)
    late = paired[paired["step"] > 0.15 * paired["step"].max()]["difference"]
    if len(late):
        bound = 1.1 * late.abs().max() or 1.0
        lower.set_ylim(-bound, bound)
    lower.set_title("GraNet minus RigL: seeds and their mean")
    for panel in (upper, lower):
        style.progress_axis(panel, name)
        panel.set_ylabel(style.loss_unit(rows))
    return figure
