"""What each network has left when inputs without a weight and dead units are taken out: units on
no way from an input to an output. Means over seeds, with the standard deviation where it says
so; the border is what lies outside of the box of 20 x 20 pixels that MNIST centres digits in.
Compare Table 2 of Evci et al. 2020 (appendix B): RigL ends at 408-100-69, sparsity 0.870."""

from typing import Any

import pandas as pd

from experiments.specs.planned import PlannedStudy
from experiments.store import tidy

COLUMNS = {
    "inputs_kept": "inputs",
    "units_1_kept": "units of layer 1",
    "units_2_kept": "units of layer 2",
    "compressed_sparsity": "sparsity of what is left",
    "border_dropped": "share of border pixels dropped",
    "centre_dropped": "share of other pixels dropped",
}


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per model and method with masks."""
    rows = records[records["metric"].isin(list(COLUMNS))]
    found = []
    for (model, method), group in rows.groupby(["model", "method"], sort=False):
        row: dict[str, Any] = {"model": model, "method": method, "seeds": group["seed"].nunique()}
        for metric, name in COLUMNS.items():
            values = tidy.select(group, metric)["value"]
            row[name] = values.mean()
            row[f"{name}, SD"] = values.std() if len(values) > 1 else None
        row["runs"] = " ".join(dict.fromkeys(group["run"]))
        found.append(row)
    names = [name for pair in ((n, f"{n}, SD") for n in COLUMNS.values()) for name in pair]
    return pd.DataFrame(found, columns=["model", "method", "seeds", *names, "runs"])
