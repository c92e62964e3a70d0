"""Which pixels the first layer still reads: the share of seeds in which a pixel has a weight on a
way to the output, dark where all seeds keep it, white where none does. One panel per method with
masks; the frame is the box of 20 x 20 pixels in which MNIST centres digits. Compare Figure 7 of
Evci et al. 2020 (appendix B), the first and the last mask of a RigL run; a static mask is like a
first one."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from experiments.analysis import style
from experiments.analysis.methods import Methods
from experiments.specs.planned import PlannedStudy
from experiments.store import tidy

BORDER = 4
ROW = r"kept_row_\d+"


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per method, image row and column: the share of seeds that keep the pixel."""
    rows = records[records["metric"].str.fullmatch(ROW)]
    if rows.empty:
        return pd.DataFrame(columns=["method", "row", "column", "share", "seeds"])
    rows = tidy.in_workload(rows, tidy.workloads(rows)[0])
    size = rows["metric"].nunique()
    found = []
    for (method, metric), group in rows.groupby(["method", "metric"], sort=False):
        bits = group["value"].astype("int64").to_numpy()
        shares = ((bits[:, None] >> np.arange(size)) & 1).mean(0)
        row = int(metric.rsplit("_", 1)[1])
        found += [
            {"method": method, "row": row, "column": column, "share": share, "seeds": len(bits)}
            for column, share in enumerate(shares)
        ]
    return pd.DataFrame(found)


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """One picture per method."""
    shares, looks = data(records, curves, study), Methods(study)
    methods = list(dict.fromkeys(shares["method"]))
    figure, axes = style.panels(len(methods), height=3.2)
    if not methods:
        style.say_empty(axes[0], "No run has recorded which pixels it keeps.")
    for panel, method in zip(axes, methods, strict=False):
        rows = shares[shares["method"] == method]
        picture = rows.pivot(index="row", columns="column", values="share").to_numpy()
        panel.imshow(picture, cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
        side = picture.shape[0] - 2 * BORDER
        corner = (BORDER - 0.5, BORDER - 0.5)
        panel.add_patch(Rectangle(corner, side, side, fill=False, lw=1, edgecolor="#B5432A"))
        seeds = int(rows["seeds"].iloc[0])
        panel.set_title(f"{looks[method].name} · {seeds} {'seed' if seeds == 1 else 'seeds'}")
        panel.set_axis_off()
    return figure


def caption(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> str:
    """State the share of border pixels that each method dropped."""
    rows = tidy.select(records, "border_dropped")
    means = rows.groupby("method", sort=False)["value"].mean()
    looks = Methods(study)
    parts = [f"{looks[name].name} {100 * value:.0f}%" for name, value in means.items()]
    return f"Border pixels dropped, mean over seeds: {', '.join(parts)}." if parts else ""
