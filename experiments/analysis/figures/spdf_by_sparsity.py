"""BLEU minus dense by the sparsity of pre-training: up is better. Orange is published with
deviations, blue ours with 95% intervals. Numbers below: FLOPs of both
phases as a share of dense."""

import math
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from experiments import published
from experiments.analysis import style
from experiments.analysis.methods import INK
from experiments.findings.claim import Outcome
from experiments.findings.estimate import Arm, estimate
from experiments.findings.evidence import gather
from experiments.specs.planned import PlannedStudy
from experiments.store import tidy

BLEU = Outcome(metric="bleu", split="test", unit="BLEU", better="higher", noun="BLEU")
COLUMNS = ["whose", "model", "data", "sparsity", "gain", "low", "high", "flops"]
METHODS = {"spdf-50": 0.5, "spdf-75": 0.75}
#: Of both phases, as a share of dense, by sparsity.
PUBLISHED_FLOPS = {0.5: 0.601, 0.75: 0.401}
DENSE = "dense-dense"


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """Published rows of GPT-3 XL and ours, each minus dense."""
    return pd.DataFrame([*_published(), *_ours(records, study)], columns=COLUMNS)


def _published() -> list[dict[str, Any]]:
    rows = published.results()
    rows = rows[(rows["source_id"] == "SPDF_UAI23") & (rows["table_or_figure"] == "Table 1")]
    rows = rows[rows["model"].str.startswith("GPT-3 XL") & (rows["metric"] == "BLEU")]
    rows = rows.assign(
        s=pd.to_numeric(rows["sparsity"]),
        bleu=rows["value"].astype(float),
        sd=rows["seeds_or_std"].str.extract(r"([\d.]+)")[0].astype(float),
    )
    found = []
    for task, own in rows.groupby("dataset", sort=False):
        dense = own[own["s"] == 0].iloc[0]
        for row in own[own["s"] > 0].itertuples():
            gain, half = row.bleu - dense["bleu"], math.hypot(row.sd, dense["sd"])
            ends = (gain, gain - half, gain + half)
            values = ("published", "GPT-3 XL", task, row.s, *ends, PUBLISHED_FLOPS[row.s])
            found.append(dict(zip(COLUMNS, values, strict=True)))
    return found


def _ours(records: pd.DataFrame, study: PlannedStudy) -> list[dict[str, Any]]:
    evidence = gather([study], [records])
    values, found = evidence.values(BLEU), []
    flops = tidy.select(records, "flops_executed").set_index("run")["value"]
    runs = evidence.runs[evidence.runs["run"].isin(values.index)]
    both = (runs[phase].map(flops).astype(float) for phase in ("run", "first"))
    runs = runs.assign(total=sum(both))
    for (model, task, _), own in runs.groupby(["model", "dataset", "budget"], sort=False):
        cells, totals = evidence.cells(own, values), own.groupby("method")["total"].mean()
        arms: dict[str, Arm] = {arm.method: arm for arm in cells}
        for method, sparsity in METHODS.items():
            if method in arms and DENSE in arms:
                e = estimate(cells, [(arms[method], arms[DENSE])])
                row = ("here", model, task, sparsity, e.effect, e.low, e.high)
                share = totals[method] / totals[DENSE]
                found.append(dict(zip(COLUMNS, (*row, share), strict=True)))
    return found


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """One panel; published bands and our intervals side by side."""
    table = data(records, curves, study)
    figure, (axes,) = style.panels(1, height=3.8)
    colors = {"published": "#D55E00", "here": "#0072B2"}
    groups = list(table.groupby(["whose", "model", "data"], sort=False))
    for place, ((whose, model, task), own) in enumerate(groups):
        axes.errorbar(
            100 * own["sparsity"] + 1.6 * (place - len(groups) / 2),
            own["gain"],
            yerr=[own["gain"] - own["low"], own["high"] - own["gain"]],
            ls="",
            marker="sD^ovP*X"[place],
            color=colors[whose],
            capsize=2,
            label=f"{whose}: {model}, {task}",
        )

    axes.axhline(0, color=INK, lw=0.8)
    ticks = []
    for level in sorted(METHODS.values()):
        own = table[table["sparsity"] == level]
        shares = {whose: own.loc[own["whose"] == whose, "flops"] for whose in colors}
        ends = [f"{share:.2f}" for share in shares["here"].agg(["min", "max"]).dropna()]
        ours = f"\nhere {' to '.join(dict.fromkeys(ends))}" if ends else ""
        ticks.append(f"{100 * level:g}%\nFLOPs {shares['published'].mean():.2f}{ours}")
    axes.set_xticks([100 * level for level in METHODS.values()], ticks)
    axes.set_xlim(35, 90)
    axes.set_xlabel("sparsity of pre-training")
    axes.set_ylabel("BLEU minus dense (up is better)")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=7, handlelength=1.2)
    return figure
