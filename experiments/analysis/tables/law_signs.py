"""Which of two methods is better on the held-out cells: predicted by laws fitted without them and
registered before they were trained, and measured. The difference is the loss of the first minus
that of the second; measured, its mean over shared seeds with a 95% t interval. Agrees says whether
the predicted band has what was measured, once all seeds are there. Sign says whether the method
that the law names is the one measured to be better: a band of both signs names none, which is
neither right nor wrong. Carried is the difference as it was at the longest fitted budget of the
same models, without a law, where they were fitted; it always names one."""

import pandas as pd

from experiments.analysis import effects, law_cells, predictions, stats
from experiments.analysis.methods import Methods
from experiments.analysis.tables.law_predictions import WAITS
from experiments.specs.planned import PlannedStudy

EVERY_RECIPE = True
COLUMNS = ["first", "second", "registered", "better, predicted", "predicted", "low", "high",
           "measured", "measured low", "measured high", "seeds", "agrees", "sign", "carried",
           "sign, carried"]  # fmt: skip


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
            "sign": WAITS, "carried": sign.get("carried", {}).get("difference"),
        }  # fmt: skip
        mean, low, high = stats.t_interval([first[seed] - second[seed] for seed in done])
        row |= {"measured": mean, "measured low": low, "measured high": high}
        if done and set(done) == seeds[sign["a"]] & seeds[sign["b"]]:
            row["agrees"] = "yes" if sign["low"] <= mean <= sign["high"] else "no"
            sides = {sign["a"]: -1, sign["b"]: 1}
            row["sign"] = _judged(sides.get(sign["better"], 0), mean)
            if "carried" in sign:
                row["sign, carried"] = _judged(sign["carried"]["difference"], mean)
        made.append(row)
    return pd.DataFrame(made, columns=COLUMNS)


def _judged(said: float, measured: float) -> str:
    """Whether two differences have one sign; the first is 0 where none is named."""
    if said == 0:
        return effects.NO_ANSWER
    return "right" if (said < 0) == (measured < 0) else "wrong"


def _held_out(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["held_out"].astype(bool)]
