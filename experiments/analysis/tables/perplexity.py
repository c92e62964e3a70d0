"""Validation perplexity per token of the model's vocabulary: mean over seeds, 95% interval, and the
difference to dense (continued, where others are) by these runs' spread. Copying: nats per token
saved where a passage is read again."""

import pandas as pd

from experiments.analysis.tables import _means
from experiments.findings.claim import Outcome
from experiments.specs.schema import PlannedStudy
from experiments.store import tidy

OUTCOME = Outcome(
    metric="perplexity", split="validation", unit="perplexity", better="lower", noun=""
)


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per model, dataset, budget and method."""
    made = _means.table(_means.rows(records, study, OUTCOME), "perplexity", curves)
    copying = tidy.select(records, "copying", split="validation").set_index("run")["value"]
    if len(copying) and len(made):
        means = [copying.reindex(cell.split()).mean() for cell in made["runs"]]
        made.insert(made.columns.get_loc("runs"), "copying", means)
    return made
