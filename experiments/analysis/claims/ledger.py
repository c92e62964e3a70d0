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
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pandas as pd

from experiments import published
from experiments.analysis import select as selection
from experiments.analysis.claims import (
    comparison,
    exact,
    policy,
    sides,
)
from experiments.analysis.claims.comparison import Outcome
from experiments.analysis.claims.policy import (
    CONTRADICTED,
    HOLDS,
    INCONCLUSIVE,
    NOT_TESTED,
    OPEN_QUESTION,
)
from experiments.analysis.claims.words import means_of, waits_for
from experiments.errors import UserError
from experiments.specs.planned import PlannedStudy
from experiments.specs.read import claim_tests
from experiments.specs.schema import Claims, ClaimTest, Study
from experiments.store import tidy

#: Roles of claims that no trained run decides.
UNTRAINED = ("exact", "measured")
#: The scale whose seeds the registrations speak of.
REGISTERED_SCALE = "small"
#: Role of a statement that takes no side: it is measured and gets no verdict.
OPEN = OPEN_QUESTION
OPEN_REASON = "the source takes no side, so the difference and its interval stand without a verdict"
COLUMNS = ["id", "role", "statement", "source", "published", "tested_as", "verdict", "compared"]
COLUMNS += ["unit", "means"]
COLUMNS += ["effect", "low", "high", "interval", "p", "p_opposite", "p_adjusted", "num_seeds"]
COLUMNS += [
    "num_registered",
    "held_equal",
    "not_equal",
    "sides",
    "margin",
    "scaled_down",
    "post_hoc",
]
COLUMNS += ["reason"]
COLUMNS += ["links", "replications", "concerns", "runs"]
#: Columns that ledgers of older versions lack.
NEWER = ("unit", "means")
TRIALS = "the runs of this study choose settings: they are evidence for no claim"
ELSEWHERE = "this study does not list it; the study that does tests it"
UNWRITTEN = "no test has been written for this claim"


