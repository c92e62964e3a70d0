"""The claims ledger: one verdict for each published claim.

A claim's machine form stands in ``experiments/published/tests.yaml``. ``compare`` claims test one
selection of runs against another, paired by seed; ``order`` claims test each neighbouring pair of
a chain; ``every`` claims hold if each of several comparisons does; ``exact`` claims are arithmetic
on published values or records (``exact.py``); the rest say why no study tests them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from experiments.analysis import exact, published, stats
from experiments.analysis import records as tidy

HOLDS, CONTRADICTED = "holds", "contradicted"
INCONCLUSIVE, NOT_TESTED = "inconclusive", "not tested"
VERDICTS = (HOLDS, CONTRADICTED, INCONCLUSIVE, NOT_TESTED)
ALPHA = 0.05
LARGER = "larger"
SIGNS = {"less": "<", "greater": ">", "differ": "differs from"}
COLUMNS = ["id", "role", "statement", "source", "published", "tested_as", "verdict", "effect"]
COLUMNS += ["low", "high", "interval", "p", "p_adjusted", "num_seeds", "reason", "concerns"]
COLUMNS += ["runs"]


@dataclass(frozen=True)
class Outcome:
    """What a test found, before any correction for the number of tests."""

    tested_as: str
    pair: stats.Paired | None = None
    reason: str = ""
    verdict: str | None = None
    runs: str = ""


def evaluate(records: pd.DataFrame, study: dict[str, Any]) -> pd.DataFrame:
    """Return the ledger: every published claim, in the order of ``claims.csv``.

    Args:
        records: Tidy records of one study.
        study: The study, with ``claims`` naming its primary and exploratory ones.

    Returns:
        One row per claim; the columns are ``COLUMNS``. Effects and intervals are differences in
        the metric's units; ``p_adjusted`` is Holm's over the primary claims, else ``p``.

    Raises:
        ValueError: If the study names a claim that does not exist.
    """
    roles = _roles(study)
    tests = published.tests()
    outcomes = {
        row.claim_id: _outcome(row.claim_id, tests.get(row.claim_id, {}), records)
        for row in published.claims().itertuples()
    }
    corrected = _holm(outcomes, roles)
    rows = []
    for row in published.claims().itertuples():
        outcome = corrected[row.claim_id]
        test = tests.get(row.claim_id, {})
        role = roles.get(row.claim_id) or _default_role(outcome)
        rows.append(_ledger_row(row, role, test, outcomes[row.claim_id], outcome))
    return pd.DataFrame(rows, columns=COLUMNS)


def _roles(study: dict[str, Any]) -> dict[str, str]:
    listed = study.get("claims") or {}
    roles = {name: role for role in ("exploratory", "primary") for name in listed.get(role, [])}
    unknown = sorted(set(roles) - set(published.claims()["claim_id"]))
    if unknown:
        raise ValueError(f"claims.{roles[unknown[0]]} names {unknown[0]}, which does not exist")
    return roles


def _default_role(outcome: Outcome) -> str:
    if outcome.pair is not None:
        return "exploratory"
    return "exact" if outcome.verdict in (HOLDS, CONTRADICTED) else ""


def _outcome(name: str, test: Mapping[str, Any], records: pd.DataFrame) -> Outcome:
    if "not_tested" in test or not test:
        reason = test.get("not_tested", "no test has been written for this claim")
        return Outcome("", verdict=NOT_TESTED, reason=reason)
    if "exact" in test:
        check = exact.CHECKS[test["exact"]](records)
        verdict = {True: HOLDS, False: CONTRADICTED, None: NOT_TESTED}[check.holds]
        return Outcome(test["tested_as"], verdict=verdict, reason=check.reason)
    if "order" in test:
        pairs = zip(test["order"], test["order"][1:], strict=False)
        links = [{"a": a, "b": b, "direction": "less"} for a, b in pairs]
        words = f"{test['metric']}: " + " < ".join(_name(side) for side in test["order"])
        return _every(test, links, words, records)
    if "every" in test:
        links = [{"direction": test.get("direction"), **link} for link in test["every"]]
        words = "; ".join(describe({**test, **link}) for link in links)
        return _every(test, links, words, records)
    return compare(test, records)


def compare(test: Mapping[str, Any], records: pd.DataFrame) -> Outcome:
    """Test one selection of runs against another on the cell with most paired seeds."""
    rows = tidy.select(records, test["metric"], split=test.get("split"))
    words = describe(test)
    missing = [_name(test[side]) for side in ("a", "b") if _sided(rows, None, test[side]).empty]
    if missing:
        reason = f"this scale has no finished run of {' or '.join(missing)} with this metric"
        return Outcome(words, verdict=NOT_TESTED, reason=reason)
    best: Outcome | None = None
    for cell in tidy.cells(rows):
        a, b = _sided(rows, cell, test["a"]), _sided(rows, cell, test["b"])
        pair = stats.paired(
            tidy.by_seed(a),
            tidy.by_seed(b),
            direction=test["direction"],
            margin=test.get("margin", 0.0),
        )
        if pair.num_seeds and (best is None or pair.num_seeds > best.pair.num_seeds):
            seeds = set(a["seed"]) & set(b["seed"])
            both = pd.concat([a, b])
            runs = " ".join(both[both["seed"].isin(seeds)]["run"])
            best = Outcome(words, pair, f"{cell[0]} on {cell[1]}", runs=runs)
    return best or Outcome(words, verdict=NOT_TESTED, reason="no seed is on both sides")


def _every(
    test: Mapping[str, Any], parts: list[dict[str, Any]], words: str, records: pd.DataFrame
) -> Outcome:
    """Several comparisons hold if each does (intersection-union: the largest p counts)."""
    links = [compare({**test, **part}, records) for part in parts]
    untested = [link for link in links if link.pair is None]
    if untested:
        return replace(untested[0], tested_as=words)
    weakest = max(links, key=lambda link: _or(link.pair.p, 1.0))
    against = min(_or(link.pair.p_opposite, 1.0) for link in links)
    pair = replace(
        weakest.pair,
        num_seeds=min(link.pair.num_seeds for link in links),
        p_opposite=min(1.0, against * len(links)),
    )
    reason = f"{weakest.reason}; effect and p are those of the weakest link ({weakest.tested_as})"
    return Outcome(words, pair, reason, runs=" ".join(link.runs for link in links))


def _sided(
    rows: pd.DataFrame, cell: tuple[str, str] | None, selection: Mapping[str, Any]
) -> pd.DataFrame:
    """A selection within a cell, or with ``model: larger`` from the dataset's other models."""
    wanted = {key: value for key, value in selection.items() if value != LARGER}
    if cell is not None:
        is_model = rows["model"] == cell[0]
        is_other = selection.get("model") == LARGER
        rows = rows[(rows["dataset"] == cell[1]) & (~is_model if is_other else is_model)]
    return _selected(rows, wanted)


