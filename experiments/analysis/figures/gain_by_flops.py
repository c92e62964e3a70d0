"""Accuracy gained over the dense model, against training FLOPs: up is better. Stars are published,
other marks ours with 95% intervals; those at 1x are shifted sideways. Below: another recipe,
mean over widths (32 epochs: width 8)."""

from collections.abc import Iterable
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments import published
from experiments.analysis import style
from experiments.analysis.methods import FAMILIES, INK
from experiments.findings.claim import Outcome
from experiments.findings.estimate import Arm, Cells, estimate
from experiments.findings.evidence import gather
from experiments.specs.schema import PlannedStudy
from experiments.store import tidy

EVERY_RECIPE = True
ACCURACY = Outcome(
    metric="accuracy", split="test", unit="points", better="higher", times=100, noun="test accuracy"
)
COLUMNS = "panel budget method sparsity masks flops gain low high seeds".split()
LOOKS = {0.5: ("^", "#117733"), 0.75: ("D", FAMILIES["wide"][1]), 0.9: ("v", "#AA4499")}


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per arm and budget: the gain over dense, positive where it is better."""
    evidence = gather([study], [records])
    values = evidence.values(ACCURACY)
    flops = tidy.select(records, "flops_executed").set_index("run")["value"]
    masks = tidy.mask_sparsity(curves)
    keys = ["model", "method", "recipe", "budget"]
    has_ended = evidence.runs["run"].isin(values.index)
    # Seeds that were registered together are read together.
    whole = has_ended.groupby([evidence.runs[key] for key in keys]).transform("all")
    runs = evidence.runs[whole | has_ended & evidence.runs["stable"]]
    runs = runs[runs["recipe"] != "trunk"]  # its rate never decays: others go on from it
    rows = []
    for (budget, stable), own in runs.groupby(["budget", "stable"]):
        for column in ("dataset", "architecture"):
            own = own[own[column] == own[column].mode()[0]]
        dense = own[(own["algorithm"] == "dense") & (own["transform"] == "")]
        wide = own[own["transform"].str.contains('"wide"') & ~own["method"].str.contains("retuned")]
        cells = evidence.cells(own, values)
        plain = [arm for arm in cells if arm.method in set(dense["method"])]
        shared = {"panel": "length" if stable else "flops", "budget": budget}

        def cost(models: Iterable[str], dense: pd.DataFrame = dense) -> float:
            """FLOPs of the dense runs of some models, their mean."""
            return flops.reindex(dense.loc[dense["model"].isin(list(models)), "run"]).mean()

        for method, members in wide.groupby("method", sort=False):
            if strata := _strata(cells, str(method), plain):
                row = shared | _gain(cells, strata, ACCURACY.sign) | {"method": method}
                row |= {"sparsity": members["sparsity"].iloc[0]}
                row |= {"masks": masks.reindex(members["run"]).mean()}
                share = flops.reindex(members["run"]).mean() / cost(members["model"])
                rows.append(row | {"flops": share})
        base = [arm for arm in plain if arm.model in set(wide["model"])][: not stable]
        for arm in plain if base else ():  # larger dense models against the one that was widened
            if arm.model not in set(wide["model"]) and arm.recipe == base[0].recipe:
                row = shared | _gain(cells, [(arm, base[0])], ACCURACY.sign)
                row |= {"method": f"larger dense, {arm.model}", "sparsity": 0.0, "masks": 0.0}
                rows.append(row | {"flops": cost([arm.model]) / cost([base[0].model])})
    table = pd.DataFrame(rows, columns=COLUMNS)
    return table[(table["sparsity"] > 0) | (table["flops"] > 1.3)]


def _strata(cells: Cells, method: str, dense: list[Arm]) -> list[tuple[Arm, Arm]]:
    """Arm and dense arm of each model that has both, of the same rate."""
    found = []
    for arm in (arm for arm in cells if arm.method == method):
        own = [other for other in dense if other.model == arm.model]
        if own := [other for other in own if other.rate == arm.rate] or own:
            found.append((arm, max(own, key=lambda other: len(cells[other]))))
    return found


def _gain(cells: Cells, strata: list[tuple[Arm, Arm]], sign: int) -> dict[str, Any]:
    models = {arm.model for pair in strata for arm in pair}
    own = {arm: seeds for arm, seeds in cells.items() if arm.model in models}
    e = estimate(own, strata, sign=sign)
    low, high = sorted((sign * e.low, sign * e.high))
    return {"gain": sign * e.effect, "low": low, "high": high, "seeds": e.seeds[0]}


def stars() -> list[tuple[str, float, float]]:
    """Published points: name, FLOPs over dense, gain."""
    rows = published.results()
    rows = rows[
        (rows["source_id"] == "SPARSE_IFT_ICML24") & rows["metric"].str.contains("accuracy")
    ]
    value = {(row.dataset, row.model, row.method): float(row.value) for row in rows.itertuples()}
    points = []
    for data, model, method, flops, name in (
        ("ImageNet", "ResNet-18", "Sparse Wide + RigL", 1.0, "90%"),
        ("CIFAR-100", "ResNet-18", "Sparse Wide + RigL", 1.0, "90%"),
        ("ImageNet", "ResNet-34", "Dense", 2.0, "larger dense"),
    ):
        gain = value[data, model, method] - value[data, "ResNet-18", "Dense"]
        points.append((f"{data}, {name}", flops, gain))
    return points


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """FLOPs above, lengths of training below."""
    table = data(records, curves, study)
    lengths = table[table["panel"] == "length"]
    has_lengths = lengths["budget"].nunique() > 1
    figure, axes = style.panels(2 if has_lengths else 1, height=3.2)
    if table.empty:
        style.say_empty(axes[0], "No Sparse-Wide run is finished yet.")
        return figure
    _by_flops(axes[0], table[table["panel"] == "flops"])
    if has_lengths:
        _by_length(axes[1], lengths)
    for panel in axes:
        panel.axhline(0, color=INK, lw=0.8)
        panel.set_ylabel("points over dense (up is better)")
        panel.minorticks_off()
        panel.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=7, handlelength=1.2)
    return figure


def _by_flops(axes: Axes, table: pd.DataFrame) -> None:
    axes.plot(1, 0, "o", color="#7F7F7F", label="dense")
    shown: set[str] = set()
    table = table[table["budget"] == table["budget"].max()].sort_values("masks", ascending=False)
    for row in table.itertuples():
        is_dense, is_static = row.method.startswith("larger"), "static" in row.method
        mark, color = ("s", "#7F7F7F") if is_dense else _look(row.sparsity)
        label = row.method if is_dense else _level(row.masks)
        label += f"{', static' * is_static}, {row.budget:g} epochs"
        axes.errorbar(
            row.flops * (1.0 if is_dense else 1.035 ** len(shown)),
            row.gain,
            yerr=[[row.gain - row.low], [row.high - row.gain]],
            capsize=2,
            color=color,
            marker=mark,
            markerfacecolor="white" if is_static else color,
            label=None if label in shown else label,
        )
        shown.add(label)
    for name, flops, gain in stars():
        axes.plot(flops, gain, "*", color=INK, ms=11)
        axes.annotate(name, (flops, gain), (-8, 0), textcoords="offset points", fontsize=7,
                      ha="right", va="center")  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlim(0.6, 2.4)
    axes.set_xticks([1, 2], ["1x", "2x"])
    axes.set_xlabel("training FLOPs, relative to dense")
    axes.set_title("Gain by FLOPs")


def _level(masks: float) -> str:
    return f"masks {100 * masks:.0f}% sparse"


def _look(sparsity: float) -> tuple[str, str]:
    """Marker and colour of the nearest level."""
    return LOOKS[min(LOOKS, key=lambda level: abs(level - sparsity))]


def _by_length(axes: Axes, lengths: pd.DataFrame) -> None:
    for index, level in enumerate(sorted(lengths["sparsity"].unique())):
        own = lengths[lengths["sparsity"] == level].sort_values("budget")
        mark, color = _look(level)
        axes.errorbar(
            own["budget"] * 1.03**index,
            own["gain"],
            yerr=[own["gain"] - own["low"], own["high"] - own["gain"]],
            marker=mark,
            color=color,
            capsize=2,
            label=_level(own["masks"].mean()),
        )
    axes.set_xscale("log", base=2)
    budgets = sorted(lengths["budget"].unique())
    axes.set_xticks(budgets, [f"{budget:g}" for budget in budgets])
    axes.set_xlabel("epochs of training")
    axes.set_title("Gain by epochs")
