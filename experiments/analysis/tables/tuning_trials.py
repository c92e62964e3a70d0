"""Every trial of every method, judged by validation perplexity alone, or by validation loss in nats
where the data are images (lower is better), at a seed that no evidence uses; "best" marks the
settings that a method won with. The update interval and the steps are optimizer steps."""

from typing import Any

import pandas as pd

from experiments.analysis.figures import tuning

EVERY_RECIPE = True
COLUMNS = ["model", "dataset", "method", "sparsity", "learning rate", "drop fraction"]
COLUMNS += ["update interval", "steps", "seed", "perplexity", "above best", "best", "runs"]


def make(records: pd.DataFrame, curves: pd.DataFrame, study: dict[str, Any]) -> pd.DataFrame:
    """One row per trial, the best of each method first."""
    trials = tuning.data(records, curves, study)
    keys = ["model", "dataset", "algorithm"]
    lowest = trials.groupby(keys)["value"].transform("min")
    table = trials.assign(**{"above best": trials["value"] - lowest, "runs": trials["run"]})
    table["best"] = table["best"].map({True: "best", False: ""})
    order = {name: place for place, name in enumerate(table["algorithm"].unique())}
    table = table.assign(order=table["algorithm"].map(order))
    table = table.sort_values(["model", "dataset", "order", "value"], kind="stable")
    judged = "loss" if set(trials["metric"]) == {"loss"} else "perplexity"
    table = table.drop(columns="method").rename(columns={"algorithm": "method", "value": judged})
    return table[[judged if name == "perplexity" else name for name in COLUMNS]]
