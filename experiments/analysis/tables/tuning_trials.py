"""Every trial, by validation perplexity (images: loss) at a seed that no evidence uses, and the
studies that train with its setting."""

import pandas as pd

from experiments.analysis.figures import tuning
from experiments.specs.schema import PlannedStudy

EVERY_RECIPE = True
COLUMNS = ["model", "dataset", "method", "sparsity", "learning rate", "drop fraction"]
COLUMNS += ["update interval", "steps", "precision", "seed", "perplexity", "BLEU"]
COLUMNS += ["above best", "taken by", "runs"]
#: The evaluation task whose BLEU is of the validation split.
VALIDATION_TASK = "data_to_text_validation"


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per trial, the best of those that are compared first."""
    trials = tuning.data(records, curves, study)
    lowest = trials.groupby(tuning.KEYS)["value"].transform("min")
    table = trials.assign(**{"above best": trials["value"] - lowest, "runs": trials["run"]})
    bleu = records[(records["metric"] == "bleu") & (records["task"] == VALIDATION_TASK)]
    table["BLEU"] = table["run"].map(bleu.set_index("run")["value"])
    order = {name: place for place, name in enumerate(table["algorithm"].unique())}
    table = table.assign(order=table["algorithm"].map(order))
    groups = ["order" if name == "algorithm" else name for name in tuning.KEYS]
    table = table.sort_values([*groups, "value"], kind="stable")
    judged = "loss" if set(trials["metric"]) == {"loss"} else "perplexity"
    table = table.drop(columns="method").rename(columns={"algorithm": "method", "value": judged})
    columns = [judged if name == "perplexity" else name for name in COLUMNS]
    columns = [name for name in columns if name != "BLEU" or table["BLEU"].notna().any()]
    return table[columns]
