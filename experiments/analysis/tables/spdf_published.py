"""The source's Table 1 whole: BLEU (higher is better) or perplexity (lower is better) after dense
fine-tuning, by the sparsity of pre-training, with its standard deviations. Nothing here was run by
us: its models are hundreds of times as large, and its data no sentences of a grammar."""

import pandas as pd

from experiments import published
from experiments.specs.planned import PlannedStudy

KEYS = ["model", "dataset", "metric"]


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per model and task of the source."""
    rows = published.results()
    rows = rows[rows["source_id"] == published.source_id(study)]
    rows = rows[rows["table_or_figure"] == "Table 1"]
    if rows.empty:  # another source
        return pd.DataFrame(columns=KEYS)
    levels = pd.to_numeric(rows["sparsity"]).map(lambda s: f"{100 * s:g}%" if s else "dense")
    rows = rows.assign(
        level=levels + " (published)",
        text=rows["value"] + " " + rows["seeds_or_std"].str.replace("+-", "± "),
    )
    table = rows.pivot_table("text", KEYS, "level", aggfunc="first", sort=False)
    return table.reset_index().rename_axis(columns=None)
