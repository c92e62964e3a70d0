"""Sparse minus dense pre-training, by sparsity: up is better. Above: published BLEU, with
deviations over seeds. Below: our test loss, with 95% intervals. FLOPs are of both phases,
as a share of dense."""

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
from experiments.specs.schema import PlannedStudy
from experiments.store import tidy

LOSS = Outcome(metric="loss", split="test", unit="nats", better="lower", noun="test loss")
COLUMNS = ["whose", "model", "data", "sparsity", "gain", "low", "high", "flops"]
METHODS = {"spdf-50": 0.5, "spdf-75": 0.75, "scratch": 1.0}
#: Of both phases, as a share of dense, by sparsity.
PUBLISHED_FLOPS = {0.5: 0.601, 0.75: 0.401}
DENSE = "dense-dense"


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """Published BLEU of GPT-3 XL and our test loss, each minus dense; sparsity 1: from scratch."""
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
    values, found = evidence.values(LOSS), []
    runs = evidence.runs[evidence.runs["run"].isin(values.index)]
    runs = runs.assign(total=runs["run"].map(tidy.executed_flops(records, study)))
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
    """Published BLEU beside our loss."""
    table = data(records, curves, study)
    figure, panels = style.panels(2, height=2.6)
    shown = {"published": "BLEU", "here": "test loss"}
    colors = {"published": "#D55E00", "here": "#0072B2"}
    for axes, (whose, outcome) in zip(panels, shown.items(), strict=True):
        rows = table[table["whose"] == whose]
        for place, ((model, task), own) in enumerate(rows.groupby(["model", "data"], sort=False)):
            axes.errorbar(
                100 * own["sparsity"] + 1.6 * place,
                own["gain"],
                yerr=[own["gain"] - own["low"], own["high"] - own["gain"]],
                ls="",
                marker="sD^ovP*X"[place],
                color=colors[whose],
                capsize=2,
                label=f"{model}, {task}",
            )
        axes.axhline(0, color=INK, lw=0.8)
        ticks = {}
        for level, own in rows.groupby("sparsity"):
            ends = dict.fromkeys(f"{end:.2f}" for end in (own["flops"].min(), own["flops"].max()))
            ticks[100 * level] = f"{100 * level:g}%\nFLOPs {' to '.join(ends)}"
        ticks |= {100: "no pre-\ntraining"} if 100 in ticks else {}
        axes.set_xticks([*ticks], [*ticks.values()])
        axes.set_xlim(35, max(90, *ticks, 0) + 10)
        axes.set_xlabel("sparsity of pre-training")
        axes.set_ylabel("BLEU" if whose == "published" else "nats (axis reversed)")
        axes.set_title(f"{whose.capitalize()}: {outcome} minus dense, up is better")
    panels[1].invert_yaxis()  # less loss is better
    for axes in panels:
        axes.legend(fontsize=7, handlelength=1.2)
    return figure
