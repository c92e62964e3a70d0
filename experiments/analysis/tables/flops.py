"""Training FLOPs of one run, 2 per multiply-add, counted from the shapes of the layers and the
masks at each step: of the dense model, of unmasked weights only, and their ratio. Means over seeds.
"""

from collections.abc import Sequence

import pandas as pd

from experiments import published
from experiments.analysis.methods import Methods
from experiments.specs.schema import PlannedStudy
from experiments.store import tidy

METRICS = {
    "dense-equivalent FLOPs": "flops_dense_equivalent",
    "executed FLOPs": "flops_executed",
    "executed / dense-equivalent": "flops_ratio",
}
WHOLE = "executed with its first phase"
COLUMNS = ["model", "dataset", "method", "sparsity", "seeds", *METRICS]
COLUMNS += [WHOLE, "FLOPs ratio (published)", "runs"]


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per model, dataset, method and sparsity; `WHOLE` only where there are two phases."""
    whole = tidy.executed_flops(records, study)
    source, looks = published.source_id(study), Methods(study)
    training = records[records["task"] == "training"]
    rows = []
    for workload in tidy.workloads(training):
        chosen = tidy.in_workload(training, workload)
        for method, sparsity in tidy.treatments(chosen):
            own = chosen[(chosen["method"] == method) & (chosen["sparsity"] == sparsity)]
            row = dict(
                zip(COLUMNS, (*workload, method, sparsity, own["run"].nunique()), strict=False)
            )
            for name, metric in METRICS.items():
                row[name] = own[own["metric"] == metric]["value"].mean()
            row[WHOLE] = whole.reindex(own["run"].unique()).mean()
            look = looks[method]  # a source names the algorithm alone where that says it all
            names = [look.name, look.algorithm if look.is_plain and not look.family else method]
            names += ["static uniform"] if look.algorithm == "static" else []
            if (known := study.methods.get(method)) is None or known.starts_from is None:
                row["FLOPs ratio (published)"] = _published(source, names, sparsity)
            row["runs"] = " ".join(own["run"].drop_duplicates())
            rows.append(row)
    table = pd.DataFrame(rows, columns=COLUMNS)
    has_phases = any(
        run.spec.starts_from and run.spec.starts_from.step is None for run in study.runs
    )
    return table if has_phases else table.drop(columns=WHOLE)


def _published(source: str | None, names: Sequence[str], sparsity: float) -> str:
    """The ratio to dense training, of the first of a method's names that the source has."""
    for metric in ("training FLOPs relative", "FLOPs relative to dense"):
        for name in names:
            found = published.value(
                source, metric=metric, method=name, sparsity=sparsity, with_place=True
            )
            if found != published.UNKNOWN:
                return found
    return published.UNKNOWN
