"""Each method's settings of training on the study's first model, by recipe, beside those that the
source states, and the sizes of all models. Where methods of one recipe differ, their names follow
the value."""

from typing import Any

import pandas as pd

from experiments import published
from experiments.analysis.methods import Methods
from experiments.specs.schema import PlannedStudy

PUBLISHED = {
    "tokens": "training tokens",
    "context": "context length",
    "learning_rate": "peak LR",
    "min_learning_rate": "final LR (cosine)",
    "warmup": "warm-up",
    "weight_decay": "weight decay",
    "clip_norm": "grad clip (global norm)",
    "betas": "optimizer",
    "eps": "optimizer",
    "batch_size": "batch size of sparse runs",
    "steps": "steps of sparse runs",
}


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per hyperparameter; one column per recipe of the study's first model."""
    specs, looks = [run.spec for run in study.runs], Methods(study)
    own = [spec for spec in specs if spec.model.label == specs[0].model.label]
    recipes: dict[str, dict[str, dict[str, list[str]]]] = {}
    for spec in own:
        settings = spec.to_json()["recipe"]
        settings |= {key: getattr(spec.data, key, None) for key in ("context", "vocab_size")}
        columns = recipes.setdefault(f"ours, {settings.pop('name', 'recipe')}", {})
        method = looks[spec.method or ""].name
        for name, value in settings.items():
            methods = columns.setdefault(name, {}).setdefault(_text(value), [])
            if method not in methods:
                methods.append(method)
    names = dict.fromkeys(name for columns in recipes.values() for name in columns)
    source = published.source_id(study)
    rows = []
    for name in names:
        row = {"setting": name}
        row |= {title: _shown(columns.get(name, {})) for title, columns in recipes.items()}
        metric = PUBLISHED.get(name)
        row["source (published)"] = published.value(source, metric=metric) if metric else ""
        if any(row[title] for title in recipes):
            rows.append(row)
    for label, model in {spec.model.label: spec.model for spec in specs}.items():
        sizes = f"{model.name}, {_text(model.model_extra)}"
        rows.append({"setting": f"model {label}", next(iter(recipes)): sizes})
    return pd.DataFrame(rows, columns=["setting", *recipes, "source (published)"])


def _shown(values: dict[str, list[str]]) -> str:
    """One value alone, or each with the methods that have it."""
    if len(values) < 2:
        return next(iter(values), "")
    return "; ".join(f"{value} ({', '.join(methods)})" for value, methods in values.items())


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        return ", ".join(f"{name} {part}" for name, part in value.items())
    return ", ".join(str(item) for item in value) if isinstance(value, list) else str(value)
