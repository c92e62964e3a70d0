"""Training FLOPs of one sequence by layer type, as a share of the dense model's, with sparse
decoder blocks, 2 per multiply-add. Attention's products of activations and the output head stay
dense."""

import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis import style
from experiments.specs.planned import PlannedStudy
from experiments.store import tidy

COLORS = {
    "feed-forward weights": "#0072B2",
    "attention weights": "#56B4E9",
    "attention products": "#E69F00",
    "output head": "#D55E00",
}


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """FLOPs by model, sparsity and layer type."""
    return tidy.computed(study.scale, "device", "breakdown")


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """One panel per model, one stacked bar per sparsity."""
    rows = data(records, curves, study)
    figure, axes = style.panels(rows["model"].nunique(), height=2.1)
    for panel, (model, own) in zip(axes, rows.groupby("model", sort=False), strict=True):
        shares = own.pivot(index="sparsity", columns="layer_type", values="share_of_dense")
        places, left = range(len(shares)), 0 * shares.iloc[:, 0]
        for kind, color in COLORS.items():
            panel.barh(places, shares[kind], 0.7, left, color=color, label=kind)
            left = left + shares[kind]
        for place, total in zip(places, left, strict=True):
            panel.text(total + 0.01, place, f"{1 / total:.2f}x fewer" if place else "dense",
                       va="center", fontsize=8.5)  # fmt: skip
        panel.set_yticks(places, [f"{100 * s:g}%" for s in shares.index])
        panel.set_ylabel("sparsity")
        panel.set_ylim(len(shares) - 0.5, -0.5)
        panel.set_xlim(0, 1.15)
        panel.grid(axis="y", visible=False)
        panel.set_title(f"{model}, {own['context'].iloc[0]:,} tokens")
    axes[-1].set_xlabel("share of the dense training FLOPs")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure
