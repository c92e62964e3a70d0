"""The sparsity configuration that each method needs, as the library takes it, with shares of the
run resolved to steps. Compare Figures 4 and 6 of the source."""

from typing import Any

import pandas as pd
import yaml


def make(records: pd.DataFrame, curves: pd.DataFrame, study: dict[str, Any]) -> pd.DataFrame:
    """One row per method: the first run of each."""
    rows: dict[str, dict[str, Any]] = {}
    for run in study.get("runs", []):
        sparsity = (run.get("spec") or {}).get("sparsity")
        if sparsity is not None and run["method"] not in rows:
            text = yaml.safe_dump({"sparsity": sparsity}, sort_keys=False)
            rows[run["method"]] = {"method": run["method"], "config": text, "runs": run["id"]}
    return pd.DataFrame(list(rows.values()), columns=["method", "config", "runs"])
