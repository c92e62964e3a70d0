"""Which method and which sparsity at a size and a budget, by the laws: against a dense model of as
many non-zero weights (Sparse-Wide: of equal FLOPs), at equal data and, by each clock (products of
the blocks on this CPU, or on a simulated CS-2), in the time that the dense model takes. Named is
the best of the sparse options whose 95% band is better throughout, dense where the band of the best
one is worse throughout, and no answer where it has both signs; the band of the difference of losses
follows. Marked * is beyond the sizes or budgets that were trained. `python -m experiments advise
--params 1e6 --tokens 5e7` answers for other places and lists all options."""

from typing import Any

import pandas as pd

from experiments.analysis import advice, clocks, effects, law_cells, scaling
from experiments.specs.planned import PlannedStudy

EVERY_RECIPE = True
TIMES = {key: f"in dense's time, {name}" for key, name in (("cpu", "this CPU"), ("cs2", "CS-2"))}
COLUMNS = ["non-zero weights", "data", "at equal data", *TIMES.values()]
#: Sizes and budgets beyond what was fitted that are asked, too, as factors.
BEYOND = (10,)


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per size and budget."""
    laws = scaling.fit_all(law_cells.finished(records, study))
    if len(laws) < 2:
        return pd.DataFrame(columns=COLUMNS)
    dense = laws[law_cells.DENSE].rows
    made = []
    for size in _asked(dense["nonzero"]):
        for budget in _asked(dense["data"]):
            row: dict[str, Any] = {"non-zero weights": size, "data": budget}
            for clock in clocks.DEVICES:
                rows = advice.options(records, study, size, budget, clock)
                row["at equal data"] = _says(study, rows, "minus dense", "extrapolated")
                row[TIMES[clock]] = _says(study, rows, "at equal time", "time extrapolated")
            made.append(row)
    return pd.DataFrame(made, columns=COLUMNS)


def _asked(fitted: pd.Series) -> list[float]:
    """The ends of what was fitted, and beyond."""
    low, high = float(fitted.min()), float(fitted.max())
    return [low, high, *(factor * high for factor in BEYOND)]


def _says(study: PlannedStudy, rows: pd.DataFrame, value: str, beyond: str) -> str:
    chosen = advice.best(rows, value)
    if chosen is None:
        return "times unknown"
    row = rows.loc[chosen]
    low, high = row[f"{value} low"], row[f"{value} high"]
    name = f"{law_cells.name_of(study, row['method'])} {100 * row['sparsity']:g}%"
    better = effects.words(low, high, (name, law_cells.DENSE))
    of = "" if better == name else f" of {name}"
    return f"{better} ({low:+.3f} to {high:+.3f}{of}){'*' if row[beyond] else ''}"
