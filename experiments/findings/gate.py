"""The baseline gate: whether a comparison is a fair test, asked of every result automatically.

1. At equal size, data and recipe no masked arm of the same architecture beats dense by more than
   two standard errors.
2. The learning rate of every arm has a worse one on both sides, at the budget of the runs or, with
   fewer than three tried there, at half of it. Where the source gave all arms one rate, that of the
   dense model must. A study that tries no rate at a scale tests sparse arms, not dense ones.
3. The larger dense model beats the smaller.
4. Where the claim is about equal FLOPs, the arms' training FLOPs differ by less than a tenth.

Where runs start from another training, that one must pass too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from experiments.findings.claim import Outcome
from experiments.findings.estimate import Arm, pooled
from experiments.findings.evidence import Evidence, alike

LOSS = Outcome(
    metric="loss", split="validation", unit="nats", better="lower", noun="validation loss"
)
WORKLOAD = ["model", "data", "budget", "stable"]
#: Standard errors by which a masked arm may beat dense.
ALLOWED = 2.0
#: Ratio of training FLOPs up to which they count as equal.
MOST_COST = 1.1


@dataclass(frozen=True)
class Gate:
    """The gate's verdict.

    Attributes:
        failed: Why the comparison is no fair test; empty if it passed.
    """

    failed: str = ""
    notes: str = ""


def check_fairness(
    evidence: Evidence,
    rows: pd.DataFrame,
    arms: Sequence[Arm],
    outcome: Outcome,
    *,
    rates: str,
    equal_flops: bool = False,
) -> Gate:
    """Whether the comparison of some arms is a fair test.

    Args:
        arms: Arm a and arm b of each model in turn.
        rates: ``own``, or ``shared`` where one rate for all is part of the claim.
        equal_flops: Whether equal cost is part of the claim.
    """
    if equal_flops and (failed := _unequal(evidence, rows, arms)):
        return Gate(f"unequal FLOPs: {failed}")
    for workload, measured in _workloads(evidence, rows, outcome):
        for weakness in (_beaten, _larger):
            if failed := weakness(evidence, workload, measured):
                return Gate(f"weak dense baseline: {failed}")
    failed, tried = _rates(evidence, rows, arms, rates)
    return Gate(f"untuned learning rate: {failed}") if failed else Gate(notes=tried)


def _unequal(evidence: Evidence, rows: pd.DataFrame, arms: Sequence[Arm]) -> str:
    """The arm that costs at least a tenth more, in words."""
    keys = pd.MultiIndex.from_frame(rows[list(Arm._fields)])
    runs = [rows.loc[[key == arm for key in keys], "run"] for arm in arms]
    costs = [evidence.of_runs("flops_executed", own).mean() for own in runs]
    ratio = sum(costs[1::2]) / sum(costs[::2])
    more, size = (arms[1], ratio) if ratio > 1 else (arms[0], 1 / ratio)
    return f"{more.method} takes {size:.1f} times as many" if size > MOST_COST else ""


def _workloads(
    evidence: Evidence, rows: pd.DataFrame, outcome: Outcome
) -> Iterator[tuple[pd.DataFrame, Outcome]]:
    """The workloads of the rows and of those that they start from, with what is measured."""
    values, runs = evidence.values(outcome), evidence.runs
    for _, own in rows.groupby(WORKLOAD):
        yield own, outcome if own["run"].isin(values.index).any() else LOSS
    first = runs[runs["run"].isin(set(rows["first"]) - {""})]
    for key in first[WORKLOAD].drop_duplicates().to_dict("records"):
        yield alike(runs, trials=False, **key), LOSS


def _beaten(evidence: Evidence, rows: pd.DataFrame, outcome: Outcome) -> str:
    """The masked arm that beats the best dense one of the same model, in words."""
    plain = alike(rows, transform="", first="")
    cells = evidence.cells(plain, evidence.values(outcome))
    dense_methods = set(alike(plain, algorithm="dense")["method"])
    dense = {arm: seeds for arm, seeds in cells.items() if arm.method in dense_methods}
    if not dense or len(dense) == len(cells):
        return ""
    sd, freedom = pooled(cells)
    means = {arm: outcome.sign * pd.Series(seeds).mean() for arm, seeds in cells.items()}
    best = max(dense, key=means.__getitem__)
    for arm in sorted(set(cells) - set(dense), key=means.__getitem__, reverse=True):
        se = sd * math.sqrt(1 / len(cells[arm]) + 1 / len(cells[best]))
        if freedom and means[arm] - means[best] > ALLOWED * se:
            size = f"{abs(means[arm]):.4g} against {abs(means[best]):.4g}"
            where = f"the dense {arm.model} at equal size, data and recipe"
            return f"{arm.method} beats {where} ({outcome.noun} {size})"
    return ""


def _larger(evidence: Evidence, rows: pd.DataFrame, outcome: Outcome) -> str:
    """The dense model that a smaller one beats, in words."""
    like, sizes = rows.iloc[0], evidence.sizes
    shared = {column: like[column] for column in ("architecture", "data", "budget", "stable")}
    same = alike(evidence.runs, trials=False, algorithm="dense", transform="", first="", **shared)
    same = same[same["batch"].isin(set(rows["batch"]))]
    values = same["run"].map(evidence.values(outcome)).astype(float) * outcome.sign
    same = same.assign(value=values).dropna(subset=["value"])
    means = same.join(sizes, on="run").groupby("model")[["value", *sizes.columns]].mean()
    if like["model"] not in means.index:
        return ""
    own = means.loc[like["model"]]
    for name, other in means.drop(like["model"]).iterrows():
        apart = (other - own)[list(sizes.columns)]
        larger, smaller = (name, like["model"]) if (apart > 0).all() else (like["model"], name)
        if (apart > 0).all() or (apart < 0).all():
            more, less = (means.loc[model, "value"] for model in (larger, smaller))
            if more <= less:
                size = f"{abs(more):.4g} against {abs(less):.4g}"
                return f"the larger {larger} does not beat {smaller} ({outcome.noun} {size})"
    return ""


def _rates(
    evidence: Evidence, rows: pd.DataFrame, arms: Sequence[Arm], rates: str
) -> tuple[str, str]:
    """The arm whose rate is not bracketed, in words, and how many rates each arm tried."""
    runs = evidence.runs
    plain = alike(rows, algorithm="dense", transform="")
    tried = runs[runs["trials"] & runs["run"].isin(evidence.finished)]
    own = rows[rows["method"].isin([arm.method for arm in arms])]
    same_arm = tried["data"].isin(own["data"]) & tried["masks"].isin(own["masks"])
    if not (same_arm | tried["study"].isin(own["study"])).any():
        words = "no learning rate was tried at this scale"
        return (words, "") if {arm.method for arm in arms} & {*plain["method"]} else ("", words)
    losses, counts = evidence.values(LOSS), []
    if rates == "shared":
        dense = _arms(plain)
        arms = [arm for arm in reversed(arms) if arm in dense][:1] or sorted(dense)[:1]
        if not arms:
            return "no dense model shares it", ""
    first = rows.loc[rows["method"].isin([arm.method for arm in arms]), "first"]
    before = runs[runs["run"].isin(set(first) - {""})]
    rows = pd.concat([rows, before])
    masks = runs.drop_duplicates("run").set_index("run")["masks"]
    # The first phase's; a run that goes on at a stable rate has one phase.
    starts = [table["first"].mask(table["stable"] == 1).map(masks) for table in (runs, rows)]
    runs, rows = runs.assign(start=starts[0].fillna("")), rows.assign(start=starts[1].fillna(""))
    for arm in [*arms, *_arms(before)]:
        own = alike(rows, model=arm.model, method=arm.method, rate=arm.rate).iloc[0]
        same = ["model", "data", "batch", "masks", "transform", "stable"]
        same += ["start"] * (rates == "own")  # a shared rate is the dense model's
        tries = alike(runs, **{column: own[column] for column in same})
        tries = tries[tries["trials"] & tries["budget"].between(own["budget"] / 2, own["budget"])]
        tries = tries.assign(loss=tries["run"].map(losses).astype(float)).dropna(subset=["loss"])
        budgets = [group for _, group in tries.groupby("budget") if group["rate"].nunique() > 2]
        tried = _bracketed(budgets[-1], arm.rate) if budgets else 0
        if not tried:
            seen = sorted(tries["rate"].unique())
            where = f"the rate {arm.rate:g} of {arm.method} ({arm.model})"
            if len(seen) < 2:
                return f"{where} was tried against no other at its budget or half of it", ""
            listed = ", ".join(f"{rate:g}" for rate in seen)
            return f"{where} has no worse one on both sides (tried: {listed})", ""
        counts.append(tried)
    words = f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else str(counts[0])
    if rates == "shared":
        return "", f"one shared rate, the dense model's best of {words}"
    return "", f"{words} rates tried per arm"


def _arms(rows: pd.DataFrame) -> list[Arm]:
    return [Arm(*key) for key in rows[list(Arm._fields)].drop_duplicates().itertuples(index=False)]


def _bracketed(trials: pd.DataFrame, rate: float) -> int:
    """How many rates were tried at one budget, if a lower and a higher one are worse than this;
    else 0."""
    losses = trials.groupby("rate")["loss"].mean()
    if rate not in losses.index:
        return 0
    worse = losses[losses > losses[rate]].index
    return len(losses) if (worse < rate).any() and (worse > rate).any() else 0
