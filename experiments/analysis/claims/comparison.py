"""Comparisons of runs: one treatment against another, paired by seed, within a workload."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import pandas as pd

from experiments import published
from experiments.analysis import select as selection
from experiments.analysis import stats
from experiments.analysis.claims import preconditions
from experiments.analysis.claims import sides as sides_of_claims
from experiments.analysis.claims.links import (
    LARGER,
    Namer,
    is_named,
    links_of,
    name_of,
    namer,
    restricted,
    selections_of,
    sided,
    sides_of,
)
from experiments.analysis.claims.policy import INCONCLUSIVE, NOT_TESTED
from experiments.analysis.claims.words import (
    difference,
    link_alone,
    minus,
    no_runs,
    replication,
    unit_of,
    words_of,
)
from experiments.specs import trials
from experiments.specs.planned import NO_STUDY, PlannedStudy
from experiments.specs.run import Run, RunSpec
from experiments.specs.schema import ClaimTest, Comparison
from experiments.store import tidy


@dataclass(frozen=True)
class Outcome:
    """What a test found, before any correction for the number of tests."""

    tested_as: str
    pair: stats.Paired | None = None
    reason: str = ""
    verdict: str | None = None
    replications: str = ""
    runs: str = ""
    compared: str = ""
    unit: str = ""
    links: str = ""
    sides: str = ""


def compare(
    test: ClaimTest,
    records: pd.DataFrame,
    study: PlannedStudy = NO_STUDY,
    spent: Mapping[str, pd.Series] | None = None,
) -> Outcome:
    """Test a claim's links on the study's first workload with all sides, and on the others.

    Args:
        test: Machine form of the claim: a comparison, a chain, or several comparisons.
        records: Headline records.
        study: The study; its plan orders the workloads, without one the records do.
        spent: What `sides.spent` returns of all records; of these if None.

    Returns:
        The outcome on the first workload. Others with at least one pair are its replications.
    """
    plan = selection.headline(selection.planned(study), study)
    plan = records if plan.empty else plan
    name = namer(test, study)
    test, left_out = restricted(test, plan)
    links = links_of(test)
    words = words_of(test, links, name)
    rows = [_measured(records, link) for link in links]
    sides = [side for link in links for side in selections_of(link)]
    workloads = [
        workload
        for workload in tidy.workloads(plan)
        if is_named(workload, sides[0])
        and all(not sided(plan, workload, side).empty for side in sides)
    ]
    if not workloads:
        missing = [
            name(side)
            for link, found in zip(links, rows, strict=True)
            for side in selections_of(link)
            if sided(found, None, side).empty
        ]
        missing = missing or ["all sides on one model and dataset"]
        return Outcome(words, verdict=NOT_TESTED, reason=no_runs(missing, links))
    first, *others = (_on(links, rows, workload, study, name) for workload in workloads)
    if first.pair is not None:
        taken = sides_of_claims.spent(records, study) if spent is None else spent
        runs = _runs_of_sides(links, rows, workloads[0], name)
        first = replace(first, sides=sides_of_claims.differences(runs, study, taken))
    seen = "; ".join(
        replication(other.reason.split(";")[0], other.pair)
        for other in others
        if other.pair is not None
    )
    reason = first.reason + _control(test, links, rows, workloads[0], name)
    if first.verdict == NOT_TESTED and (problem := foreseen(test, study, name)) not in reason:
        reason += f"; even with them no verdict: {problem}"
    if left_out:
        gone = ", ".join(dict.fromkeys(map(name, left_out)))
        reason += f"; without {gone}, which this scale does not train"
    return replace(first, tested_as=words, reason=reason, replications=seen)


def foreseen(test: ClaimTest, study: PlannedStudy, name: Namer = name_of) -> str:
    """Why the runs of a test could decide nothing, whatever they give; empty where they might.

    What the specs alone tell: rates that do not fall, and rates at an end of what was tried.
    """
    plan = selection.headline(selection.planned(study), study)
    test, _ = restricted(test, plan)
    for workload in tidy.workloads(plan):
        for link in links_of(test):
            sides = [sided(plan, workload, side) for side in selections_of(link)]
            if not sides or any(side.empty for side in sides):
                break
            runs = set(pd.concat(sides)["run"])
            specs = [run.spec for run in study.runs if run.id in runs]
            if problem := _of_recipes(specs, study, name):
                return problem
        else:
            return ""
    return ""


def unfinished(
    test: ClaimTest,
    study: PlannedStudy,
    finished: Collection[str],
    seeds: Collection[int] | None = None,
) -> list[Run]:
    """Return the planned runs that a claim waits for, on the first workload that has all sides.

    Args:
        test: Machine form of the claim.
        study: The study; a run that another one starts from counts as a run of the claim.
        finished: Ids of the runs that are there.
        seeds: Seeds that the claim is read at; None for all that are planned.
    """
    plan = selection.headline(selection.planned(study), study)
    if seeds is not None:
        plan = plan[plan["seed"].isin(seeds)]
    test, _ = restricted(test, plan)
    named = [side for link in links_of(test) for side in selections_of(link)]
    for workload in tidy.workloads(plan):
        sides = [sided(plan, workload, side) for side in named]
        if is_named(workload, named[0]) and not any(side.empty for side in sides):
            return _with_first_phases(study, set(pd.concat(sides)["run"]), finished)
    return []


def _with_first_phases(
    study: PlannedStudy, wanted: set[str], finished: Collection[str]
) -> list[Run]:
    """Those of the wanted runs that are not finished, with the runs that they start from."""
    starts = {run.id: run.spec.starts_from for run in study.runs}
    missing, left = set(), wanted - set(finished)
    while left:
        missing |= left
        firsts = {start.run for run in left if (start := starts.get(run)) is not None}
        left = firsts - missing - set(finished)
    return [run for run in study.runs if run.id in missing]


def _of_recipes(specs: list[RunSpec], study: PlannedStudy, name: Namer) -> str:
    """What is wrong with the recipes of runs that are to be compared."""
    return preconditions.not_annealed(specs, published.policy()) or preconditions.at_end_of_rates(
        specs, trials.tried_rates(study.scale), name
    )


def _measured(records: pd.DataFrame, link: Comparison) -> pd.DataFrame:
    """The values that a comparison is about, one row per run."""
    return tidy.select(records, link.metric or "", split=link.split)


def _precondition(
    links: list[Comparison],
    rows: list[pd.DataFrame],
    workload: tidy.Workload,
    study: PlannedStudy,
    name: Namer,
) -> str:
    """Why the runs of a workload can decide nothing; empty where they can.

    Sides that name a model or dataset of their own need a dense model that learned it, too.
    """
    rules = published.policy()
    for link, measured in zip(links, rows, strict=True):
        metric = link.metric or ""
        named = selections_of(link)
        sides = [sided(measured, workload, side) for side in named]
        runs = set(pd.concat(sides)["run"])
        specs = [run.spec for run in study.runs if run.id in runs]
        # Where all methods tie, one of them can still be held against a published number.
        tells = len(sides) == len(sides_of(link))
        problem = (
            (_not_learned(metric, named, measured, workload, study, rules) if tells else "")
            or ("" if link.collapse else _not_trained(metric, named, sides, rules, name))
            or preconditions.at_chance(metric, sides, rules)
            or _of_recipes(specs, study, name)
        )
        if problem:
            return problem
    return ""


def _control(
    test: ClaimTest,
    links: Sequence[Comparison],
    rows: Sequence[pd.DataFrame],
    workload: tidy.Workload,
    name: Namer,
) -> str:
    """What the dense control of a comparison with a published number reaches, in words."""
    if test.no_dense_control is not None:
        return f"; without a dense control by the same recipe: {test.no_dense_control}"
    found = ""
    for link, measured in zip(links, rows, strict=True):
        if test.dense_control is None or "published" not in (link.b or {}):
            continue
        control = {"method": test.dense_control}
        values = sided(measured, workload, control)["value"]
        score = f"has {values.mean():.4g} {link.metric}" if len(values) else "has no finished run"
        found += f"; {name(control)}, by the same recipe, {score}"
    return found


def _not_learned(
    metric: str,
    sides: list[Mapping[str, Any]],
    rows: pd.DataFrame,
    workload: tidy.Workload,
    study: PlannedStudy,
    rules: Mapping[str, Any],
) -> str:
    """On which of the workloads that a comparison reads the dense model did not learn the task."""
    dense = rows[rows["method"].isin(dense_methods(study))]
    for side in sides:
        model = workload.model if side.get("model") == LARGER else side.get("model", workload.model)
        place = tidy.Workload(model, side.get("dataset", workload.dataset))
        here = sided(dense, place, {})
        problem = preconditions.not_learned(metric, here, rules, dataset=place.dataset)
        if problem:
            return problem if place == workload else f"{place}: {problem}"
    return ""


def _not_trained(
    metric: str,
    named: Sequence[Mapping[str, Any]],
    sides: Sequence[pd.DataFrame],
    rules: Mapping[str, Any],
    name: Namer,
) -> str:
    """Which side of a comparison ends where guessing does; asked of all but claims of collapse."""
    return preconditions.not_trained(
        metric, {name(side): own for side, own in zip(named, sides, strict=True)}, rules
    )


def dense_methods(study: PlannedStudy) -> set[str]:
    """Return the methods that are dense in all of their phases."""

    def is_dense(name: str) -> bool:
        method = study.methods[name]
        if method.sparsity is not None or method.transform is not None:
            return False
        return method.starts_from is None or is_dense(method.starts_from.method)

    return {name for name in study.methods if is_dense(name)}


def _on(
    links: list[Comparison],
    rows: list[pd.DataFrame],
    workload: tidy.Workload,
    study: PlannedStudy,
    name: Namer,
) -> Outcome:
    """All links within one workload; several hold if each does (the largest p counts)."""
    missing = [
        name(side)
        for link, measured in zip(links, rows, strict=True)
        for side in selections_of(link)
        if sided(measured, workload, side).empty
    ]
    where = f"{workload}"
    if missing:
        return Outcome("", verdict=NOT_TESTED, reason=f"{where}: {no_runs(missing, links)}")
    if problem := _precondition(links, rows, workload, study, name):
        return Outcome("", verdict=NOT_TESTED, reason=f"{where}: {problem}")
    pairs = [_pair(link, measured, workload) for link, measured in zip(links, rows, strict=True)]
    if any(pair.num_seeds == 0 for pair in pairs):
        return Outcome("", verdict=NOT_TESTED, reason=f"{where}: no seed is on both sides")
    runs = " ".join(
        _runs(link, measured, workload) for link, measured in zip(links, rows, strict=True)
    )
    several = len({link.metric for link in links}) > 1
    each = "; ".join(
        link_alone(*own, name, names_metric=several) for own in zip(links, pairs, strict=True)
    )
    each = each if len(links) > 1 else ""
    if same := [minus(link, name) for link, pair in zip(links, pairs) if _is_one(link, pair)]:
        reason = (
            f"{where}: {' and '.join(same)} is 0 at every seed, one setting under two names, so "
            "nothing is decided"
        )
        return Outcome("", verdict=INCONCLUSIVE, reason=reason, runs=runs, links=each)
    if len(links) == 1:
        compared, unit = difference(links[0], name), unit_of(links[0])
        return Outcome("", pairs[0], where, runs=runs, compared=compared, unit=unit)
    at, pair = weakest_link(pairs)
    reason = (
        f"{where}; p is that of the weakest of {len(links)} links, the opposite's p the "
        f"smallest of any link, times {len(links)}; the effect is of the link that decides"
    )
    compared, unit = difference(links[at], name), unit_of(links[at])
    return Outcome("", pair, reason, runs=runs, compared=compared, unit=unit, links=each)


def _is_one(link: Comparison, pair: stats.Paired) -> bool:
    """Whether the sides of a comparison that asks for a difference are the same runs twice."""
    asks = link.collapse is None and link.direction in ("less", "greater")
    return asks and pair.num_seeds > 1 and pair.effect == pair.low == pair.high == 0


def weakest_link(pairs: Sequence[stats.Paired]) -> tuple[int, stats.Paired]:
    """Return the comparison that decides whether all of several hold, and its place.

    All hold if the one with the largest p does (intersection-union, no correction needed). They
    are contradicted if any is, so its opposite p is the smallest times their number (Bonferroni).
    Effect and interval are those of the link that decides: the most contradicted one where the
    opposite has the smaller p.
    """
    weakest = max(range(len(pairs)), key=lambda index: _or(pairs[index].p, 1.0))
    against = min(range(len(pairs)), key=lambda index: _or(pairs[index].p_opposite, 1.0))
    p = _or(pairs[weakest].p, 1.0)
    opposite = min(1.0, _or(pairs[against].p_opposite, 1.0) * len(pairs))
    # The effect and interval shown are those of the test that the verdict rests on.
    at = against if opposite < p else weakest
    seeds = min(pair.num_seeds for pair in pairs)
    if math.isnan(pairs[weakest].p) and math.isnan(pairs[against].p_opposite):
        return weakest, replace(pairs[weakest], num_seeds=seeds)
    return at, replace(pairs[at], num_seeds=seeds, p=p, p_opposite=opposite)


def _pair(link: Comparison, rows: pd.DataFrame, workload: tidy.Workload) -> stats.Paired:
    measured = [_by_seed(sided(rows, workload, side), side) for side in selections_of(link)]
    if link.collapse is not None:
        (own,) = measured
        limit = link.collapse.below * median(own.values()) if own else 0.0
        collapsed = sum(value < limit for value in own.values())
        return stats.binomial(collapsed, len(own), link.collapse.rate)
    seeds, found = set().union(*measured), iter(measured)
    values = [
        dict.fromkeys(seeds, float(side["published"])) if "published" in side else next(found)
        for side in sides_of(link)
    ]
    if link.gaps is not None:
        values = [
            {seed: a[seed] - b[seed] for seed in a.keys() & b.keys()}
            for a, b in (values[:2], values[2:])
        ]
    a, b = values
    return stats.paired(a, b, direction=link.direction or "", margin=link.margin)


def _runs_of_sides(
    links: Sequence[Comparison],
    rows: Sequence[pd.DataFrame],
    workload: tidy.Workload,
    name: Namer,
) -> dict[str, list[str]]:
    """The runs of each side of a claim's links, by the side's name."""
    return {
        name(side): list(sided(measured, workload, side)["run"].unique())
        for link, measured in zip(links, rows, strict=True)
        for side in selections_of(link)
    }


def _by_seed(rows: pd.DataFrame, side: Mapping[str, Any]) -> dict[int, float]:
    """Seed to value; a seed that lacks one of several listed methods is left out."""
    for column, wanted in side.items():
        if isinstance(wanted, list):
            complete = rows.groupby("seed")[column].transform("nunique") == len(wanted)
            rows = rows[complete]
    return tidy.by_seed(rows)


def _runs(link: Comparison, rows: pd.DataFrame, workload: tidy.Workload) -> str:
    """The runs behind a comparison: those of the seeds that all sides have."""
    parts = [sided(rows, workload, side) for side in selections_of(link)]
    seeds = set.intersection(*(set(part["seed"]) for part in parts))
    both = pd.concat(parts)
    return " ".join(both[both["seed"].isin(seeds)]["run"])


def _or(value: float, default: float) -> float:
    return default if math.isnan(value) else value
