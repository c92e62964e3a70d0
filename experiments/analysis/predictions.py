"""Predictions that can fail: losses of held-out runs, written down before the runs are trained.

A file of ``experiments/published/predictions`` holds what the laws of a study say of its held-out
cells, the date, the runs that were fitted, and a hash of all of it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.analysis import scaling
from experiments.errors import UserError
from experiments.published import FOLDER
from experiments.specs.planned import PlannedStudy

SEED_KEYS = ["method", "algorithm", "model", "sparsity", "weights", "nonzero", "data"]


def path(study: str, scale: str) -> Path:
    """Where the predictions of a study at a scale are kept."""
    return FOLDER / "predictions" / f"{study}.{scale}.json"


def predict(records: pd.DataFrame, study: PlannedStudy, *, date: str) -> dict[str, Any]:
    """What the laws say of every held-out cell that they can speak of.

    Args:
        records: Tidy records of the study.
        study: The study with its planned runs.
        date: Day of the prediction, YYYY-MM-DD.

    Raises:
        UserError: If a held-out run has finished, no cell is held out, or no law can be fitted.
    """
    planned, rows = scaling.planned(study), scaling.finished(records, study)
    held_out = planned[planned["held_out"].astype(bool)]
    if held_out.empty:
        raise UserError(f"{study.name} holds nothing out at scale {study.scale}")
    seen = rows[rows["held_out"].astype(bool)]["run"]
    if len(seen):
        raise UserError(f"{seen.iloc[0]} has finished, so its loss can no longer be predicted")
    laws = scaling.fit_all(rows)
    cells = held_out.groupby(SEED_KEYS, sort=False)["seed"].size().rename("seeds").reset_index()
    if not set(cells["algorithm"]) & set(laws):
        waits = scaling.waits_for(rows, scaling.DENSE)
        raise UserError(f"no law can be fitted yet: the dense one has {waits or 'all it needs'}")
    draws: dict[str, np.ndarray] = {}
    losses = []
    for cell in cells.to_dict("records"):
        place = cell["sparsity"], cell["nonzero"], cell["data"]
        if cell["algorithm"] not in laws:
            losses.append({**cell, "waits_for": scaling.waits_for(rows, cell["algorithm"])})
            continue
        law = laws[cell["algorithm"]]
        draws[cell["method"]] = law.predicted_means(*place, seeds=cell["seeds"])
        low, high = scaling.interval(draws[cell["method"]])
        losses.append({**cell, **_rounded(law.law(*place), low, high)})
    signs = []
    for a, b in itertools.combinations(draws, 2):
        difference = draws[a] - draws[b]
        low, high = scaling.interval(difference)
        answer = scaling.words(float(low), float(high), (a, b))
        signs.append(
            {"a": a, "b": b, **_rounded(np.median(difference), low, high), "better": answer}
        )
    content = {
        "study": study.name,
        "scale": study.scale,
        "date": date,
        "unit": f"{scaling.subject(study).loss}, mean of the seeds, 95% band",
        "fitted_runs": sorted(rows["run"]),
        "losses": losses,
        "signs": signs,
    }
    return {**content, "hash": digest(content)}


def _rounded(value: Any, low: Any, high: Any) -> dict[str, float]:
    return {
        key: round(float(number), 5)
        for key, number in (("predicted", value), ("low", low), ("high", high))
    }


def digest(content: dict[str, Any]) -> str:
    """Hash of a prediction without its own hash."""
    kept = {key: value for key, value in content.items() if key != "hash"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def registered(study: str, scale: str) -> dict[str, Any] | None:
    """The registered prediction; None where there is none.

    Raises:
        UserError: If the file was changed after it was written.
    """
    file = path(study, scale)
    if not file.is_file():
        return None
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if content.get("hash") != digest(content):
        raise UserError(f"{file.name} was changed after it was registered: its hash is another")
    return content
