"""Claims recomputed from points that their authors published.

Nothing is trained here: the points of Frantar et al. (ICLR 2024) and the table of Lee et al. (CPAL
2024) are the authors' runs, and the check is whether what a paper says follows from them.
"""

from __future__ import annotations

import functools
from typing import Any

import pandas as pd

from experiments import published
from experiments.analysis.claims.exact import Check
from experiments.analysis.laws import SparsityLaw, fit_sparsity_law

FILES = {"T5": "t5-data.csv", "ViT": "vit-data.json"}
PUBLISHED_MULTIPLIERS = {"T5": 2.157, "ViT": 2.172}
#: Relative deviation that a refit may have from a published coefficient: the paper's own seeds of
#: the optimiser differ, and it fits by another routine.
REFIT = 0.1


@functools.cache
def points(model: str) -> pd.DataFrame:
    """The published runs of a model: ``sparsity``, ``nonzero``, ``data`` (steps, images), ``loss``.

    Args:
        model: ``T5`` or ``ViT``.
    """
    rows = published.results()
    rows = rows[(rows["source_id"] == "FRANTAR_ICLR24") & (rows["table_or_figure"] == FILES[model])]
    rows = rows[rows["metric"] == "validation loss"]
    size = rows["model"].str.extract(r"nonzero ([\d.]+)M")[0].astype(float)
    length = rows["dataset"].str.extract(r", (\d+) (?:steps|images)")[0].astype(float)
    return pd.DataFrame(
        {
            "sparsity": rows["sparsity"].astype(float),
            "nonzero": 1e6 * size,
            "data": length,
            "loss": rows["value"].astype(float),
        }
    ).reset_index(drop=True)


@functools.cache
def law(model: str) -> SparsityLaw:
    """The law fitted to all of a model's points."""
    own = points(model)
    return fit_sparsity_law(own["sparsity"], own["nonzero"], own["data"], own["loss"])


def check_groups(*_: Any) -> Check:
    """At equal non-zeros and length, the loss falls strictly with sparsity in every group."""
    parts, holds = [], True
    for model in FILES:
        groups = [
            group.sort_values("sparsity")["loss"]
            for _, group in points(model).groupby(["nonzero", "data"])
            if len(group) > 1
        ]
        falling = sum(bool(losses.diff().dropna().lt(0).all()) for losses in groups)
        holds = holds and falling == len(groups)
        parts.append(f"{model}: {falling} of {len(groups)} groups")
    return Check(holds, "recomputed from the authors' published points; " + ", ".join(parts))


def check_multiplier(*_: Any) -> Check:
    """A refit of the joint law gives the published worth of a model with 75% zeros."""
    parts, holds = [], True
    for model, wanted in PUBLISHED_MULTIPLIERS.items():
        found = law(model).multiplier(0.75)
        holds = holds and abs(found / wanted - 1) <= REFIT
        parts.append(f"{model}: {found:.2f}, published {wanted}")
    return Check(holds, "refitted to the authors' published points; " + ", ".join(parts))


def check_best_sparsity(*_: Any) -> Check:
    """By the refitted law, the best sparsity at fixed non-zeros rises with the training length."""
    parts, holds = [], True
    for model in FILES:
        own = points(model)
        nonzero = float(own["nonzero"].median())
        lengths = [own["data"].median() * factor for factor in (1, 4, 16, 64)]
        best = [law(model).best_sparsity(nonzero, length) for length in lengths]
        rises = all(a <= b for a, b in zip(best, best[1:])) and best[-1] > best[0]
        holds = holds and rises
        shown = ", ".join(f"{value:.0%}" for value in best)
        parts.append(f"{model}: {shown} at 1, 4, 16 and 64 times the median length")
    return Check(holds, "by the law refitted to the published points; " + "; ".join(parts))


#: Published rows on dynamic against static masks: source and table.
LEE = ("JAXPRUNER_CPAL24", "Table 1")


def benchmarks() -> pd.DataFrame:
    """Return the published means of Static, SET and RigL by benchmark, higher is better.

    Columns ``Static``, ``SET`` and ``RigL``, and ``<method> sd`` for what stands behind the sign of
    their deviation; losses are negated.
    """
    rows = published.results()
    rows = rows[(rows["source_id"] == LEE[0]) & (rows["table_or_figure"] == LEE[1])]
    rows = rows[rows["method"].isin(["Static", "SET", "RigL"])]
    sign = rows["higher_is_better"].map({"yes": 1.0, "no": -1.0})
    rows = rows.assign(
        mean=sign * rows["value"].astype(float),
        sd=rows["seeds_or_std"].str.lstrip("+-").astype(float),
    )
    table = rows.pivot(index="model", columns="method", values="mean")
    spread = rows.pivot(index="model", columns="method", values="sd")
    return table.join(spread.add_suffix(" sd"))


def check_benchmarks(*_: Any) -> Check:
    """SET and RigL above Static in every published benchmark, and how far above the spread."""
    table = benchmarks()
    holds, near = True, []
    for method in ("SET", "RigL"):
        gain = table[method] - table["Static"]
        noise = (table[f"{method} sd"] ** 2 + table["Static sd"] ** 2) ** 0.5
        holds = holds and bool((gain > 0).all())
        near += [f"{method} in {name}" for name in table.index[gain <= 2 * noise]]
    text = f"SET and RigL are above Static in the means of all {len(table)} benchmarks"
    if not holds:
        text = f"not in every one of the {len(table)} benchmarks are SET and RigL above Static"
    within = f"; within two of the published deviations: {', '.join(near)}" if near else ""
    return Check(holds, f"recomputed from the authors' published table: {text}{within}")


CHECKS = {
    "published_benchmarks": check_benchmarks,
    "published_groups": check_groups,
    "published_multiplier": check_multiplier,
    "published_best_sparsity": check_best_sparsity,
}
