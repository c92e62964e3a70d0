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

from experiments.analysis import effects, law_cells, scaling
from experiments.errors import UserError
from experiments.published import FOLDER
from experiments.specs.planned import PlannedStudy

SEED_KEYS = ["method", "algorithm", "model", "sparsity", "weights", "nonzero", "data"]


def path(study: str, scale: str) -> Path:
    """Where the predictions of a study at a scale are kept."""
    return FOLDER / "predictions" / f"{study}.{scale}.json"


def predict(
    records: pd.DataFrame,
    study: PlannedStudy,
    *,
    date: str,
    earlier: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """What the laws say of every held-out cell that they can speak of.

    Args:
        records: Tidy records of the study.
        study: The study with its planned runs.
        date: Day of the prediction, YYYY-MM-DD.
        earlier: What is registered already: it stays, and methods that had no law then are added.

    Raises:
        UserError: If a held-out run that is to be predicted has finished, no cell is held out, or
            no law can be fitted that speaks of a further one.
    """
    planned, rows = law_cells.planned(study), law_cells.finished(records, study)
    held_out = planned[planned["held_out"].astype(bool)]
    if held_out.empty:
        raise UserError(f"{study.name} holds nothing out at scale {study.scale}")
    before = earlier or {"losses": [], "signs": []}
    said = {loss["method"]: loss for loss in before["losses"] if "predicted" in loss}
    laws = scaling.fit_all(rows)
    fresh = held_out[held_out["algorithm"].isin(laws) & ~held_out["method"].isin(said)]
    seen = rows[rows["run"].isin(fresh["run"])]["run"]
    if len(seen):
        raise UserError(f"{seen.iloc[0]} has finished, so its loss can no longer be predicted")
    if fresh.empty:
        waits = law_cells.waiting(rows, study)
        raise UserError(" ".join(["no further law can be fitted yet:", *waits]).rstrip(".:"))
    cells = held_out.groupby(SEED_KEYS, sort=False)["seed"].size().rename("seeds").reset_index()
    draws: dict[str, np.ndarray] = {}
    points: dict[str, float] = {}
    losses = []
    for cell in cells.to_dict("records"):
        place = cell["sparsity"], cell["nonzero"], cell["data"]
        if cell["algorithm"] not in laws:
            losses.append({**cell, "waits_for": law_cells.waits_for(rows, cell["algorithm"])})
            continue
        law = laws[cell["algorithm"]]
        draws[cell["method"]] = law.predicted_means(*place, seeds=cell["seeds"])
        points[cell["method"]] = float(law.law(*place))
        low, high = effects.interval(draws[cell["method"]])
        new = {**cell, **_rounded(points[cell["method"]], low, high), "date": date}
        losses.append(said.get(cell["method"], new))
    signs = list(before["signs"])
    for a, b in itertools.combinations(draws, 2):
        if a in said and b in said:
            continue
        difference = draws[a] - draws[b]
        low, high = effects.interval(difference)
        answer = effects.words(float(low), float(high), (a, b))
        values = _rounded(points[a] - points[b], low, high)
        signs.append({"a": a, "b": b, **values, "better": answer, "date": date})
    content = {
        "study": study.name,
        "scale": study.scale,
        "date": date,
        "unit": f"{law_cells.subject(study).loss}, mean of the seeds, 95% band",
        "fitted_runs": sorted(rows[~rows["held_out"].astype(bool)]["run"]),
        "losses": losses,
        "signs": signs,
    }
    if earlier is not None:
        content["earlier"] = [*earlier.get("earlier", []), earlier["hash"]]
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
