"""The claims ledger: one verdict for each published claim.

A claim's machine form stands in ``experiments/published/tests.yaml``. ``compare`` claims test one
selection of runs against another, paired by seed; ``gaps`` claims test one difference against
another; ``order`` claims test each neighbouring pair of a chain; ``every`` claims hold if each of
several comparisons does; ``exact`` claims are arithmetic or properties of the library, ``measured``
ones timings (``exact.py``); the rest say why no study tests them.

A comparison stays within one workload, a (model, dataset) pair, and uses headline runs only. The
verdict is that of the study's first workload with both sides; the others stand beside it as
replications.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from experiments import published
from experiments.analysis import select as selection
from experiments.analysis import stats
from experiments.analysis.claims import exact
from experiments.store import records as tidy

HOLDS, CONTRADICTED = "holds", "contradicted"
INCONCLUSIVE, NOT_TESTED = "inconclusive", "not tested"
#: Roles of claims that no trained run decides.
UNTRAINED = ("exact", "measured")
VERDICTS = (HOLDS, CONTRADICTED, INCONCLUSIVE, NOT_TESTED)
#: Role of a statement that takes no side: it is measured and gets no verdict.
OPEN = "open question"
OPEN_REASON = "measured, but the source takes no side, so there is nothing to hold"
ALPHA = 0.05
LARGER = "larger"
SIGNS = {"less": "<", "greater": ">", "differ": "differs from"}
COLUMNS = ["id", "role", "statement", "source", "published", "tested_as", "verdict", "compared"]
COLUMNS += ["effect", "low", "high", "interval", "p", "p_adjusted", "num_seeds", "reason"]
COLUMNS += ["links", "replications", "concerns", "runs"]
TRIALS = "the runs of this study choose settings: they are evidence for no claim"
ELSEWHERE = "this study does not list it; the study that does tests it"

Cell = tuple[str, str]


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


def evaluate(records: pd.DataFrame, study: dict[str, Any]) -> pd.DataFrame:
    """Return the ledger: every published claim, in the order of ``claims.csv``.

    Args:
        records: Tidy records of one study.
        study: The study, with ``claims`` naming its primary and exploratory ones; it tests no
            other, so that a claim has one verdict although studies share runs.

    Returns:
        One row per claim; the columns are ``COLUMNS``. Effects and intervals are differences in
        the metric's units, ``compared`` says of what; ``p_adjusted`` is Holm's over the primary
        claims, else ``p``. Intervals are not corrected for the number of tests, nor are the
        ``links`` that a claim consists of, each of which is tested as if it were alone.

    Raises:
        ValueError: If the study names a claim that does not exist.
    """
    roles = _roles(study)
    tests = published.tests()
    if study.get("trials"):
        tests = dict.fromkeys(tests, {"not_tested": TRIALS})
    elsewhere = {"not_tested": ELSEWHERE}
    tests = {
        name: {"claim": name, **test} if name in roles or "not_tested" in test else elsewhere
        for name, test in tests.items()
    }
    records = selection.headline(records, study)
    outcomes = {
        row.claim_id: _outcome(tests.get(row.claim_id, {}), records, study)
        for row in published.claims().itertuples()
    }
    corrected = _holm(outcomes, roles)
    rows = []
    for row in published.claims().itertuples():
        outcome = corrected[row.claim_id]
        test = tests.get(row.claim_id, {})
        role = next((kind for kind in UNTRAINED if kind in test), roles.get(row.claim_id, ""))
        role = OPEN if test.get("open") and role else role
        rows.append(_ledger_row(row, role, test, outcomes[row.claim_id], outcome))
    return pd.DataFrame(rows, columns=COLUMNS)


def _roles(study: dict[str, Any]) -> dict[str, str]:
    listed = study.get("claims") or {}
    roles = {name: role for role in ("exploratory", "primary") for name in listed.get(role, [])}
    unknown = sorted(set(roles) - set(published.claims()["claim_id"]))
    if unknown:
        raise ValueError(f"claims.{roles[unknown[0]]} names {unknown[0]}, which does not exist")
    return roles


def _outcome(test: Mapping[str, Any], records: pd.DataFrame, study: dict[str, Any]) -> Outcome:
    if "not_tested" in test or not test:
        reason = test.get("not_tested", "no test has been written for this claim")
        return Outcome("", verdict=NOT_TESTED, reason=reason)
    if name := test.get("exact") or test.get("measured"):
        check = exact.CHECKS[name](records, study, test)
        undecided = INCONCLUSIVE if check.is_inconclusive else NOT_TESTED
        verdict = {True: HOLDS, False: CONTRADICTED, None: undecided}[check.holds]
        return Outcome(test["tested_as"], verdict=verdict, reason=check.reason)
    return compare(test, records, study)


def compare(
    test: Mapping[str, Any], records: pd.DataFrame, study: dict[str, Any] | None = None
) -> Outcome:
    """Test a claim's links on the study's first workload with all sides, and on the others.

    Args:
        test: Machine form of the claim: a comparison, a chain, or several comparisons.
        records: Headline records.
        study: The study; its plan orders the workloads. None takes the records' own order.

    Returns:
        The outcome on the first workload. Others with at least one pair are its replications.
    """
    plan = selection.headline(selection.planned(study or {}), study or {})
    plan = records if plan.empty else plan
    test, left_out = _restricted(test, plan)
    links = _links(test)
    words = _words(test, links)
    rows = tidy.select(records, test["metric"], split=test.get("split"))
    sides = [side for link in links for side in _sides(link)]
    workloads = [
        cell
        for cell in tidy.cells(plan)
        if all(not _sided(plan, cell, side).empty for side in sides)
    ]
    if not workloads:
        missing = [_name(side) for side in sides if _sided(rows, None, side).empty]
        missing = missing or ["all sides on one model and dataset"]
        return Outcome(words, verdict=NOT_TESTED, reason=_missing(missing, test["metric"]))
    first, *others = (_on(test, links, rows, cell) for cell in workloads)
    seen = "; ".join(_replication(other) for other in others if other.pair is not None)
    reason = first.reason
    if left_out:
        reason += f"; without {', '.join(left_out)}, which this scale does not train"
    return replace(first, tested_as=words, reason=reason, replications=seen)


def _links(test: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The comparisons that a claim is made of, each with ``a`` and ``b`` or with ``gaps``."""
    if "order" in test:
        pairs = zip(test["order"], test["order"][1:], strict=False)
        return [{"a": a, "b": b, "direction": "less"} for a, b in pairs]
    if "every" in test:
        return [{"direction": test.get("direction"), **link} for link in test["every"]]
    return [dict(test)]


