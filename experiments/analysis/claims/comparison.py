"""Comparisons of runs: one treatment against another, paired by seed, within a workload."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import pandas as pd

from experiments import published
from experiments.analysis import select as selection
from experiments.analysis import stats
from experiments.analysis.claims import policy, preconditions
from experiments.analysis.claims import sides as sides_of_claims
from experiments.analysis.claims.policy import CONTRADICTED, HOLDS, INCONCLUSIVE, NOT_TESTED
from experiments.specs import trials
from experiments.specs.planned import NO_STUDY, PlannedStudy
from experiments.specs.run import RunSpec
from experiments.specs.schema import ClaimTest, Comparison
from experiments.store import tidy

LARGER = "larger"
SIGNS = {"less": "<", "greater": ">", "differ": "differs from", "equal": "equals"}


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
    test, left_out = _restricted(test, plan)
    links = links_of(test)
    words = _words(test, links)
    rows = [_measured(records, link) for link in links]
    sides = [side for link in links for side in selections_of(link)]
    workloads = [
        workload
        for workload in tidy.workloads(plan)
        if _is_named(workload, sides[0])
        and all(not _sided(plan, workload, side).empty for side in sides)
    ]
    if not workloads:
        missing = [
            _name(side)
            for link, found in zip(links, rows, strict=True)
            for side in selections_of(link)
            if _sided(found, None, side).empty
        ]
        missing = missing or ["all sides on one model and dataset"]
        return Outcome(words, verdict=NOT_TESTED, reason=_missing(missing, links))
    first, *others = (_on(links, rows, workload, study) for workload in workloads)
    if first.pair is not None:
        taken = sides_of_claims.spent(records, study) if spent is None else spent
        runs = _runs_of_sides(links, rows, workloads[0])
        first = replace(first, sides=sides_of_claims.differences(runs, study, taken))
    seen = "; ".join(_replication(other) for other in others if other.pair is not None)
    reason = first.reason + _control(test, links, rows, workloads[0])
    if first.verdict == NOT_TESTED and (problem := foreseen(test, study)) not in reason:
        reason += f"; even with them no verdict: {problem}"
    if left_out:
        reason += f"; without {', '.join(left_out)}, which this scale does not train"
    return replace(first, tested_as=words, reason=reason, replications=seen)


def foreseen(test: ClaimTest, study: PlannedStudy) -> str:
    """Why the runs of a test could decide nothing, whatever they give; empty where they might.

    What the specs alone tell: rates that do not fall, and rates at an end of what was tried.
    """
    plan = selection.headline(selection.planned(study), study)
    test, _ = _restricted(test, plan)
    for workload in tidy.workloads(plan):
        for link in links_of(test):
            sides = [_sided(plan, workload, side) for side in selections_of(link)]
            if not sides or any(side.empty for side in sides):
                break
            runs = set(pd.concat(sides)["run"])
            specs = [run.spec for run in study.runs if run.id in runs]
            if problem := _of_recipes(specs, study):
                return problem
        else:
            return ""
    return ""


def _of_recipes(specs: list[RunSpec], study: PlannedStudy) -> str:
    """What is wrong with the recipes of runs that are to be compared."""
    return preconditions.not_annealed(specs, published.policy()) or preconditions.at_end_of_rates(
        specs, trials.tried_rates(study.scale)
    )


def _measured(records: pd.DataFrame, link: Comparison) -> pd.DataFrame:
    """The values that a comparison is about, one row per run."""
    return tidy.select(records, link.metric or "", split=link.split)


def links_of(test: ClaimTest) -> list[Comparison]:
    """The comparisons that a claim is made of, each with ``a`` and ``b`` or with ``gaps``.

    What a link does not say itself is as the claim's test says.
    """
    keys = ("metric", "split", "direction", "margin", "collapse")
    shared = {key: getattr(test, key) for key in keys}
    if test.order is not None:
        shared["direction"] = "less"
        pairs = zip(test.order, test.order[1:], strict=False)
        return [Comparison(**shared, a=a, b=b) for a, b in pairs]
    if test.every is not None:
        own = [link.model_dump(exclude_unset=True) for link in test.every]
        return [Comparison(**(shared | link)) for link in own]
    return [Comparison(**shared, a=test.a, b=test.b, gaps=test.gaps)]


def _restricted(test: ClaimTest, plan: pd.DataFrame) -> tuple[ClaimTest, list[str]]:
    """The part of a claim that the scale trains, and the names of what was left out.

    Only what is marked ``where_planned`` is left out: links one by one, a chain as a whole.
    """

    def absent(side: Mapping[str, Any]) -> bool:
        return "published" not in side and _sided(plan, None, side).empty

    if test.order is not None and test.where_planned:
        kept = [side for side in test.order if not absent(side)]
        if len(kept) < 2:
            return test, []
        gone = [side for side in test.order if absent(side)]
        return test.model_copy(update={"order": kept}), _names(gone)
    if test.every is not None:
        left_out = [
            link
            for link in test.every
            if link.where_planned and any(absent(side) for side in sides_of(link))
        ]
        links = [link for link in test.every if link not in left_out]
        if not links:
            return test, []
        gone = [side for link in left_out for side in sides_of(link) if absent(side)]
        return test.model_copy(update={"every": links}), _names(gone)
    return test, []


def _is_named(workload: tidy.Workload, side: Mapping[str, Any]) -> bool:
    """Whether a workload is the one that a selection names, as far as it names one."""
    model, dataset = side.get("model", LARGER), side.get("dataset", workload.dataset)
    return model in (LARGER, workload.model) and dataset == workload.dataset


def _names(sides: list[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(_name(side) for side in sides))


def _words(test: ClaimTest, links: list[Comparison]) -> str:
    if test.order is not None:
        words = f"{test.metric}: " + " < ".join(_name(side) for side in test.order)
    else:
        words = "; ".join(map(describe, links))
    return words if test.note is None else f"{words} ({test.note})"


def sides_of(link: Comparison) -> list[Mapping[str, Any]]:
    """Both sides of a comparison; all four where it is one of differences."""
    if link.gaps is not None:
        return [side for gap in link.gaps for side in gap]
    return [side for side in (link.a, link.b) if side is not None]


def selections_of(link: Comparison) -> list[Mapping[str, Any]]:
    """The sides of a comparison that are runs, not a number that a source published."""
    return [side for side in sides_of(link) if "published" not in side]


def _precondition(
    links: list[Comparison],
    rows: list[pd.DataFrame],
    workload: tidy.Workload,
    study: PlannedStudy,
) -> str:
    """Why the runs of a workload can decide nothing; empty where they can.

    Sides that name a model or dataset of their own need a dense model that learned it, too.
    """
    rules = published.policy()
    for link, measured in zip(links, rows, strict=True):
        metric = link.metric or ""
        named = selections_of(link)
        sides = [_sided(measured, workload, side) for side in named]
        runs = set(pd.concat(sides)["run"])
        specs = [run.spec for run in study.runs if run.id in runs]
        # Where all methods tie, one of them can still be held against a published number.
        tells = len(sides) == len(sides_of(link))
        problem = (
            (_not_learned(metric, named, measured, workload, study, rules) if tells else "")
            or ("" if link.collapse else _not_trained(metric, named, sides, rules))
            or preconditions.at_chance(metric, sides, rules)
            or _of_recipes(specs, study)
        )
        if problem:
            return problem
    return ""


def _control(
    test: ClaimTest,
    links: Sequence[Comparison],
    rows: Sequence[pd.DataFrame],
    workload: tidy.Workload,
) -> str:
    """What the dense control of a comparison with a published number reaches, in words."""
    if test.no_dense_control is not None:
        return f"; without a dense control by the same recipe: {test.no_dense_control}"
    found = ""
    for link, measured in zip(links, rows, strict=True):
        if test.dense_control is None or "published" not in (link.b or {}):
            continue
        values = _sided(measured, workload, {"method": test.dense_control})["value"]
        score = f"has {values.mean():.4g} {link.metric}" if len(values) else "has no finished run"
        found += f"; {test.dense_control}, by the same recipe, {score}"
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
        here = _sided(dense, place, {})
        problem = preconditions.not_learned(metric, here, rules, dataset=place.dataset)
        if problem:
            return problem if place == workload else f"{place}: {problem}"
    return ""


def _not_trained(
    metric: str,
    named: Sequence[Mapping[str, Any]],
    sides: Sequence[pd.DataFrame],
    rules: Mapping[str, Any],
) -> str:
    """Which side of a comparison ends where guessing does; asked of all but claims of collapse."""
    return preconditions.not_trained(
        metric, {_name(side): own for side, own in zip(named, sides, strict=True)}, rules
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
) -> Outcome:
    """All links within one workload; several hold if each does (the largest p counts)."""
    missing = [
        _name(side)
        for link, measured in zip(links, rows, strict=True)
        for side in selections_of(link)
        if _sided(measured, workload, side).empty
    ]
    where = f"{workload}"
    if missing:
        return Outcome("", verdict=NOT_TESTED, reason=f"{where}: {_missing(missing, links)}")
    if problem := _precondition(links, rows, workload, study):
        return Outcome("", verdict=NOT_TESTED, reason=f"{where}: {problem}")
    pairs = [_pair(link, measured, workload) for link, measured in zip(links, rows, strict=True)]
    if any(pair.num_seeds == 0 for pair in pairs):
        return Outcome("", verdict=NOT_TESTED, reason=f"{where}: no seed is on both sides")
    runs = " ".join(
        _runs(link, measured, workload) for link, measured in zip(links, rows, strict=True)
    )
    several = len({link.metric for link in links}) > 1
    each = "; ".join(_alone(*own, names_metric=several) for own in zip(links, pairs, strict=True))
    each = each if len(links) > 1 else ""
    if same := [_difference(link) for link, pair in zip(links, pairs) if _is_one(link, pair)]:
        reason = (
            f"{where}: {' and '.join(same)} is 0 at every seed, one setting under two names, so "
            "nothing is decided"
        )
        return Outcome("", verdict=INCONCLUSIVE, reason=reason, runs=runs, links=each)
    if len(links) == 1:
        return Outcome("", pairs[0], where, runs=runs, compared=difference(links[0]))
    at, pair = weakest_link(pairs)
    reason = (
        f"{where}; p is that of the weakest of {len(links)} links, the opposite's p the "
        f"smallest of any link, times {len(links)}; the effect is of the link that decides"
    )
    return Outcome("", pair, reason, runs=runs, compared=difference(links[at]), links=each)


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
    measured = [_by_seed(_sided(rows, workload, side), side) for side in selections_of(link)]
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
    links: Sequence[Comparison], rows: Sequence[pd.DataFrame], workload: tidy.Workload
) -> dict[str, list[str]]:
    """The runs of each side of a claim's links, by the side's name."""
    return {
        _name(side): list(_sided(measured, workload, side)["run"].unique())
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
    parts = [_sided(rows, workload, side) for side in selections_of(link)]
    seeds = set.intersection(*(set(part["seed"]) for part in parts))
    both = pd.concat(parts)
    return " ".join(both[both["seed"].isin(seeds)]["run"])


def _missing(names: list[str], links: list[Comparison]) -> str:
    metrics = " and ".join(dict.fromkeys(link.metric or "" for link in links))
    return f"this scale has no finished run of {' or '.join(dict.fromkeys(names))} with {metrics}"


def _replication(outcome: Outcome) -> str:
    pair = outcome.pair
    seeds = f"{pair.num_seeds} {'seed' if pair.num_seeds == 1 else 'seeds'}"
    return f"{outcome.reason.split(';')[0]}: {alone(pair)}, {_effect(pair)}, {seeds}"


def _alone(link: Comparison, pair: stats.Paired, *, names_metric: bool) -> str:
    metric = f"{link.metric}: " if names_metric else ""
    return f"{metric}{_difference(link)} {_effect(pair)} {alone(pair)}"


def _effect(pair: stats.Paired) -> str:
    interval = "" if math.isnan(pair.low) else f" [{pair.low:.3g}, {pair.high:.3g}]"
    return f"{pair.effect:+.3g}{interval}"


def _sided(
    rows: pd.DataFrame, workload: tidy.Workload | None, side: Mapping[str, Any]
) -> pd.DataFrame:
    """A selection within a workload; ``model: larger`` is of the dataset's other models.

    A model or dataset that the selection names stands in place of the workload's.
    """
    wanted = {key: value for key, value in side.items() if value != LARGER}
    if workload is not None:
        wanted.setdefault("dataset", workload.dataset)
        if side.get("model") == LARGER:
            rows = rows[rows["model"] != workload.model]
        else:
            wanted.setdefault("model", workload.model)
    for column, value in wanted.items():
        rows = rows[rows[column].isin(value if isinstance(value, list) else [value])]
    return rows


def _name(selection: Mapping[str, Any]) -> str:
    if "published" in selection:
        return f"the published {selection['published']:g}"
    return " ".join(
        " and ".join(map(str, wanted)) if isinstance(wanted, list) else str(wanted)
        for wanted in selection.values()
    )


def describe(link: Comparison) -> str:
    """Return the machine form of a comparison in words."""
    if link.collapse is not None:
        split = f"{link.split} " if link.split else ""
        return (
            f"{_collapsed(link)} with {split}{link.metric} below {link.collapse.below:g} of the "
            f"median, above {link.collapse.rate:g}"
        )
    sides = f" {SIGNS[link.direction or '']} ".join(_sides(link))
    size = link.margin
    margin = f" by at least {size:g}" if size > 0 else f", {-size:g} allowed" if size else ""
    margin = f" within {size:g}" if link.direction == "equal" else margin
    split = f"{link.split} " if link.split else ""
    return f"{split}{link.metric}: {sides}{margin}"


def difference(link: Comparison) -> str:
    """Return what the effect of a comparison is, in words."""
    return _collapsed(link) if link.collapse else f"{link.metric}: {_difference(link)}"


def _collapsed(link: Comparison) -> str:
    return f"share of seeds of {_name(link.a or {})}"


def _difference(link: Comparison) -> str:
    return " minus ".join(_sides(link))


def _sides(link: Comparison) -> list[str]:
    """Names of what is compared: two selections, or two differences of selections."""
    if link.gaps is not None:
        return [f"({_name(a)} minus {_name(b)})" for a, b in link.gaps]
    return [_name(side) for side in sides_of(link)]


def alone(pair: stats.Paired) -> str:
    """Return the word for a comparison that stands alone: no correction, from three seeds on."""
    if pair.num_seeds < stats.MIN_SEEDS or math.isnan(pair.p):
        return INCONCLUSIVE
    if 2 * min(pair.p, pair.p_opposite) > policy.ALPHA:
        return INCONCLUSIVE
    return HOLDS if pair.p <= pair.p_opposite else CONTRADICTED


def _or(value: float, default: float) -> float:
    return default if math.isnan(value) else value
