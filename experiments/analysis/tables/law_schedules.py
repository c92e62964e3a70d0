"""Whether a constant rate with a short decay ends where the usual cosine does: loss under
the first minus under the second, at equal model, sparsity and data (tokens or images), over the
seeds that both have, with a 95% t interval. RigL's cosine runs anneal its drop fraction, too."""

import pandas as pd

from experiments.analysis import law_cells, stats
from experiments.specs.planned import PlannedStudy

EVERY_RECIPE = True
COLUMNS = ["algorithm", "sparsity", "model", "data", "seeds", "constant and decay", "cosine",
           "difference", "low", "high", "runs"]  # fmt: skip
KEYS = ["algorithm", "sparsity", "model", "data", "seed"]


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per method with a run of both schedules."""
    scores = law_cells.scores(records, study).rename(columns={"loss": "x"})
    both = [
        law_cells.planned(study, annealed=kind).merge(scores, on="run")
        for kind in ("stable", "cosine")
    ]
    pairs = both[0][[*KEYS, "run", "x"]].merge(both[1][[*KEYS, "run", "x"]], on=KEYS)
    made = []
    for key, own in pairs.groupby(KEYS[:-1], sort=False):
        mean, low, high = stats.t_interval(own["x_x"] - own["x_y"])
        runs = " ".join([*own["run_x"], *own["run_y"]])
        values = (len(own), own["x_x"].mean(), own["x_y"].mean(), mean, low, high, runs)
        made.append(dict(zip(COLUMNS, (*key, *values), strict=True)))
    return pd.DataFrame(made, columns=COLUMNS)
