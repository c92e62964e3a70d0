"""Every published FLOP count beside ours. "Ours" follows the conventions of `sparse_lib/flops.py`;
"counted as published" repeats the count under the source's own convention, which the last column
names. A row is met if either number is within 1% of the published one or prints the same digits."""

from typing import Any

import pandas as pd

from experiments.store import tidy

NAMES = {"published": "value (published)"}


def make(records: pd.DataFrame, curves: pd.DataFrame, study: dict[str, Any]) -> pd.DataFrame:
    """One row per published number."""
    rows = tidy.computed(study["scale"], "flops", "published")
    return rows.rename(columns=NAMES)
