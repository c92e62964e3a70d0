"""In what the mask settings of RigL and GraNet differ here. GraNet needs the sparsity schedule
alone, as the source says (Figure 6, an image); how often and how much it updates was chosen by
trials."""

from typing import Any

import pandas as pd

from experiments.specs.planned import PlannedStudy

COLUMNS = ["setting", "RigL", "GraNet", "runs"]


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per setting that differs between the study's first RigL and GraNet runs."""
    found: dict[str, dict[str, Any]] = {}
    runs: dict[str, str] = {}
    for run in study.runs:
        spec, name = run.spec, run.spec.algorithm
        if name in ("rigl", "granet") and spec.transform is None and name not in found:
            found[name], runs[name] = _flat(spec.sparsity), run.id
    if len(found) < 2:
        return pd.DataFrame(columns=COLUMNS)
    rigl, granet = found["rigl"], found["granet"]
    rows = [
        (key, _text(rigl, key), _text(granet, key), f"{runs['rigl']} {runs['granet']}")
        for key in dict.fromkeys([*rigl, *granet])
        if rigl.get(key) != granet.get(key)
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def _flat(value: dict[str, Any], prefix: str = "sparsity") -> dict[str, Any]:
    """Nested settings by their path."""
    flat: dict[str, Any] = {}
    for key, item in value.items():
        path = f"{prefix}.{key}"
        flat |= _flat(item, path) if isinstance(item, dict) else {path: item}
    return flat


def _text(settings: dict[str, Any], key: str) -> str:
    return str(settings[key]) if key in settings else ""
