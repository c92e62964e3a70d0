"""Sparse minus dense pre-training, by sparsity: up is better. Published BLEU with deviations
over seeds; our BLEU and test loss with 95% intervals. FLOPs are of both phases, as a share of
dense."""

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
BLEU = Outcome(metric="bleu", split="test", unit="BLEU", better="higher", noun="BLEU")
COLUMNS = ["panel", "model", "data", "sparsity", "gain", "low", "high", "flops"]
PANELS = {"Published: BLEU": INK, "Here: BLEU": "#0072B2", "Here: test loss": "#0072B2"}
MARKERS = {"e2e": "s", "web": "D", "dar": "^"}  #: by the start of a dataset's name
METHODS = {"spdf-50": 0.5, "spdf-75": 0.75, "scratch": 1.0}
#: Of both phases, as a share of dense, by sparsity.
PUBLISHED_FLOPS = {0.5: 0.601, 0.75: 0.401}
DENSE = "dense-dense"


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """BLEU of GPT-3 XL, our BLEU and loss, each minus dense, by panel; sparsity 1: from scratch."""
    ours = [row for outcome in (BLEU, LOSS) for row in _ours(records, study, outcome)]
    return pd.DataFrame([*_published(), *ours], columns=COLUMNS)


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
            values = ("Published: BLEU", "GPT-3 XL", task, row.s, *ends, PUBLISHED_FLOPS[row.s])
            found.append(dict(zip(COLUMNS, values, strict=True)))
    return found


def _ours(records: pd.DataFrame, study: PlannedStudy, outcome: Outcome) -> list[dict[str, Any]]:
    evidence = gather([study], [records])
    values, found = evidence.values(outcome), []
    runs = evidence.runs[evidence.runs["run"].isin(values.index)]
    runs = runs.assign(total=runs["run"].map(tidy.executed_flops(records, study)))
    for (model, task, _), own in runs.groupby(["model", "dataset", "budget"], sort=False):
        cells, totals = evidence.cells(own, values), own.groupby("method")["total"].mean()
        arms: dict[str, Arm] = {arm.method: arm for arm in cells}
        for method, sparsity in METHODS.items():
            if method in arms and DENSE in arms:
                e = estimate(cells, [(arms[method], arms[DENSE])])
                row = (f"Here: {outcome.noun}", model, task, sparsity, e.effect, e.low, e.high)
                share = totals[method] / totals[DENSE]
                found.append(dict(zip(COLUMNS, (*row, share), strict=True)))
    return found


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """Published BLEU, our BLEU and our loss, one below the other."""
    table = data(records, curves, study)
    figure, panels = style.panels(len(PANELS), height=2.3)
    for axes, (panel, color) in zip(panels, PANELS.items(), strict=True):
        rows = table[table["panel"] == panel]
        for place, ((model, task), own) in enumerate(rows.groupby(["model", "data"], sort=False)):
            axes.errorbar(
                100 * own["sparsity"] + 1.6 * place,
                own["gain"],
                yerr=[own["gain"] - own["low"], own["high"] - own["gain"]],
                ls="",
                marker=MARKERS.get(task[:3].lower(), "o"),
                mfc=color if model == rows["model"].iloc[-1] else "white",
                color=color,
                capsize=2,
                label=f"{model}, {task}",
            )
        axes.axhline(0, color=INK, lw=0.8)
        ticks = {50: "50%", 75: "75%", 100: "no pre-\ntraining"}
        for level, own in rows[rows["sparsity"] < 1].groupby("sparsity"):
            ends = dict.fromkeys(f"{end:.2f}" for end in (own["flops"].min(), own["flops"].max()))
            ticks[100 * level] += f"\nFLOPs {' to '.join(ends)}"
        axes.set_xticks([*ticks], [*ticks.values()])
        axes.set_xlim(45, 110)
        axes.set_ylabel(panel.split(": ")[1] if "BLEU" in panel else "nats (axis reversed)")
        axes.set_title(f"{panel} minus dense, up is better")
        if len(rows):
            axes.legend(fontsize=7, handlelength=1.2, loc="lower center", bbox_to_anchor=(0.68, 0))
    panels[-1].invert_yaxis()  # less loss is better
    panels[-1].set_xlabel("sparsity of pre-training")
    return figure
