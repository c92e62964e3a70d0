"""What the front page of a scale says: verdicts, cost, negative results. All from records."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.analysis.claims import ledger as claims
from experiments.analysis.claims import policy
from experiments.report.provenance import has_rows
from experiments.store import machine
from experiments.store.record import Record

#: Negative results first.
ORDER = (
    policy.CONTRADICTED,
    policy.SUGGESTS_AGAINST,
    policy.INCONCLUSIVE,
    policy.SUGGESTS,
    policy.HOLDS,
    policy.OPEN_QUESTION,
    policy.NOT_TESTED,
)
#: How many claims a verdict has, in words.
IN_WORDS = {
    policy.CONTRADICTED: "contradicted",
    policy.SUGGESTS_AGAINST: "that the runs suggest against",
    policy.INCONCLUSIVE: "inconclusive",
    policy.SUGGESTS: "that they suggest",
    policy.HOLDS: "hold",
}
ROLES = {"primary": 0, "exploratory": 1, "exact": 2, "measured": 2, claims.OPEN: 2}
CHANCE = "against chance"


def merge_ledgers(ledgers: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Return one row per claim: that of the study with the most to say about it.

    A test goes before none, a study that lists the claim before one that does not.
    """
    rows = [table.assign(study=name) for name, table in ledgers.items()]
    if not rows:
        return pd.DataFrame(columns=[*claims.COLUMNS, "study"])
    merged = pd.concat(rows, ignore_index=True)
    rank = merged["role"].map(ROLES).fillna(3)
    rank += 4 * (merged["verdict"] == policy.NOT_TESTED).astype(int)
    merged = merged.assign(rank=rank).sort_values(["id", "rank"], kind="stable")
    merged = merged.drop_duplicates("id")
    return merged.sort_values(["rank", "id"], kind="stable").drop(columns="rank")


def verdict_counts(ledger: pd.DataFrame) -> list[dict[str, Any]]:
    """Return per verdict the number of claims: in all, by trained runs, and otherwise."""
    rows = []
    for word in ORDER:
        own = ledger[ledger["verdict"] == word]
        undecided = word in (policy.NOT_TESTED, policy.OPEN_QUESTION)
        computed = 0 if undecided else int(own["role"].isin(claims.UNTRAINED).sum())
        trained = 0 if undecided else len(own) - computed
        rows.append({"verdict": word, "all": len(own), "trained": trained, "computed": computed})
        rows[-1]["primary"] = int((own["role"] == "primary").sum())
    return rows


def outcome(ledger: pd.DataFrame) -> str:
    """Return in words what trained runs and computing say about the claims, and what is left."""
    untrained = ledger["role"].isin(claims.UNTRAINED)
    trained, computed = ledger[(ledger["role"] != "") & ~untrained], ledger[untrained]
    untested = len(ledger) - len(trained) - len(computed)
    judged = _shares(trained)
    if judged:
        parts = [f"{sum(judged.values())} judged ({_listed(judged)})"]
        for word in (policy.OPEN_QUESTION, policy.NOT_TESTED):
            if count := int((trained["verdict"] == word).sum()):
                parts.append(f"{count} {word}{'s' * (word == policy.OPEN_QUESTION and count > 1)}")
        said = f"Of {_claims(len(trained))} for trained models at this scale: {', '.join(parts)}."
    else:
        said = "No claim about trained models has been tested at this scale."
    if shares := _shares(computed):
        left = len(computed) - sum(shares.values())
        not_tested = f", {left} {policy.NOT_TESTED}" * bool(left)
        said += f" Of {_claims(len(computed))} for computing: {_listed(shares)}{not_tested}."
    if untested:
        said += f" {_claims(untested)} {_are(untested)} tested by no study of this scale."
    return said


def _shares(ledger: pd.DataFrame) -> dict[str, int]:
    """The number of claims by verdict, of those that were judged."""
    counts = {word: int((ledger["verdict"] == word).sum()) for word in IN_WORDS}
    return {word: count for word, count in counts.items() if count}


def _listed(shares: dict[str, int]) -> str:
    return ", ".join(f"{count} {IN_WORDS[word]}" for word, count in shares.items())


