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
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from experiments import published
from experiments.analysis import select as selection
from experiments.analysis import stats
from experiments.analysis.claims import exact
from experiments.analysis.claims.comparison import (
    CONTRADICTED,
    HOLDS,
    INCONCLUSIVE,
    NOT_TESTED,
    Outcome,
    compare,
    verdict,
)
from experiments.store import tidy

#: Roles of claims that no trained run decides.
UNTRAINED = ("exact", "measured")
VERDICTS = (HOLDS, CONTRADICTED, INCONCLUSIVE, NOT_TESTED)
#: Role of a statement that takes no side: it is measured and gets no verdict.
OPEN = "open question"
OPEN_REASON = "measured, but the source takes no side, so there is nothing to hold"
COLUMNS = ["id", "role", "statement", "source", "published", "tested_as", "verdict", "compared"]
COLUMNS += ["effect", "low", "high", "interval", "p", "p_adjusted", "num_seeds", "reason"]
COLUMNS += ["links", "replications", "concerns", "runs"]
TRIALS = "the runs of this study choose settings: they are evidence for no claim"
ELSEWHERE = "this study does not list it; the study that does tests it"


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
