"""Measured on one CPU, one thread: the training step of a small GPT and of the model that most runs
train, AdamW and mask upkeep included. Marks: Amdahl's estimate: the blocks' linear layers at the
speed of a single layer."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.analysis import style
from experiments.specs.schema import PlannedStudy
from experiments.store import tidy


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """Measured and estimated seconds per model and sparsity."""
    gpt, run = (tidy.computed(study.scale, "device", name) for name in ("amdahl", "run_step"))
    names = [f"GPT of {row.num_layers} layers, width {row.width}" for row in gpt.itertuples()]
    return pd.concat([gpt.assign(model=names), run], ignore_index=True)


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """A panel per model with a bar per sparsity, split in what is outside the sparse layers and
    what is not."""
    parts = [own for _, own in data(records, curves, study).groupby("model", sort=False)]
    figure, panels = style.panels(len(parts), heights=[0.9 + 0.5 * len(own) for own in parts])
    for panel, own in zip(panels, parts, strict=True):
        _draw_panel(panel, own)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, markerscale=0.6)
    return figure


def _draw_panel(panel: Axes, rows: pd.DataFrame) -> None:
    places = range(len(rows))
    milliseconds = 1e3 * rows[["step_s", "bound_s", "outside_s"]]
    panel.barh(places, milliseconds["step_s"], 0.6, color="#0072B2", label="measured step")
    panel.barh(places, milliseconds["outside_s"], 0.6, color="#7F7F7F",
               label="outside the blocks' linear layers")  # fmt: skip
    panel.plot(milliseconds["bound_s"][1:], list(places)[1:], "|", color="#D55E00", ms=22, mew=2.5,
               label="Amdahl's estimate")  # fmt: skip
    for place, row in zip(places, rows.itertuples(), strict=True):
        words = f"{row.speedup:.2f}x, {row.over_bound:.2f} of the estimate's time"
        panel.text(1e3 * max(row.step_s, row.bound_s), place, f"  {words if place else 'dense'}",
                   va="center", fontsize=8.5)  # fmt: skip
    panel.set_yticks(places, [f"{100 * s:g}%" for s in rows["sparsity"]])
    panel.set_ylim(len(rows) - 0.5, -0.5)
    panel.set_xlim(0, 1.6 * milliseconds.max().max())
    panel.grid(axis="y", visible=False)
    panel.set_ylabel("sparsity")
    panel.set_xlabel("milliseconds of CPU time per step")
    first = rows.iloc[0]
    panel.set_title(f"{first['model']}, {first['batch_size']:.0f} x {first['context']:.0f} tokens")
