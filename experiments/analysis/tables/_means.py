"""Rows that the tables of scores share: mean over seeds with its interval, and the difference to
dense."""

from typing import Any

import pandas as pd

from experiments.findings.claim import Outcome
from experiments.findings.estimate import estimate, mean_interval
from experiments.findings.evidence import gather
from experiments.specs.schema import PlannedStudy
from experiments.store import tidy

KEYS = ["model", "dataset", "method", "sparsity"]


def rows(
    records: pd.DataFrame, study: PlannedStudy, outcome: Outcome, *, dense: str = ""
) -> list[dict[str, Any]]:
    """One row per model, dataset, recipe and method: ``mean``, its interval, and ``minus dense``.

    Args:
        dense: Method that others are compared with; empty takes the untouched model.
    """
    evidence = gather([study], [records])
    values = evidence.values(outcome)
    runs, found = evidence.runs[evidence.runs["run"].isin(values.index)], []
    for (_, _, budget), own in runs.groupby(["model", "dataset", "budget"], sort=False):
        cells = evidence.cells(own, values)
        plain = own[(own["algorithm"] == "dense") & (own["transform"] == "")]
        starts = plain["first"] != ""  # where arms start from another training, so does dense
        plain = plain[starts == starts.any()]
        methods = {dense} if dense else set(plain["method"])
        base = next((arm for arm in cells if arm.method in methods), None)
        for arm, by_seed in cells.items():
            members = own[(own["method"] == arm.method) & (own["recipe"] == arm.recipe)]
            mean, low, high = mean_interval(list(by_seed.values()))
            row = {key: members[key].iloc[0] for key in KEYS}
            row |= {"recipe": arm.recipe, "budget": budget, "seeds": len(by_seed)}
            row |= {"mean": mean, "low": low, "high": high}
            if base is not None and arm != base:
                e = estimate(cells, [(arm, base)])
                row |= {"minus dense": e.effect, "from": e.low, "to": e.high}
            found.append(row | {"runs": " ".join(members["run"])})
    return found


def table(found: list[dict[str, Any]], name: str, curves: pd.DataFrame) -> pd.DataFrame:
    """The rows as a table whose mean is called ``name``, with the sparsity of masks beside it."""
    made = pd.DataFrame(found)
    if made.empty:
        return made
    masks = tidy.mask_sparsity(curves)
    made.insert(4, "mask sparsity", [masks.reindex(cell.split()).mean() for cell in made["runs"]])
    return made.rename(columns={"mean": name})
