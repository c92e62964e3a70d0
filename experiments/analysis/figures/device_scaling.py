"""Simulated training throughput by number of systems, at 1.6 million tokens per batch and peak
rates, dense (solid) and with 75% of block weights masked (dashed). Hollow: activations are
computed again. Devices that cannot hold the model are left out."""

import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis import style
from experiments.specs.planned import PlannedStudy
from experiments.store import tidy


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """Simulated steps by model, device, sparsity and number of systems."""
    return tidy.computed(study.scale, "device", "steps")


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """One panel per model."""
    rows = data(records, curves, study)
    figure, axes = style.panels(rows["model"].nunique(), height=2.6)
    for panel, (model, own) in zip(axes, rows.groupby("model", sort=False), strict=True):
        own = own[own["fits"]]
        dense = own[own["sparsity"] == 0].groupby(["device", "num_systems"])["tokens_per_s"].max()
        for (device, sparsity), line in own.groupby(["device", "sparsity"], sort=False):
            label, color = line[["device_label", "device_color"]].iloc[0]
            gains = line.set_index("num_systems")["tokens_per_s"] / dense[device]
            if sparsity and not (gains > 1).any():
                continue  # the device gains nothing from masks
            name = f"{label}, {f'{100 * sparsity:g}%' if sparsity else 'dense'}"
            dashes = "--" if sparsity else "-"
            panel.plot(line["num_systems"], line["tokens_per_s"], dashes, color=color, label=name)
            for row in line.itertuples():
                face = {"mfc": "white"} if row.recompute else {}
                panel.plot(row.num_systems, row.tokens_per_s, "o", color=color, ms=4, **face)
        panel.set_xscale("log")
        panel.set_yscale("log")
        ticks = sorted(own["num_systems"].unique())
        panel.set_xticks(ticks, [str(tick) for tick in ticks])
        panel.minorticks_off()
        panel.set_title(f"Simulated · {model}")
        panel.set_ylabel("tokens per second")
    axes[-1].set_xlabel("systems")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure
