"""Claims that no trained run decides: closed forms against published values, properties of the
library, counts of runs, timings.

A check says whether the claim holds for the numbers at hand; it proves nothing about training.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from experiments import published
from experiments.analysis import stats
from experiments.analysis.methods import Methods
from experiments.specs.planned import PlannedStudy
from experiments.specs.schema import ClaimTest
from experiments.store import tidy

PRINTED_DIGITS = 0.01
#: Largest over smallest magnitude of activations that still counts as flat.
FLAT = 1.5
#: The largest cost of masked steps over dense ones that still counts as minimal.
MINIMAL_OVERHEAD = 1.10


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


def check_fine_tuning_share(*_: Any) -> Check:
    """Largest share of fine-tuning in the total FLOPs of the dense rows, per model."""
    rows = published.results()
    rows = rows[rows["source_id"] == "SPDF_UAI23"]
    dense = rows[pd.to_numeric(rows["sparsity"], errors="coerce") == 0]
    totals = dense[dense["metric"] == "total pre-train+finetune FLOPs"]
    before = dense[dense["metric"] == "total pre-train exaFLOPs"]
    shares = {}
    for model in before["model"].unique():
        start = float(before[before["model"] == model]["value"].iloc[0])
        most = totals[totals["model"] == model]["value"].astype(float).max()
        shares[model] = 1 - start / most
    text = ", ".join(f"{model} {100 * share:.2f}%" for model, share in shares.items())
    limits = (0.021, 0.0022)  # printed with two digits
    holds = all(round(s, 4) <= limit for s, limit in zip(shares.values(), limits, strict=True))
    return Check(holds, f"at most {text} of the printed totals")


def check_cs2_curve(_: Any, study: PlannedStudy, *__: Any) -> Check:
    """The simulated curve against every measured point (computation ``device``)."""
    if not _computes(study, "device"):
        return Check(None, "this study does not simulate a device")
    rows = tidy.computed(study.scale, "device", "overhead")
    errors = list((rows["calibrated"] / rows["published"] - 1).abs())
    return _worst(
        errors, 0.01, "measured speed-ups, to which c was fitted (simulated against them)"
    )


def check_cs2_efficiency(*_: Any) -> Check:
    """Measured speed-up over its ideal 1/(1-s) must fall all the way."""
    points = sorted(cs2_points())
    shares = [value * (1 - sparsity) for sparsity, value in points]
    falls = all(later < earlier for earlier, later in zip(shares, shares[1:], strict=False))
    return Check(falls, f"share of the ideal: {shares[1]:.3f} at s = 0.5, {shares[-1]:.3f} at 0.9")


def check_wse2_peak(*_: Any) -> Check:
    """Cores x lanes x 2 x clock against the published peak."""
    facts = _hardware("HW_CS2")
    cores, lanes = float(facts["AI cores"]), float(facts["FP16 FMAC lanes per core per cycle"])
    peak = cores * lanes * 2 * float(facts["core clock"]) * 1e9 / 1e15
    quoted = float(facts["peak dense FP16"])
    holds = abs(peak / quoted - 1) < PRINTED_DIGITS
    return Check(holds, f"{peak:.2f} PFLOP/s computed, {quoted} published")


def check_wse3_balance(*_: Any) -> Check:
    """Lanes, memory bandwidth and bytes per FLOP of the two wafers, from the published figures."""
    old, new = _hardware("HW_CS2"), _hardware("HW_CS3")
    lanes = float(new["FP16 SIMD lanes per core"]) / float(
        old["FP16 FMAC lanes per core per cycle"]
    )
    bandwidths = [float(facts["memory bandwidth"]) for facts in (old, new)]
    peaks = [float(old["peak dense FP16"]), float(new["dense FP16 estimate"])]
    balance = [bandwidth / peak for bandwidth, peak in zip(bandwidths, peaks, strict=True)]
    growth = bandwidths[1] / bandwidths[0]
    holds = lanes == 2 and abs(growth - 1.05) < 0.005 and balance[1] < balance[0]
    text = f"{lanes:g}x the lanes, {growth:.2f}x the bandwidth; bytes per FLOP {balance[0]:.2f} on"
    return Check(holds, f"{text} the WSE-2 and {balance[1]:.2f} on the WSE-3 (peak estimated)")


def check_activations(_: Any, study: PlannedStudy, *__: Any) -> Check:
    """Magnitudes over sparsity at every width (computation ``coordinate_check``).

    Inconclusive where some widths are as the claim says and others are not.
    """
    if not _computes(study, "coordinate_check"):
        return Check(None, "this study does not check coordinates")
    rows = tidy.computed(study.scale, "coordinate_check", "activations").sort_values("sparsity")
    as_said, parts = [], []
    for width, of_width in rows.groupby("width"):
        fits, ratios = True, []
        for rule, own in of_width.groupby("rule", sort=False):
            means = own.groupby(["step", "sparsity"])["value"].mean().unstack("sparsity")
            ratio = means.max(axis=1) / means.min(axis=1)
            if rule == "supar":
                fits &= bool((ratio < FLAT).all())
            else:
                falls = (means.diff(axis=1).iloc[:, 1:] < 0).all(axis=None)
                fits &= bool(falls and (ratio > FLAT).all())
            ratios.append(f"{ratio.max():.3g}x under {rule}")
        as_said.append(fits)
        parts.append(f"width {width} {', '.join(ratios)}")
    text = f"sparsity up to {100 * rows['sparsity'].max():.3g}%"
    reason = f"largest over smallest magnitude: {'; '.join(parts)}; {text}"
    if any(as_said) and not all(as_said):
        return Check(None, reason, is_inconclusive=True)
    return Check(all(as_said), reason)


def check_amdahl(_: Any, study: PlannedStudy, *__: Any) -> Check:
    """Whole-model FLOP ratios stay below the speed-up of a product (computation ``flops``)."""
    if not _computes(study, "flops"):
        return Check(None, "this study does not count FLOPs")
    rows = tidy.computed(study.scale, "flops", "amdahl")
    parts = [f"{row.model} {row.whole_model:.2f}x" for row in rows.itertuples()]
    sparsity, bound = rows[["sparsity", "product"]].iloc[0]
    holds = bool((rows["whole_model"] < rows["product"]).all())
    return Check(holds, f"{', '.join(parts)} at s = {sparsity:g}; the product {bound:.2f}x")


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


def check_property(_: Any, study: PlannedStudy, __: Any, claim: str) -> Check:
    """Every case of a claim about the library, found against expected (computation ``library``)."""
    if not _computes(study, "library"):
        return Check(None, "this study does not ask the library")
    rows = tidy.computed(study.scale, "library", "properties")
    rows = rows[rows["claim"] == claim]
    missed = rows[~rows["met"]]
    if missed.empty:
        return Check(bool(len(rows)), f"{len(rows)} cases, all as the source says")
    first = missed.iloc[0]
    return Check(
        False,
        f"{len(missed)} of {len(rows)} cases differ, first {first['property']}, "
        f"{first['case']}: {first['found']:g} instead of {first['expected']:g}",
    )


def check_overhead(_: Any, study: PlannedStudy, *__: Any) -> Check:
    """The interval of the mean cost of each method's steps over dense ones, against the limit."""
    if not _computes(study, "library"):
        return Check(None, "this study does not time the library")
    rows = tidy.with_machine(tidy.computed(study.scale, "library", "overhead"))
    machines = sorted(rows["machine"].unique())
    if len(machines) > 1:
        return Check(None, f"timed on several machines ({', '.join(machines)}), not one")
    cells = {name: stats.t_interval(own["ratio"]) for name, own in rows.groupby("method")}
    text = ", ".join(
        f"{name} {mean:.3f}x [{low:.3f}, {high:.3f}]" for name, (mean, low, high) in cells.items()
    )
    rounds, where = rows["round"].nunique(), f"machine {machines[0]}"
    reason = f"{text} over {rounds} rounds; the same training loop for all, {where}"
    if all(high < MINIMAL_OVERHEAD for _, _, high in cells.values()):
        return Check(True, reason)
    if any(low > MINIMAL_OVERHEAD for _, low, _ in cells.values()):
        return Check(False, reason)
    return Check(None, reason, is_inconclusive=True)


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


def _hardware(source: str) -> dict[str, str]:
    rows = published.results()
    rows = rows[rows["source_id"] == source]
    return dict(zip(rows["metric"], rows["value"], strict=True))


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
