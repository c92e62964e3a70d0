"""The sparsity configuration that each method needs, as the library takes it, with shares of the
run resolved to steps; a transform, where there is one, adds the sparsity and the filter. Compare
Figures 4 and 6 of the library's announcement."""

from typing import Any

import pandas as pd
import yaml


def make(records: pd.DataFrame, curves: pd.DataFrame, study: dict[str, Any]) -> pd.DataFrame:
    """One row per method: the first run of each."""
    rows: dict[str, dict[str, Any]] = {}
    for run in study["runs"]:
        spec = run["spec"]
        sparsity = spec.get("sparsity")
        if sparsity is not None and run["method"] not in rows:
            shown = {"transform": spec["transform"]} if spec.get("transform") else {}
            text = yaml.safe_dump(shown | {"sparsity": sparsity}, sort_keys=False)
            facts = {"method": run["method"], "sparsity": spec.get("final_sparsity")}
            rows[run["method"]] = facts | {"config": text, "runs": run["id"]}
    return pd.DataFrame(list(rows.values()), columns=["method", "sparsity", "config", "runs"])
