"""Count the core-hours, FLOPs and sizes of finished runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from experiments import machine
from experiments.store.record import Record

#: Tables of finished runs that `cost` reads.
TABLES = ("runs", "curves")


def cost(records: Iterable[Record]) -> dict[str, Any]:
    """Return what finished runs cost and how large they are, each run and each shared step once.

    Args:
        records: Records; a run that several studies show may occur several times.

    Returns:
        ``runs``, and how many of them are ``continued``: from the state of another one, whose steps
        they do not count again; core-hours of ``training`` and ``evaluation`` (wall time times
        threads); the number of ``machines`` that were recorded; ``executed`` training FLOPs, 2 per
        multiply-add; least and largest number of ``parameters``.
    """
    runs = list({record.run: record for record in records}.values())
    here = {record.run for record in runs}
    continued = {
        record.run
        for record in runs
        if (start := record.spec.starts_from) and start.step and start.run in here
    }
    training = evaluation = executed = 0.0
    for record in runs:
        share = (record.num_threads or 1) / 3600
        borrowed = record.borrowed_s if record.run in continued else 0.0
        training += share * (record.wall_s - borrowed)
        if record.evaluation is not None:
            evaluation += share * (record.evaluation.wall_s or 0.0)
        executed += record.flops.executed
        if record.run in continued:
            executed -= record.shared_flops().executed
    sizes = [record.num_parameters for record in runs]
    return {
        "runs": len(runs),
        "continued": len(continued),
        "training": training,
        "evaluation": evaluation,
        "machines": len(set(filter(machine.is_known, (record.machine_key for record in runs)))),
        "executed": executed,
        "parameters": (min(sizes), max(sizes)) if sizes else None,
    }