def evaluate(records: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """Return the ledger of one study alone: `tested_claims`, judged without other studies."""
    return judge(tested_claims(records, study))


def tested_claims(records: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """Test each published claim, in the order of ``claims.csv``, without a verdict on comparisons.

    Args:
        records: Tidy records of one study.
        study: The study, with ``claims`` naming its primary and exploratory ones; it tests no
            other, so that a claim has one verdict although studies share runs.

    Returns:
        One row per claim; the columns are ``COLUMNS``. Effects and intervals are differences in
        the metric's units, ``compared`` says of what. ``p`` and ``p_opposite`` are one-sided. The
        ``verdict`` of a comparison is empty: `judge` gives it. The ``links`` that a claim consists
        of are each judged as if it were alone.

    Raises:
        ValueError: If the study names a claim that does not exist.
    """
    roles = _roles(study)
    tests = claim_tests()
    if study.trials:
        tests = dict.fromkeys(tests, ClaimTest(not_tested=TRIALS))
    elsewhere = ClaimTest(not_tested=ELSEWHERE)
    tests = {
        name: test if name in roles or test.not_tested is not None else elsewhere
        for name, test in tests.items()
    }
    spent, finished = sides.spent(records, study), set(records["run"])
    records = selection.headline(records, study)
    rows = []
    for row in published.claims().itertuples():
        test = tests.get(row.claim_id, ClaimTest(not_tested=UNWRITTEN))
        seeds = registered_seeds(row.claim_id) if study.scale == REGISTERED_SCALE else None
        own = records if seeds is None else records[records["seed"].isin(seeds)]
        role = next(
            (kind for kind in UNTRAINED if getattr(test, kind) is not None),
            roles.get(row.claim_id, ""),
        )
        role = OPEN if test.open and role else role
        outcome = _outcome(row.claim_id, test, own, study, spent)
        if test.is_comparison and outcome.verdict == NOT_TESTED:
            waits = waits_for(comparison.unfinished(test, study, finished, seeds))
            outcome = replace(outcome, reason=outcome.reason + waits)
        changed = trained_under_another(row.claim_id, test, own, outcome.runs)
        rows.append(_ledger_row(row, role, test, outcome, seeds, changed))
    return pd.DataFrame(rows, columns=COLUMNS)


def registered_seeds(claim: str) -> list[int] | None:
    """Return the seeds that a claim is read at; None for all.

    They were fixed before they were trained: those that had been seen when the number was written
    down do not count, unless it was written down when all were there.
    """
    entry = published.registrations().get(claim, {})
    seeds, seen = entry.get("seeds"), entry.get("seen", 0)
    if isinstance(seeds, int):
        return list(range(seen if seen < seeds else 0, seeds))
    return seeds


def trained_under_another(claim: str, test: ClaimTest, records: pd.DataFrame, runs: str) -> str:
    """Why a claim's runs make its test post hoc; empty where they were trained under it.

    Records keep the hashes of the tests that stood when they were trained. Of records that do not
    (older ones) the dates in ``registrations.yaml`` say it.

    Args:
        claim: Its id.
        test: Its test as it is now.
        records: Tidy records.
        runs: Ids of the runs behind the comparison, separated by spaces.
    """
    if not runs or "claim_tests" not in records:
        return ""
    own = records[records["run"].isin(runs.split())].drop_duplicates("run")
    kept = [dict(part.split(":") for part in text.split()) for text in own["claim_tests"].dropna()]
    now = test.hash[:8]
    others = sum(hashes.get(claim) != now for hashes in kept)
    if not others:
        return ""
    return f"{others} of its {len(own)} runs were trained before the test was as it is now"


def evidence(table: pd.DataFrame) -> list[policy.Evidence]:
    """Return what a study's `tested_claims` leave to be judged."""
    tests = claim_tests()
    return [
        policy.Evidence(
            row.id,
            row.role == "primary",
            row.p,
            row.p_opposite,
            int(row.num_seeds),
            int(row.num_registered),
            row.post_hoc,
            tests[row.id].hash,
        )
        for row in table.itertuples()
        if row.verdict == ""
    ]


def families(studies: Iterable[Study]) -> dict[str, set[str]]:
    """Return the claims that are judged together, by role.

    They are what trained runs of the studies are to decide, whether these runs are there or not.
    """
    tests = claim_tests()
    judged = {name for name, test in tests.items() if test.is_comparison and not test.open}
    listed = [study.claims for study in studies if not study.trials]
    return {
        role: judged & {claim for claims in listed for claim in getattr(claims, role)}
        for role in ("primary", "exploratory")
    }


def members(family: Iterable[str]) -> set[str]:
    """Return the claims that count in a family: the first of those that share a test."""
    tests = claim_tests()
    return set({tests[name].hash: name for name in sorted(family, reverse=True)}.values())


def judge(
    table: pd.DataFrame,
    others: Iterable[policy.Evidence] = (),
    *,
    num_primary: int = 0,
    num_exploratory: int = 0,
) -> pd.DataFrame:
    """Give verdicts to a study's tested claims, together with those of other studies.

    Args:
        table: The study's `tested_claims`.
        others: What the other studies have; a claim that the table has too is left out.
        num_primary: Number of tests of the primary claims of all studies, those without results
            included; see `families` and `members`.
        num_exploratory: The same of exploratory ones.

    Returns:
        The ledger.
    """
    table, own = table.copy(), evidence(table)
    names = {test.name for test in own}
    rest = [test for test in others if test.name not in names]
    verdicts = policy.verdicts(
        [*own, *rest], num_primary=num_primary, num_exploratory=num_exploratory
    )
    for index, row in table[table["verdict"] == ""].iterrows():
        found = verdicts[row["id"]]
        table.loc[index, ["verdict", "p_adjusted"]] = found.word, found.p_adjusted
        table.loc[index, "reason"] = f"{row['reason']}: {found.why}"
    return table


def _roles(study: PlannedStudy) -> dict[str, str]:
    listed = study.claims
    roles = dict.fromkeys(listed.exploratory, "exploratory")
    roles |= dict.fromkeys(listed.primary, "primary")
    unknown = sorted(set(roles) - set(published.claims()["claim_id"]))
    if unknown:
        raise UserError(f"claims.{roles[unknown[0]]} names {unknown[0]}, which does not exist")
    return roles


def _outcome(
    claim: str,
    test: ClaimTest,
    records: pd.DataFrame,
    study: PlannedStudy,
    spent: Mapping[str, pd.Series],
) -> Outcome:
    if test.not_tested is not None:
        return Outcome("", verdict=NOT_TESTED, reason=test.not_tested)
    if name := test.exact or test.measured:
        check = exact.CHECKS[name](records, study, test, claim)
        undecided = INCONCLUSIVE if check.is_inconclusive else NOT_TESTED
        verdict = {True: HOLDS, False: CONTRADICTED, None: undecided}[check.holds]
        return Outcome(test.tested_as or "", verdict=verdict, reason=check.reason)
    return comparison.compare(test, records, study, spent)


def _ledger_row(
    claim: Any,
    role: str,
    test: ClaimTest,
    outcome: Outcome,
    seeds: Sequence[int] | None,
    changed: str = "",
) -> dict[str, Any]:
    row = {
        "id": claim.claim_id,
        "role": role,
        "statement": claim.statement,
        "source": claim.provenance or claim.source_id,
        "published": claim.published,
        "tested_as": outcome.tested_as,
        "verdict": outcome.verdict or "",
        "compared": outcome.compared,
        "unit": outcome.unit,
        "means": "" if outcome.pair is None else means_of(outcome.pair),
        "p": math.nan,
        "p_opposite": math.nan,
        "num_seeds": 0,
        "num_registered": policy.MIN_SEEDS if seeds is None else len(seeds),
        "held_equal": held_equal(test),
        "not_equal": test.not_equal or "",
        "sides": outcome.sides,
        "margin": test.margin_why or "",
        "scaled_down": scaled_down(claim.statement) if test.held_equal else "",
        "post_hoc": "",
        "reason": outcome.reason,
        "links": outcome.links,
        "replications": outcome.replications,
        "concerns": " ".join(test.concerns),
        "runs": outcome.runs,
    }
    pair = outcome.pair
    if pair is None and seeds is not None and outcome.tested_as:
        row["reason"] += f" (read at seeds {', '.join(map(str, seeds))}, as registered)"
    if pair is not None:
        interval = "" if math.isnan(pair.low) else f"[{pair.low:.4g}, {pair.high:.4g}]"
        row |= {"effect": pair.effect, "low": pair.low, "high": pair.high, "interval": interval}
        row |= {"p": pair.p, "p_opposite": pair.p_opposite, "num_seeds": pair.num_seeds}
        name = claim.claim_id
        row["post_hoc"] = changed or policy.registered(name, test.hash, published.registrations())
        if test.open:
            # The alternative "differ" is two-sided already.
            row["verdict"] = OPEN_QUESTION
            row["reason"] += f": {OPEN_REASON}; two-sided p = {pair.p:.2g} for a difference"
    return row


def held_equal(test: ClaimTest) -> str:
    """Return what both sides of a test have in common, in words."""
    if test.measured is not None:
        return "machine, loop and steps"
    return "nothing is compared: it is computed" if test.exact else ", ".join(test.held_equal)


def scaled_down(statement: str) -> str:
    """Return the size of the source's model where a claim names it; ours are smaller."""
    sizes = re.findall(r"\b\d+(?:\.\d+)?[MB]\b(?! tokens)", statement)
    return " and ".join(dict.fromkeys(sizes))


def write_evidence(records: pd.DataFrame, study: PlannedStudy, path: Path) -> None:
    """Write what a study's comparisons leave to be judged, as CSV.

    Args:
        records: Tidy records of the study.
        study: The study.
        path: File to write.
    """
    untrained = {name for name, test in claim_tests().items() if test.exact or test.measured}
    claims = Claims(
        primary=[name for name in study.claims.primary if name not in untrained],
        exploratory=[name for name in study.claims.exploratory if name not in untrained],
    )
    # Arithmetic and timings need tables that are made beside the records; comparisons do not.
    tested = tested_claims(records, study.changed(claims=claims))
    rows = [asdict(test) for test in evidence(tested)]
    names = [field.name for field in fields(policy.Evidence)]
    pd.DataFrame(rows, columns=names).to_csv(path, index=False)


def read_evidence(path: Path) -> list[policy.Evidence]:
    """Read what `write_evidence` wrote.

    Raises:
        ValueError: If it is no such table; the message names the file.
    """
    names = [field.name for field in fields(policy.Evidence)]
    text = dict.fromkeys(("name", "post_hoc", "test"), "string")
    table = tidy.read_table(path, names, dtype=text)
    rows = table.fillna({"post_hoc": ""})[names].to_dict("records")
    return [policy.Evidence(**row) for row in rows]


def write(
    records: pd.DataFrame,
    study: PlannedStudy,
    path: Path,
    others: Iterable[policy.Evidence] = (),
    *,
    num_primary: int = 0,
    num_exploratory: int = 0,
) -> None:
    """Write a study's ledger as CSV; arguments as in `judge`."""
    tested = tested_claims(records, study)
    ledger = judge(tested, others, num_primary=num_primary, num_exploratory=num_exploratory)
    ledger.to_csv(path, index=False)


def read(path: Any) -> pd.DataFrame:
    """Read a ledger; empty text cells are empty strings.

    Raises:
        ValueError: If it is no such table; the message names the file.
    """
    text = ["id", "role", "statement", "source", "published", "tested_as", "verdict", "compared"]
    text += ["unit", "means", "interval", "held_equal", "not_equal", "sides", "margin"]
    text += ["scaled_down", "post_hoc", "reason"]
    text += ["links", "replications"]
    text += ["concerns", "runs"]
    needed = [name for name in COLUMNS if name not in NEWER]
    ledger = tidy.read_table(path, needed, dtype=dict.fromkeys(text, "string"))
    ledger = ledger.assign(**{name: "" for name in NEWER if name not in ledger})
    return ledger.fillna(dict.fromkeys(text, ""))