def _selected(rows: pd.DataFrame, selection: Mapping[str, Any]) -> pd.DataFrame:
    for column, wanted in selection.items():
        values = wanted if isinstance(wanted, list) else [wanted]
        rows = rows[rows[column].isin(values)]
    return rows


def _name(selection: Mapping[str, Any]) -> str:
    return " ".join(
        " and ".join(map(str, wanted)) if isinstance(wanted, list) else str(wanted)
        for wanted in selection.values()
    )


def describe(test: Mapping[str, Any]) -> str:
    """Return the machine form of a comparison in words."""
    sides = f"{_name(test['a'])} {SIGNS[test['direction']]} {_name(test['b'])}"
    size = test.get("margin", 0.0)
    margin = f" by at least {size}" if size > 0 else f", {-size} allowed" if size else ""
    split = f"{test['split']} " if test.get("split") else ""
    return f"{split}{test['metric']}: {sides}{margin}"


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
    """Return the verdict of a comparison and the sentence that explains it."""
    if pair.num_seeds < stats.MIN_SEEDS:
        return INCONCLUSIVE, f"{pair.num_seeds} paired seeds; a verdict needs {stats.MIN_SEEDS}"
    if math.isnan(pair.p):
        return INCONCLUSIVE, "all differences are equal, so no t test exists"
    if pair.p < ALPHA:
        return HOLDS, f"p = {pair.p:.2g} for the claim"
    if pair.p_opposite < ALPHA:
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
        "num_seeds": 0,
        "reason": outcome.reason,
        "concerns": " ".join(test.get("concerns", [])),
        "runs": outcome.runs,
    }
    if outcome.pair is not None:
        pair = outcome.pair
        word, why = verdict(pair)
        interval = "" if math.isnan(pair.low) else f"[{pair.low:.4g}, {pair.high:.4g}]"
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
    """Read a ledger; empty text cells are empty strings."""
    text = ["id", "role", "statement", "source", "published", "tested_as", "verdict", "interval"]
    text += ["reason", "concerns", "runs"]
    ledger = pd.read_csv(path, dtype=dict.fromkeys(text, "string"))
    return ledger.fillna(dict.fromkeys(text, ""))
