"""All findings of a scale: each comparison of the nine results and of the supporting claims,
judged."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass, replace

import pandas as pd

from experiments.findings import claim as claims
from experiments.findings import pool
from experiments.findings.claim import Check, Claim, Comparison, Outcome, Place
from experiments.findings.estimate import NO_TEST, Arm, Estimate, Word, estimate, judge
from experiments.findings.evidence import Evidence
from experiments.findings.gate import Gate, check_fairness

AGREES, DIFFERS = "check: agrees", "check: differs"
#: Relative difference up to which computed numbers agree with published ones.
MOST_APART = 0.01
#: Seeds of each arm below which a workload is no primary one.
LEAST_SEEDS = 2


@dataclass(frozen=True)
class Finding:
    """A comparison with what was found.

    Attributes:
        a: The methods that were compared with others.
        unseen: The estimate from seeds that nobody had read when n was fixed, where some had.
        target: Published effect in the unit of ours; without one the smallest of interest.
    """

    claim: Claim
    comparison: Comparison
    word: Word
    place: Place | None = None
    estimate: Estimate | None = None
    unseen: Estimate | None = None
    unseen_word: Word | None = None
    target: float = math.nan
    gate: Gate = Gate()
    trend: tuple[tuple[str, Estimate], ...] = ()
    a: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()

    @property
    def is_fair(self) -> bool:
        """Whether the estimate may be read."""
        return (
            self.estimate is not None and self.estimate.has_interval and self.word.word != NO_TEST
        )

    @property
    def ratio(self) -> tuple[float, float, float]:
        """Effect and interval as multiples of the published one; NaN without a readable one."""
        published = self.comparison.published
        if self.estimate is None or published is None or published.value is None:
            return math.nan, math.nan, math.nan
        low, high = sorted((self.estimate.low / self.target, self.estimate.high / self.target))
        return self.estimate.effect / self.target, low, high

    @property
    def is_cost(self) -> bool:
        """Whether the published effect is a harm, so that a smaller one is welcome."""
        direction, outcome = self.comparison.direction, self.claim.outcome
        return bool(direction and outcome and direction != outcome.better)

    @property
    def share(self) -> tuple[float, float, float]:
        """Effect and interval in percent of arm b."""
        if self.estimate is None:
            return math.nan, math.nan, math.nan
        e, base = self.estimate, abs(self.estimate.means[1]) / 100
        return e.effect / base, e.low / base, e.high / base


def find(claim: Claim, comparison: Comparison, evidence: Evidence) -> Finding:
    """Judge one comparison on the primary workload of a scale."""
    outcome = claim.outcome
    assert outcome is not None
    places = comparison.places.get(evidence.scale, [])  # type: ignore[call-overload]
    values = evidence.values(outcome)
    for place in places:
        found = _strata(comparison, place, evidence, values, _least(claim, place))
        if found is not None:
            break
    else:
        reason = "no run of this scale compares these arms"
        if places and (places[-1].registered or len(evidence.at(places[-1]))):
            reason = "its runs are not finished"
        return Finding(claim, comparison, Word(NO_TEST, reason=reason))
    rows, cells, strata = found
    arms = [arm for pair in strata for arm in pair]
    e = estimate(cells, strata, sign=outcome.sign)
    direction = comparison.direction or outcome.better
    target = claim.interest if direction == "higher" else -claim.interest
    published = comparison.published
    size = ""
    if published is not None and published.value is not None:
        target = published.value * (e.means[1] / published.of if published.of else 1.0)
        size = "published share of our loss" if published.of else "published effect"
    costs = comparison.equal_flops
    rates = place.rates or claim.rates
    gate = check_fairness(evidence, rows, arms, outcome, rates=rates, equal_flops=costs)
    word = Word(NO_TEST, reason=gate.failed)
    if not gate.failed:
        word = judge(e, target, published=size)
    unseen = unseen_word = None
    if place.seen:
        fresh = {
            arm: {seed: value for seed, value in by_seed.items() if seed not in place.seen}
            for arm, by_seed in cells.items()
        }
        if all(len(fresh[arm]) >= LEAST_SEEDS for arm in arms):
            fresh = {arm: seeds for arm, seeds in fresh.items() if seeds}
            unseen = estimate(fresh, strata, sign=outcome.sign)
            unseen_word = judge(unseen, target, published=size)
    compared = {(arm.model, arm.method, arm.recipe) for arm in arms}
    keys = zip(rows["model"], rows["method"], rows["recipe"], strict=True)
    own = rows[[key in compared for key in keys]]
    sparsity = own["sparsity"].max()
    if sparsity > 0:  # the title's is the source's, which small scales may not share
        title = re.sub(r"\d+% sparse", f"{100 * sparsity:g}% sparse", claim.title)
        claim = claim.model_copy(update={"title": title})
    return Finding(
        claim,
        comparison,
        word,
        place,
        e,
        unseen,
        unseen_word,
        target,
        gate,
        trend=_trend(claim, comparison, evidence, outcome),
        a=tuple({a.method for a, _ in strata}),
        runs=tuple(own.loc[own["run"].isin(values.index), "run"]),
    )


def _strata(
    comparison: Comparison, place: Place, evidence: Evidence, values: pd.Series, least: int
) -> tuple[pd.DataFrame, dict[Arm, dict[int, float]], list[tuple[Arm, Arm]]] | None:
    """The runs of a workload, their cells, and arms a and b on each model that has both."""
    rows = evidence.at(place)
    cells, strata = evidence.cells(rows, values), []
    for model in place.models:
        a = _arm(cells, model, place.a or comparison.a)
        b = _arm(cells, place.b_model or model, place.b or comparison.b)
        if a is not None and b is not None:
            strata.append((a, b))
    methods = {arm.method for pair in strata for arm in pair}
    rows = rows[rows["data"].isin(rows.loc[rows["method"].isin(methods), "data"])]
    cells = evidence.cells(rows, values)
    for side in (0, 1):
        if sum(len(cells[pair[side]]) for pair in strata) < least:
            return None
    return rows, cells, strata


def _arm(cells: dict[Arm, dict[int, float]], model: str, methods: list[str]) -> Arm | None:
    """The arm of the first method that has runs: the one with most seeds."""
    for method in methods:
        own = [arm for arm in cells if arm.model == model and arm.method == method]
        if own:
            return max(own, key=lambda arm: len(cells[arm]))
    return None


def _least(claim: Claim, place: Place) -> int:
    """Seeds of each arm that a workload needs: what is registered is read when all have ended."""
    return max(LEAST_SEEDS, place.planned or claim.planned) if place.registered else LEAST_SEEDS


def _trend(
    claim: Claim, comparison: Comparison, evidence: Evidence, outcome: Outcome
) -> tuple[tuple[str, Estimate], ...]:
    """The comparison at other sparsities and budgets, where their runs are finished."""
    found = []
    for place in comparison.trend.get(evidence.scale, []):  # type: ignore[call-overload]
        own = evidence.elsewhere[place.scale] if place.scale else evidence
        there = _strata(comparison, place, own, own.values(outcome), _least(claim, place))
        if there is not None:
            found.append((place.label, estimate(there[1], there[2], sign=outcome.sign)))
    return tuple(found)


def _checked(claim: Claim, check: Check, evidence: Evidence) -> Finding:
    """Compare computed numbers with published ones."""
    if claim.name not in evidence.computed:
        reason = f"{check.computation} was not computed here"
        return Finding(claim, claim, Word(NO_TEST, reason=reason))
    rows = evidence.computed[claim.name].query(check.rows)
    apart = (rows[check.ours] / rows[check.published] - 1).abs()
    word = AGREES if len(rows) and apart.max() <= MOST_APART else DIFFERS
    size = f"at most {100 * apart.max():.2g}% apart (allowed {100 * MOST_APART:g}%)"
    reason = f"{len(rows)} {check.says}, {size}"
    if check.shown:
        values = rows.query(check.shown)[check.ours]
        reason = f"{' and '.join(f'{value:.3f}' for value in values)}; {reason}"
    return Finding(claim, claim, Word(word, reason=reason))


def of_claim(claim: Claim, evidence: Evidence) -> list[Finding]:
    """The findings of a claim: one of a check, else one per comparison."""
    if claim.check is not None:
        return [_checked(claim, claim.check, evidence)]
    found = [find(claim, comparison, evidence) for comparison in claim.comparisons()]
    if claim.never:
        found = [replace(each, word=Word(NO_TEST, reason=claim.never)) for each in found]
    return found


@functools.lru_cache(maxsize=4)
def nine(evidence: Evidence, study: str = "") -> tuple[Finding, ...]:
    """The nine results at a scale, or those of a study, in the order of the sources."""
    own = [claim for claim in claims.nine() if study in ("", claim.study)]
    return tuple(of_claim(claim, evidence)[0] for claim in own)


@functools.lru_cache(maxsize=4)
def supporting(evidence: Evidence, study: str) -> list[list[Finding]]:
    """The supporting claims at a scale, or those of a study."""
    own = [claim for claim in claims.supporting() if study in ("", claim.study)]
    return [of_claim(claim, evidence) for claim in own]


def named(evidence: Evidence, study: str = "") -> dict[str, Finding]:
    """Findings by the name that an answer uses: their claim's, of several links with a number."""
    found = {own.claim.name: own for own in nine(evidence, study)}
    for group in supporting(evidence, study):
        for number, own in enumerate(group, 1):
            found[own.claim.name + (f"-{number}" if len(group) > 1 else "")] = own
    return found


@functools.lru_cache(maxsize=4)
def forest(evidence: Evidence) -> dict[tuple[str, str], pool.Pooled]:
    """The pooled comparisons over workloads, of those with any."""
    found = {pair: pool.over_workloads(evidence, *pair) for pair in pool.PAIRS}
    return {pair: pool.random_effects(effects) for pair, effects in found.items() if effects}
