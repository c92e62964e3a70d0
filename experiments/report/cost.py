"""What finished runs cost: core-hours by machine, FLOPs and sizes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from experiments.store import machine
from experiments.store.record import Record


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