def _restricted(test: Mapping[str, Any], plan: pd.DataFrame) -> tuple[Mapping[str, Any], list[str]]:
    """The part of a claim that the scale trains, and the names of what was left out.

    Only what is marked ``where_planned`` is left out: links one by one, a chain as a whole.
    """

    def absent(side: Mapping[str, Any]) -> bool:
        return _sided(plan, None, side).empty

    if "order" in test and test.get("where_planned"):
        kept = [side for side in test["order"] if not absent(side)]
        gone = [side for side in test["order"] if absent(side)]
        return ({**test, "order": kept}, _names(gone)) if len(kept) > 1 else (test, [])
    if "every" in test:
        links = test["every"]
        kept = [
            link
            for link in links
            if not (link.get("where_planned") and any(absent(side) for side in _sides(link)))
        ]
        gone = [side for link in links if link not in kept for side in _sides(link)]
        gone = [side for side in gone if absent(side)]
        return ({**test, "every": kept}, _names(gone)) if kept else (test, [])
    return test, []


def _names(sides: list[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(_name(side) for side in sides))


def _words(test: Mapping[str, Any], links: list[dict[str, Any]]) -> str:
    if "order" in test:
        words = f"{test['metric']}: " + " < ".join(_name(side) for side in test["order"])
    else:
        words = "; ".join(describe({**test, **link}) for link in links)
    return f"{words} ({test['note']})" if "note" in test else words


def _sides(link: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if "gaps" in link:
        return [side for gap in link["gaps"] for side in gap]
    return [link["a"], link["b"]]


def _on(
    test: Mapping[str, Any], links: list[dict[str, Any]], rows: pd.DataFrame, cell: Cell
) -> Outcome:
    """All links within one workload; several hold if each does (the largest p counts)."""
    sides = [side for link in links for side in _sides(link)]
    missing = [_name(side) for side in sides if _sided(rows, cell, side).empty]
    where = f"{cell[0]} on {cell[1]}"
    if missing:
        return Outcome(
            "", verdict=NOT_TESTED, reason=f"{where}: {_missing(missing, test['metric'])}"
        )
    for side, least in test.get("requires", {}).items():
        found = _sided(rows, cell, test[side])["value"].mean()
        if not found > least:
            reason = (
                f"{where}: {_name(test[side])} reaches {found:.3g} {test['metric']}, and the test "
                f"says something only above {least:g}"
            )
            return Outcome("", verdict=NOT_TESTED, reason=reason)
    pairs = [_pair({**test, **link}, rows, cell) for link in links]
    if any(pair.num_seeds == 0 for pair in pairs):
        return Outcome("", verdict=NOT_TESTED, reason=f"{where}: no seed is on both sides")
    runs = " ".join(_runs(link, rows, cell) for link in links)
    if len(links) == 1:
        return Outcome(
            "", pairs[0], where, runs=runs, compared=difference(links[0], test["metric"])
        )
    at, pair = weakest_link(pairs)
    reason = (
        f"{where}; effect and p are those of the weakest of {len(links)} links, the "
        f"opposite's p is the smallest of any link, times {len(links)}"
    )
    each = "; ".join(map(_alone, links, pairs))
    compared = difference(links[at], test["metric"])
    return Outcome("", pair, reason, runs=runs, compared=compared, links=each)


def weakest_link(pairs: Sequence[stats.Paired]) -> tuple[int, stats.Paired]:
    """Return the comparison that decides whether all of several hold, and its place.

    All hold if the one with the largest p does (intersection-union, no correction needed). They
    are contradicted if any is, so its opposite p is the smallest times their number (Bonferroni).
    """
    at = max(range(len(pairs)), key=lambda index: _or(pairs[index].p, 1.0))
    against = min(_or(pair.p_opposite, 1.0) for pair in pairs)
    seeds = min(pair.num_seeds for pair in pairs)
    opposite = min(1.0, against * len(pairs))
    return at, replace(pairs[at], num_seeds=seeds, p_opposite=opposite)


def _pair(link: Mapping[str, Any], rows: pd.DataFrame, cell: Cell) -> stats.Paired:
    values = [_by_seed(_sided(rows, cell, side), side) for side in _sides(link)]
    if "gaps" in link:
        values = [
            {seed: a[seed] - b[seed] for seed in a.keys() & b.keys()}
            for a, b in (values[:2], values[2:])
        ]
    a, b = values
    return stats.paired(a, b, direction=link["direction"], margin=link.get("margin", 0.0))


def _by_seed(rows: pd.DataFrame, side: Mapping[str, Any]) -> dict[int, float]:
    """Seed to value; a seed that lacks one of several listed methods is left out."""
    for column, wanted in side.items():
        if isinstance(wanted, list):
            complete = rows.groupby("seed")[column].transform("nunique") == len(wanted)
            rows = rows[complete]
    return tidy.by_seed(rows)


def _runs(link: Mapping[str, Any], rows: pd.DataFrame, cell: Cell) -> str:
    """The runs behind a comparison: those of the seeds that all sides have."""
    parts = [_sided(rows, cell, side) for side in _sides(link)]
    seeds = set.intersection(*(set(part["seed"]) for part in parts))
    both = pd.concat(parts)
    return " ".join(both[both["seed"].isin(seeds)]["run"])


def _missing(names: list[str], metric: str) -> str:
    names = list(dict.fromkeys(names))
    return f"this scale has no finished run of {' or '.join(names)} with {metric}"


def _replication(outcome: Outcome) -> str:
    pair = outcome.pair
    seeds = f"{pair.num_seeds} {'seed' if pair.num_seeds == 1 else 'seeds'}"
    return f"{outcome.reason.split(';')[0]}: {verdict(pair)[0]}, {_effect(pair)}, {seeds}"


def _alone(link: Mapping[str, Any], pair: stats.Paired) -> str:
    return f"{_difference(link)} {_effect(pair)} {verdict(pair)[0]}"


def _effect(pair: stats.Paired) -> str:
    interval = "" if math.isnan(pair.low) else f" [{pair.low:.3g}, {pair.high:.3g}]"
    return f"{pair.effect:+.3g}{interval}"


def _sided(rows: pd.DataFrame, cell: Cell | None, side: Mapping[str, Any]) -> pd.DataFrame:
    """A selection within a workload, or with ``model: larger`` from the dataset's other models."""
    wanted = {key: value for key, value in side.items() if value != LARGER}
    if cell is not None:
        is_model = rows["model"] == cell[0]
        is_other = side.get("model") == LARGER
        rows = rows[(rows["dataset"] == cell[1]) & (~is_model if is_other else is_model)]
    for column, value in wanted.items():
        rows = rows[rows[column].isin(value if isinstance(value, list) else [value])]
    return rows


def _name(selection: Mapping[str, Any]) -> str:
    return " ".join(
        " and ".join(map(str, wanted)) if isinstance(wanted, list) else str(wanted)
        for wanted in selection.values()
    )


def describe(test: Mapping[str, Any]) -> str:
    """Return the machine form of a comparison in words."""
    sign = SIGNS[test["direction"]]
    if "gaps" in test:
        sides = f" {sign} ".join(f"({_name(a)} minus {_name(b)})" for a, b in test["gaps"])
    else:
        sides = f"{_name(test['a'])} {sign} {_name(test['b'])}"
    size = test.get("margin", 0.0)
    margin = f" by at least {size}" if size > 0 else f", {-size} allowed" if size else ""
    split = f"{test['split']} " if test.get("split") else ""
    return f"{split}{test['metric']}: {sides}{margin}"


def difference(link: Mapping[str, Any], metric: str) -> str:
    """Return what the effect of a comparison is, in words."""
    return f"{metric}: {_difference(link)}"


def _difference(link: Mapping[str, Any]) -> str:
    if "gaps" in link:
        return " minus ".join(f"({_name(a)} minus {_name(b)})" for a, b in link["gaps"])
    return f"{_name(link['a'])} minus {_name(link['b'])}"


def _holm(outcomes: dict[str, Outcome], roles: dict[str, str]) -> dict[str, Outcome]:
    """Adjust both p values of the primary claims; one without a test still counts as one."""
    primary = [name for name, role in roles.items() if role == "primary"]
    adjusted: dict[str, dict[str, float]] = {}
    for field in ("p", "p_opposite"):
        raw = {
            name: getattr(outcomes[name].pair, field) if outcomes[name].pair else math.nan
            for name in primary
        }
        adjusted[field] = stats.holm(raw)
    corrected = dict(outcomes)
    for name in primary:
        pair = outcomes[name].pair
        if pair is not None:
            values = {field: adjusted[field][name] for field in adjusted}
            corrected[name] = replace(outcomes[name], pair=replace(pair, **values))
    return corrected


def verdict(pair: stats.Paired) -> tuple[str, str]:
    """Return the verdict of a comparison and the sentence that explains it.

    The claim's own direction is tested one-sided; against it the two-sided 95% interval must
    exclude what the claim allows, since nobody foretold that direction.
    """
    if pair.num_seeds < stats.MIN_SEEDS:
        noun = "seed" if pair.num_seeds == 1 else "seeds"
        return INCONCLUSIVE, f"{pair.num_seeds} paired {noun}; a verdict needs {stats.MIN_SEEDS}"
    if math.isnan(pair.p):
        return INCONCLUSIVE, "all differences are equal, so no t test exists"
    if pair.p < ALPHA:
        return HOLDS, f"p = {pair.p:.2g} for the claim"
    if pair.p_opposite < ALPHA / 2:
        return CONTRADICTED, f"p = {pair.p_opposite:.2g} for the opposite"
    return INCONCLUSIVE, f"p = {pair.p:.2g} for the claim, {pair.p_opposite:.2g} for the opposite"


def _ledger_row(
    claim: Any, role: str, test: Mapping[str, Any], raw: Outcome, outcome: Outcome
) -> dict[str, Any]:
    row = {
        "id": claim.claim_id,
        "role": role,
        "statement": claim.statement,
        "source": claim.provenance or claim.source_id,
        "published": claim.published,
        "tested_as": outcome.tested_as,
        "verdict": outcome.verdict,
        "compared": outcome.compared,
        "num_seeds": 0,
        "reason": outcome.reason,
        "links": outcome.links,
        "replications": outcome.replications,
        "concerns": " ".join(test.get("concerns", [])),
        "runs": outcome.runs,
    }
    if outcome.pair is not None:
        pair = outcome.pair
        word, why = verdict(pair)
        interval = "" if math.isnan(pair.low) else f"[{pair.low:.4g}, {pair.high:.4g}]"
        if test.get("open"):
            word, why = NOT_TESTED, f"{OPEN_REASON}; p = {pair.p:.2g} for a difference"
        if (pair.p, pair.p_opposite) != (raw.pair.p, raw.pair.p_opposite):
            why += ", Holm-corrected"
        row |= {"verdict": word, "reason": f"{outcome.reason}: {why}", "effect": pair.effect}
        row |= {"low": pair.low, "high": pair.high, "interval": interval}
        row |= {"p": raw.pair.p, "p_adjusted": pair.p, "num_seeds": pair.num_seeds}
    return row


def _or(value: float, default: float) -> float:
    return default if math.isnan(value) else value


def write(records: pd.DataFrame, study: dict[str, Any], path: Any) -> None:
    """Write the ledger as CSV."""
    evaluate(records, study).to_csv(path, index=False)


def read(path: Any) -> pd.DataFrame:
    """Read a ledger; empty text cells are empty strings.

    Raises:
        ValueError: If it is no such table; the message names the file.
    """
    text = ["id", "role", "statement", "source", "published", "tested_as", "verdict", "compared"]
    text += ["interval", "reason", "links", "replications", "concerns", "runs"]
    ledger = tidy.read_table(path, COLUMNS, dtype=dict.fromkeys(text, "string"))
    return ledger.fillna(dict.fromkeys(text, ""))
