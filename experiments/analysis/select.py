"""Selections of runs: the headline runs of a study, and those of its main training.

A *workload* is a (model, dataset) pair. The study's first workload that a question concerns is its
primary one, the others replicate it. Runs by another recipe variant than their method's own (other
budgets, other learning rates) are no headline runs, nor are those of a study of trials.
"""

import pandas as pd

from experiments.specs.schema import PlannedStudy


def headline(rows: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """Return the rows of runs by their method's own recipe, and by those that the study shows.

    Args:
        study: The study as `experiments.specs.lookup.planned_study` makes it; a method
            that it does not know keeps all its rows.
    """
    own = {name: method.recipe for name, method in study.methods.items()}
    if not own:
        return rows
    wanted = rows["method"].map(own)
    is_shown = rows["recipe"].isin(study.shown)
    return rows[wanted.isna() | (rows["recipe"] == wanted) | is_shown]


#: Methods that make a training the main one of a study.
MANY = 4


def main(curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """Return the labelled curves of one model, dataset and length, without retuned methods.

    It is the longest training that at least `MANY` methods share or, where none has so many, the
    longest of those that most methods share.
    """
    retuned = {name for name, method in study.methods.items() if method.retuned}
    curves = curves[~curves["method"].isin(retuned)]
    if curves.empty:
        return curves
    coordinate = "images" if curves["tokens"].isna().all() else "tokens"
    length = curves.groupby("run")[coordinate].transform("max")
    keys = [curves["model"], curves["dataset"], length.round(-3)]
    methods = curves.groupby(keys)["method"].nunique()
    enough = methods[methods >= min(MANY, methods.max())]
    model, dataset, budget = max(enough.index, key=lambda key: (key[2], enough[key]))
    return curves[(keys[0] == model) & (keys[1] == dataset) & (keys[2] == budget)]


def by_level(rows: pd.DataFrame, *, most: int | None = None) -> list[tuple[float, pd.DataFrame]]:
    """Return (sparsity, its rows and the dense ones) by sparsity; one entry if all are dense.

    Args:
        most: How many sparsities at most, those with the most runs; None for all.
    """
    runs = rows[rows["sparsity"] > 0].groupby("sparsity")["run"].nunique()
    levels = sorted(runs.sort_values(ascending=False, kind="stable").index[:most])
    return [(level, rows[rows["sparsity"].isin([0.0, level])]) for level in levels or [0.0]]
