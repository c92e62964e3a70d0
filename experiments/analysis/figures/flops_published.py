"""Our FLOP counts against published ones. Rings: our conventions. Filled: ours or the source's own,
whichever is nearer; in the first row, result 9, both are ours. The band is 1%. What lies beyond the
axis is at its edge."""

import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis import style
from experiments.analysis.methods import ALGORITHMS
from experiments.findings.claim import nine
from experiments.specs.schema import PlannedStudy
from experiments.store import tidy

LIMIT = 6.0
LABELS = ("by our conventions", "by ours or the source's, the nearer")
OURS = ALGORITHMS["rigl"][1]
NAMES = {
    "result 9": "SPDF's table\n(result 9)",
    "SPDF_UAI23": "SPDF, others",
    "SPARSE_IFT_ICML24": "Sparse-IFT",
    "CB_IFT_BLOG": "Sparse-IFT blog",
}


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """Differences in percent, one row per published number."""
    rows = tidy.computed(study.scale, "flops", "published")
    rows = rows[rows["published"] != 1]  # dense over dense
    (check,) = (claim.check for claim in nine() if claim.check)
    shown = rows.query(check.rows).index
    own, as_published = rows["difference"], rows["remaining difference"]
    nearer = as_published.where(as_published.abs() < own.abs(), own)
    return pd.DataFrame(
        {
            "source": rows["source"].mask(rows.index.isin(shown), "result 9"),
            "quantity": rows["quantity"],
            "method": rows["method"],
            "sparsity": rows["sparsity"],
            "difference %": 100 * rows["difference"],
            "remaining difference %": 100 * nearer,
            "met": rows["met"],
        }
    )


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """One row per source, numbers spread over the row in their order."""
    rows = data(records, curves, study)
    sources = [source for source in NAMES if source in set(rows["source"])]
    figure, (axes,) = style.panels(1, height=0.8 + 0.75 * len(sources))
    axes.axvspan(-1, 1, color="#999999", alpha=0.18, lw=0)
    for place, source in enumerate(sources):
        own = rows[rows["source"] == source]
        spread = [place - 0.33 + 0.66 * (i + 0.5) / len(own) for i in range(len(own))]
        axes.plot(own["difference %"].clip(-LIMIT, LIMIT), spread, "o", mfc="none", mec="#888888",
                  ms=4, zorder=2, label=None if place else LABELS[0])  # fmt: skip
        axes.plot(own["remaining difference %"].clip(-LIMIT, LIMIT), spread, "o",
                  color=OURS, ms=4, zorder=3, label=None if place else LABELS[1])  # fmt: skip
        for y, value in zip(spread, own["remaining difference %"], strict=True):
            if abs(value) > LIMIT:
                axes.annotate(f"{value:+.0f}%", (min(max(value, -LIMIT), LIMIT), y), (-6, 0),
                              textcoords="offset points", ha="right", va="center",
                              fontsize=8)  # fmt: skip
    axes.set_yticks(range(len(sources)), [NAMES[source] for source in sources])
    axes.set_ylim(len(sources) - 0.5, -0.5)
    axes.set_xlim(-LIMIT - 0.4, LIMIT + 0.4)
    axes.set_xlabel("ours over published, difference in percent")
    axes.grid(axis="y", visible=False)
    if sources:
        axes.legend(loc="lower left", fontsize=8)
    return figure
