"""Mean magnitude of what each layer adds to the residual stream, over sparsity, at initialisation
and after one and ten optimizer steps: standard parameterization, muP and SuPar in a panel each, a
line per width. Where lines lie on each other and are level, one initial variance and one learning
rate serve all widths and sparsities; where they fall or fan out, each model needs its own."""

import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis import style
from experiments.specs.planned import PlannedStudy
from experiments.store import tidy

TITLES = {"standard": "standard", "mup": "muP (width)", "supar": "SuPar (width and density)"}
LINES = {0: ":", 1: "--", 10: "-"}
COLORS = ("#9ecae1", "#4292c6", "#08519c", "#08306b")


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """Mean over seeds by rule, width, sparsity and step."""
    rows = tidy.computed(study.scale, "coordinate_check", "activations")
    keys = ["rule", "width", "sparsity", "step"]
    return rows.groupby(keys, sort=False)["value"].mean().reset_index()


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """One panel per rule."""
    rows = data(records, curves, study)
    figure, axes = style.panels(len(TITLES), height=2.3)
    widths = sorted(rows["width"].unique())
    low, high = rows["value"].min() / 1.3, rows["value"].max() * 1.3
    for panel, (rule, title) in zip(axes, TITLES.items(), strict=True):
        for color, width in zip(COLORS, widths, strict=False):
            for step, line in LINES.items():
                own = rows[(rows["rule"] == rule) & (rows["width"] == width)]
                own = own[own["step"] == step].sort_values("sparsity")
                label = f"width {width}" if step == 10 else None
                dense = 1 / (1 - own["sparsity"])
                panel.plot(dense, own["value"], line, color=color, marker=".", label=label)
        panel.set_yscale("log")
        panel.set_ylim(low, high)
        values = sorted(rows["sparsity"].unique())
        panel.set_xscale("log", base=2)
        panel.set_xticks([1 / (1 - s) for s in values], [f"{100 * s:.3g}%" for s in values])
        panel.minorticks_off()
        panel.set_title(title)
        panel.set_ylabel("mean magnitude")
    axes[-1].set_xlabel("sparsity (dotted: before training, dashed: after 1 step, line: after 10)")
    axes[0].legend(fontsize=8, ncols=len(widths))
    return figure


def spreads(rows: pd.DataFrame) -> pd.DataFrame:
    """Largest over smallest magnitude over all widths and sparsities, by rule and step."""
    groups = rows.groupby(["rule", "step"])["value"]
    return (groups.max() / groups.min()).rename("spread").reset_index()


def caption(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> str:
    """Say by how much magnitudes differ under each rule."""
    found = spreads(data(records, curves, study)).set_index(["rule", "step"])["spread"]
    parts = [
        f"{', '.join(f'{found[rule, step]:.3g}' for step in LINES)} under {title}"
        for rule, title in TITLES.items()
    ]
    return (
        "Largest over smallest magnitude over all widths and sparsities after "
        f"{', '.join(map(str, LINES))} steps: {'; '.join(parts)}."
    )
