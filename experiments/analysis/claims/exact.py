"""Claims that no trained run decides: closed forms against published values and counts of runs.

A check says whether the claim holds for the numbers at hand; it proves nothing about training.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from experiments import published
from experiments.analysis.methods import Methods
from experiments.specs.planned import PlannedStudy
from experiments.specs.schema import ClaimTest
from experiments.store import tidy

PRINTED_DIGITS = 0.01


@dataclass(frozen=True)
class Check:
    """Result of a check: None where there is nothing to check yet, or it decides nothing."""

    holds: bool | None
    reason: str
    is_inconclusive: bool = False


def cs2_points() -> list[tuple[float, float]]:
    """Published (sparsity, measured speed-up) pairs of the CS-2."""
    rows = published.results()
    rows = rows[rows["metric"] == "measured speed-up vs dense"]
    return [(float(r.sparsity), float(r.value)) for r in rows.itertuples()]


def check_counted(_: Any, study: PlannedStudy, test: ClaimTest, *__: Any) -> Check:
    """Every published number of one ``quantity`` against ours (computation ``flops``)."""
    rows = _published_counts(study, test.quantity or "")
    if rows is None:
        return Check(None, "this study does not count FLOPs")
    return _worst(list(rows["difference"].abs()), PRINTED_DIGITS, test.numbers or "")


def check_cs2_efficiency(*_: Any) -> Check:
    """Measured speed-up over its ideal 1/(1-s) must fall all the way."""
    points = sorted(cs2_points())
    shares = [value * (1 - sparsity) for sparsity, value in points]
    falls = all(later < earlier for earlier, later in zip(shares, shares[1:], strict=False))
    return Check(falls, f"share of the ideal: {shares[1]:.3f} at s = 0.5, {shares[-1]:.3f} at 0.9")


def check_ift_identities(*_: Any) -> Check:
    """Each Sparse-IFT member keeps Din x Dout multiply-adds."""
    errors = []
    for inputs, outputs in ((64, 256), (768, 768), (768, 3072)):
        budget = inputs * outputs
        for sparsity in (0.5, 0.75, 0.9):
            keep = 1 - sparsity
            wide = math.sqrt(1 / keep)
            inner = budget / ((inputs + outputs) * keep)
            rank = sparsity * budget / (inputs + outputs)
            costs = (
                keep * (wide * inputs) * (wide * outputs),
                keep * (1 / keep) * budget,
                keep * (inputs + outputs) * inner,
                keep * budget + rank * (inputs + outputs),
            )
            errors += [abs(cost / budget - 1) for cost in costs]
    return _worst(errors, 1e-12, "layer shapes, sparsities and members")


def check_ift_whole_model(_: Any, study: PlannedStudy, *__: Any) -> Check:
    """GPT-3 Small at the source's widths: attention and head grow with them."""
    rows = _published_counts(study, "whole-model FLOPs relative to dense")
    if rows is None:
        return Check(None, "this study does not count FLOPs")
    (first, second), (said, then) = rows["ours"], rows["published"]
    text = (
        f"{first:.3f}x dense at s = 0.5 ({said:.2f}x in the ledger), {second:.3f}x at 0.75 "
        f"({then:.2f}x)"
    )
    # The recorded values have two decimals, so ours must round to them.
    return Check(bool(((rows["ours"] - rows["published"]).abs() <= 0.005).all()), text)


def check_update_flops(records: pd.DataFrame, study: PlannedStudy, *_: Any) -> Check:
    """The mean step of each rule against the closed form, and executed FLOPs of runs.

    RigL's schedule is counted step by step (computation ``flops``); real steps under Static, SET,
    RigL and SNFS are counted by the library (computation ``update_flops``). In runs SET equals
    Static, and RigL pays a little more at updates. Each part is named; the claim as a whole holds
    or fails only where all of its rules were counted.
    """
    counted = _counted_steps(study)
    found = (_schedule(study), counted, _executed(records, study))
    checks = [check for check in found if check is not None]
    if not checks:
        return Check(None, "this scale has no schedule and no runs of SET, Static and RigL")
    reason = "; ".join(check.reason for check in checks)
    if counted is None and all(check.holds for check in checks):
        return Check(None, f"only in part: {reason}; SNFS is not counted by this study")
    return Check(all(check.holds for check in checks), reason)


def _computes(study: PlannedStudy, name: str) -> bool:
    return name in {computation.name for computation in study.computations}


def _published_counts(study: PlannedStudy, quantity: str) -> pd.DataFrame | None:
    if not _computes(study, "flops"):
        return None
    rows = tidy.computed(study.scale, "flops", "published")
    return rows[rows["quantity"] == quantity]


def _schedule(study: PlannedStudy) -> Check | None:
    if not _computes(study, "flops"):
        return None
    rows = tidy.computed(study.scale, "flops", "schedule")
    worst = (rows["mean FLOPs"] / rows["formula"] - 1).abs().max()
    text = f"RigL's mean step is the closed form at {len(rows)} update intervals"
    return Check(bool(worst < 1e-9), f"{text}, largest relative error {worst:.1g}")


def _counted_steps(study: PlannedStudy) -> Check | None:
    if not _computes(study, "update_flops"):
        return None
    rows = tidy.computed(study.scale, "update_flops", "steps")
    if "SNFS" not in set(rows["method"]):
        return None
    worst = rows["difference"].abs().max()
    text = f"real steps of {', '.join(rows['method'])} cost what the closed forms say"
    return Check(bool(worst < 1e-9), f"{text}, largest relative error {worst:.1g}")


def _executed(records: pd.DataFrame, study: PlannedStudy) -> Check | None:
    rows = tidy.select(records, "flops_executed")
    rows = rows[Methods(study).source_names(rows) == rows["algorithm"]]
    keys = ["model", "dataset", "sparsity", "seed"]
    table = rows.pivot_table("value", keys, "algorithm")
    if not {"set", "static", "rigl"} <= set(table.columns):
        return None
    table = table.dropna(subset=["set", "static", "rigl"])
    if table.empty:
        return None
    gap = (table["set"] / table["static"] - 1).abs().max()
    extra = table["rigl"] / table["static"] - 1
    holds = bool(gap < 1e-6 and (extra > 0).all())
    return Check(
        holds,
        f"SET / Static - 1 is at most {gap:.1e} and RigL executes {100 * extra.mean():.2f}% more, "
        f"over {len(table)} triples of runs",
    )


def _worst(errors: list[float], allowed: float, what: str) -> Check:
    worst = max(errors)
    return Check(
        worst <= allowed,
        f"{len(errors)} {what}, largest relative error {worst:.2g} (allowed {allowed:g})",
    )


#: Each takes the headline records, the study, and the claim's test and id.
CHECKS: dict[str, Callable[..., Check]] = {
    name.removeprefix("check_"): check
    for name, check in list(globals().items())
    if name.startswith("check_")
}
