"""Size and architecture of the trained models. Compare Table 1 of the source, an image: only what
the text repeats of it is known."""

from typing import Any

import pandas as pd

from experiments import published
from experiments.analysis import select as selection
from experiments.specs.planned import PlannedStudy

#: Rows whose value the source's text states, by the metric that `results.csv` calls it.
PUBLISHED = {"context": "context length"}


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per setting; one column per model of the study."""
    models: dict[str, dict[str, Any]] = {}
    for run in study.runs:
        model, data = run.spec.model, run.spec.data
        shape = {"architecture": model.name, **(model.model_extra or {})}
        shape |= {key: getattr(data, key, None) for key in ("vocab_size", "context")}
        models.setdefault(model.label, shape)
    dense = records[records["sparsity"] == 0].drop_duplicates("run").set_index("run")
    counts = selection.per_run(records, "num_parameters").reindex(dense.index)
    sizes = counts.groupby(dense["model"])["num_parameters"].mean()
    blocks = selection.sparsifiable(records)
    for label, shape in models.items():
        shape["parameters"] = _count(sizes.get(label))
        shape["of these in sparse layers"] = _count(blocks.get(label))
    names = list(dict.fromkeys(key for shape in models.values() for key in shape))
    source = published.source_id(study)
    rows = []
    for name in names:
        row = {"setting": name.replace("_", " ")}
        row |= {f"ours, {label}": _text(shape.get(name)) for label, shape in models.items()}
        metric = PUBLISHED.get(name, "")
        row["source (published)"] = published.value(source, metric=metric)
        if any(row[f"ours, {label}"] for label in models):
            rows.append(row)
    columns = ["setting", *(f"ours, {label}" for label in models), "source (published)"]
    return pd.DataFrame(rows, columns=columns)


def _count(value: float | None) -> int | None:
    return None if value is None or value != value else round(value)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) and value >= 10_000 else str(value)
