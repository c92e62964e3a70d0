"""Predictions that can fail: losses of held-out runs, written down before the runs are trained.

A file of ``experiments/published/predictions`` holds what the laws of a study say of its held-out
cells, the date, the runs that were fitted, those that were planned and missing, and a hash of all
of it. Where cells of a held-out model are fitted, it has what is said without a law, too: a loss by
a line through the last budgets, and a difference as it was at the longest of them.
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

#: Budgets that a line goes through: the longest ones of a method's model.
LINE = 3

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
    fitted = rows[~rows["held_out"].astype(bool)]
    missing = planned[~planned["held_out"].astype(bool) & ~planned["run"].isin(fitted["run"])]
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
        if (line := by_a_line(fitted, cell)) is not None:
            new["line"] = round(line, 5)
        losses.append(said.get(cell["method"], new))
    signs = list(before["signs"])
    for a, b in itertools.combinations(draws, 2):
        if a in said and b in said:
            continue
        difference = draws[a] - draws[b]
        low, high = effects.interval(difference)
        answer = effects.words(float(low), float(high), (a, b))
        values = _rounded(points[a] - points[b], low, high)
        sign = {"a": a, "b": b, **values, "better": answer, "date": date}
        one, other = (cells[cells["method"] == name].iloc[0].to_dict() for name in (a, b))
        if (kept := carried(fitted, one, other)) is not None:
            sign["carried"] = kept
        signs.append(sign)
    content = {
        "study": study.name,
        "scale": study.scale,
        "date": date,
        "unit": f"{law_cells.subject(study).loss}, mean of the seeds, 95% band",
        "fitted_runs": sorted(fitted["run"]),
        "missing_runs": sorted(missing["run"]),
        "losses": losses,
        "signs": signs,
    }
    if earlier is not None:
        content["earlier"] = [*earlier.get("earlier", []), earlier["hash"]]
    return {**content, "hash": digest(content)}


def by_a_line(fitted: pd.DataFrame, cell: dict[str, Any]) -> float | None:
    """The loss of a cell by a line of log loss over log data, without any law.

    Args:
        fitted: The runs that laws are fitted to.
        cell: A held-out cell, with its ``method``, ``model`` and ``data``.

    Returns:
        The line goes through the means of the longest `LINE` fitted budgets of the same method and
        model; None where there are fewer than two.
    """
    own = fitted[(fitted["method"] == cell["method"]) & (fitted["model"] == cell["model"])]
    means = np.log(own.groupby("data")["loss"].mean().sort_index().iloc[-LINE:])
    if len(means) < 2:
        return None
    slope, at_one = np.polyfit(np.log(means.index.to_numpy(float)), means.to_numpy(), 1)
    return float(np.exp(at_one + slope * np.log(cell["data"])))


def carried(
    fitted: pd.DataFrame, one: dict[str, Any], other: dict[str, Any]
) -> dict[str, Any] | None:
    """The difference of two held-out cells, as it was at the longest budget of both in the fit.

    Args:
        fitted: The runs that laws are fitted to.
        one: A held-out cell.
        other: Another one.

    Returns:
        ``difference`` of losses, first minus second, the mean over shared ``seeds``, and ``data``;
        None where no seed of both is fitted at a common budget.
    """
    keys = ["data", "seed"]
    first, second = (
        fitted[(fitted["method"] == cell["method"]) & (fitted["model"] == cell["model"])][
            [*keys, "loss"]
        ]
        for cell in (one, other)
    )
    both = first.merge(second, on=keys)
    if both.empty:
        return None
    last = both[both["data"] == both["data"].max()]
    difference = float((last["loss_x"] - last["loss_y"]).mean())
    return {
        "difference": round(difference, 5),
        "seeds": len(last),
        "data": int(last["data"].iloc[0]),
    }


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
