"""Which of two methods is better on the held-out cells: predicted by laws fitted without them and
registered before they were trained, and measured. The difference is the loss of the first minus
that of the second; measured, its mean over shared seeds with a 95% t interval. Agrees says whether
the predicted band has what was measured, once all seeds are there; a band of both signs names no
better method."""

import pandas as pd

from experiments.analysis import law_cells, predictions, stats
from experiments.analysis.methods import Methods
from experiments.analysis.tables.law_predictions import WAITS
from experiments.specs.planned import PlannedStudy

EVERY_RECIPE = True
COLUMNS = ["first", "second", "registered", "better, predicted", "predicted", "low", "high",
           "measured", "measured low", "measured high", "seeds", "agrees"]  # fmt: skip


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per registered pair of methods."""
    found = predictions.registered(study.name, study.scale)
    seeds = {
        method: set(own["seed"])
        for method, own in _held_out(law_cells.planned(study)).groupby("method")
    }
    measured = {
        method: dict(zip(own["seed"], own["loss"], strict=True))
        for method, own in _held_out(law_cells.finished(records, study)).groupby("method")
    }
    methods, made = Methods(study), []

    def name(key: str) -> str:
        return methods.treatment(key, methods[key].sparsity)

    for sign in [] if found is None else found["signs"]:
        first, second = (measured.get(sign[key], {}) for key in ("a", "b"))
        done = sorted(set(first) & set(second))
        row = {
            "first": name(sign["a"]), "second": name(sign["b"]), "registered": sign["date"],
            "better, predicted": name(sign["better"]), "predicted": sign["predicted"],
            "low": sign["low"], "high": sign["high"], "seeds": len(done), "agrees": WAITS,
        }  # fmt: skip
        mean, low, high = stats.t_interval([first[seed] - second[seed] for seed in done])
        row |= {"measured": mean, "measured low": low, "measured high": high}
        if done and set(done) == seeds[sign["a"]] & seeds[sign["b"]]:
            row["agrees"] = "yes" if sign["low"] <= mean <= sign["high"] else "no"
        made.append(row)
    return pd.DataFrame(made, columns=COLUMNS)


def _held_out(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["held_out"].astype(bool)]