def _claims(count: int) -> str:
    return f"{count} {'claim' if count == 1 else 'claims'}"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def cost(records: Iterable[Record]) -> dict[str, Any]:
    """Return what finished runs cost and how large they are, each run and each shared step once.

    Args:
        records: Records; a run that several studies show may occur several times.

    Returns:
        ``runs``, and how many of them are ``continued``: from the state of another one, whose steps
        they do not count again; ``machines``: by key (by processor where none was recorded), the
        core-hours of ``training`` and ``evaluation`` (wall time times threads) there, the runs
        ``trained`` there and what is known of it in ``words``; ``executed`` and ``dense`` training
        FLOPs, 2 per multiply-add; ``datasets``; least and largest number of ``parameters``;
        largest number of ``tokens`` and of ``images``.
    """
    runs = list({record.run: record for record in records}.values())
    flops = {"executed": 0.0, "dense": 0.0}
    machines: dict[str, dict[str, Any]] = {}
    continued = _continued(runs)
    for record in runs:
        share, evaluation = (record.num_threads or 1) / 3600, record.evaluation
        own = _hours(machines, record.machine_facts, record.cpu)
        own["trained"] += 1
        borrowed = record.borrowed_s if record.run in continued else 0.0
        own["training"] += share * (record.wall_s - borrowed)
        own = _hours(machines, None if evaluation is None else evaluation.machine, record.cpu)
        own["evaluation"] += share * (0.0 if evaluation is None else evaluation.wall_s or 0.0)
        flops["executed"] += record.flops.executed
        flops["dense"] += record.flops.dense_equivalent
        if record.run in continued:
            shared = record.shared_flops()
            flops["executed"] -= shared.executed
            flops["dense"] -= shared.dense_equivalent
    sizes = [record.num_parameters for record in runs]
    return {
        "runs": len(runs),
        "continued": len(continued),
        **flops,
        "machines": machines,
        "datasets": sorted({record.spec.data.name for record in runs}),
        "parameters": (min(sizes), max(sizes)) if sizes else None,
        **{unit: _largest(runs, unit) for unit in ("tokens", "images")},
    }


def _continued(records: Sequence[Record]) -> set[str]:
    """Ids of the runs whose first steps another of these runs counts.

    The first run counts them; where it is not among these runs, the one that continues its latest
    step does.
    """
    counted = {record.run for record in records}
    starts = {record.run: record.spec.starts_from for record in records}
    latest = sorted(
        ((start.step, run, start.run) for run, start in starts.items() if start and start.step),
        reverse=True,
    )
    continued = set()
    for _, run, first in latest:
        if first in counted:
            continued.add(run)
        counted.add(first)
    return continued


def _hours(
    machines: dict[str, dict[str, Any]], facts: dict[str, Any] | None, name: str | None
) -> dict[str, Any]:
    """The entry of a machine among those seen so far; ``name`` is what old records know of it."""
    key = machine.key(facts)
    title = machine.title(key)
    if key == machine.NOT_RECORDED and name:
        key = name
    new: dict[str, Any] = {
        "title": title,
        "training": 0.0,
        "evaluation": 0.0,
        "trained": 0,
        "words": machine.NOT_RECORDED,
    }
    own = machines.setdefault(key, new)
    if facts or name:
        own["words"] = machine.words(facts, name or "")
    return own


def _largest(records: Iterable[Record], unit: str) -> int | None:
    seen = [row[unit] for record in records for row in record.curve[-4:] if row.get(unit)]
    return max(seen, default=None)


def chance_scores(tables_dir: Path) -> dict[str, Any] | None:
    """Return how many scores of a study's tables are not distinguishable from chance.

    Returns:
        ``table``, its number of ``scores`` and how many of them are ``lost``; None where no table
        compares scores with chance.
    """
    for path in sorted(Path(tables_dir).glob("*.csv")):
        if not has_rows(path):
            continue
        table = pd.read_csv(path)
        if CHANCE in table and len(table):
            lost = int(table[CHANCE].str.startswith("not distinguishable").sum())
            return {"table": path.stem, "scores": len(table), "lost": lost}
    return None
