"""Every trial of every method, judged by validation perplexity alone, or by validation loss in nats
where the data are images (lower is better), at a seed that no evidence uses. Beside the distance to
the best trial of the method at its sparsity stands the noise: the standard deviation between seeds
of committed runs of the same model and data. Trials that are apart by less than the margin (1.96
times that noise, times the root of 2 over the seeds of a trial) tie; of those that tie with the
best the setting nearest to the default is taken, or the best in a study that says so. The update
interval and the steps are optimizer steps."""

import pandas as pd

from experiments.analysis.figures import tuning
from experiments.specs.planned import PlannedStudy

EVERY_RECIPE = True
COLUMNS = ["model", "dataset", "method", "sparsity", "learning rate", "rates by", "drop fraction"]
COLUMNS += ["update interval", "steps", "seed", "perplexity", "above best", "seed noise", "margin"]
COLUMNS += ["choice", "runs"]


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per trial, the best of each method first."""
    trials = tuning.data(records, curves, study)
    lowest = trials.groupby(tuning.KEYS)["value"].transform("min")
    table = trials.assign(**{"above best": trials["value"] - lowest, "runs": trials["run"]})
    order = {name: place for place, name in enumerate(table["algorithm"].unique())}
    table = table.assign(order=table["algorithm"].map(order))
    table = table.sort_values(["model", "dataset", "order", "value"], kind="stable")
    judged = "loss" if set(trials["metric"]) == {"loss"} else "perplexity"
    table = table.drop(columns="method").rename(columns={"algorithm": "method", "value": judged})
    table = table.rename(columns={"noise": "seed noise", "rule": "rates by"})
    columns = [judged if name == "perplexity" else name for name in COLUMNS]
    if (table["rates by"] == "").all():
        columns.remove("rates by")
    return table[columns]
