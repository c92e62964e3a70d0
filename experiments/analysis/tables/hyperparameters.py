"""What each method was trained with, beside what the source states for its 1.3B model. Compare
Tables 1 and 2 of the source, which are images whose other numbers are not known."""

from typing import Any

import pandas as pd

from experiments.analysis import published

PUBLISHED = {
    "tokens": "training tokens",
    "context": "context length",
    "learning_rate": "peak LR",
    "min_learning_rate": "final LR (cosine)",
    "warmup": "warm-up",
    "weight_decay": "weight decay",
    "clip_norm": "grad clip (global norm)",
    "batch_size": "batch size of sparse runs",
    "steps": "steps of sparse runs",
}


def make(records: pd.DataFrame, curves: pd.DataFrame, study: dict[str, Any]) -> pd.DataFrame:
    """One row per hyperparameter; one column per recipe of the study's first model."""
    specs = [run["spec"] for run in study.get("runs", []) if run.get("spec")]
    specs = [spec for spec in specs if spec["model"]["label"] == specs[0]["model"]["label"]]
    recipes: dict[str, dict[str, Any]] = {}
    for spec in specs:
        values = spec["recipe"] | {"context": spec["data"].get("context")}
        recipes.setdefault(f"ours, {spec['recipe'].get('name', 'recipe')}", values)
    names = dict.fromkeys(name for values in recipes.values() for name in values if name != "name")
    source = published.source_id(study)
    rows = []
    for name in names:
        row = {"setting": name} | {title: _text(v.get(name)) for title, v in recipes.items()}
        metric = PUBLISHED.get(name)
        row["source (published)"] = published.value(source, metric=metric) if metric else ""
        rows.append(row)
    return pd.DataFrame(rows, columns=["setting", *recipes, "source (published)"])


def _text(value: Any) -> str:
    if value is None:
        return ""
    return ", ".join(str(item) for item in value) if isinstance(value, list) else str(value)
