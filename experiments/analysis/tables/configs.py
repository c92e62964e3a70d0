"""The sparsity configuration of each method, as the library takes it, with shares of the run
resolved to steps. A transform adds its sparsity and filter. Compare Figures 4 and 6 of the
library's announcement.
"""

from typing import Any

import pandas as pd
import yaml

from experiments.specs.schema import PlannedStudy


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per method: the first run of each."""
    rows: dict[str, dict[str, Any]] = {}
    for run in study.runs:
        spec, method = run.spec, run.spec.method
        if spec.sparsity is not None and method is not None and method not in rows:
            shown = {} if spec.transform is None else {"transform": spec.transform.to_json()}
            text = yaml.safe_dump(shown | {"sparsity": spec.sparsity}, sort_keys=False)
            facts = {"method": method, "sparsity": spec.final_sparsity}
            rows[method] = facts | {"config": text, "runs": run.id}
    return pd.DataFrame(list(rows.values()), columns=["method", "sparsity", "config", "runs"])
