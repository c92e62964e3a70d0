"""Cells that laws are fitted to: a model at a sparsity and a budget, all its seeds together.

What the loss is and what data count in depends on the task (`SUBJECTS`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from experiments.analysis.methods import FAMILIES, algorithm_name
from experiments.specs.planned import PlannedStudy
from experiments.store import tidy

DENSE = "dense"
#: What a fit needs, so that every coefficient is asked of the data.
MIN_SIZES, MIN_BUDGETS, MIN_LEVELS = 2, 3, 2


@dataclass(frozen=True)
class Subject:
    """What the laws of a task are about.

    Attributes:
        metric: Score in the records.
        split: Of the data, that the score is on.
        loss: What is fitted, in words: the score, or one minus it.
        data: What a budget counts, in words.
        size: What the law's N counts, in words.
        equal: What two models of one N have as many of: ``weights`` or ``FLOPs``.
        is_error: Whether the loss is one minus the score.
        is_timed: Whether `experiments.analysis.clocks` price the models: by linear layers.
    """

    metric: str
    split: str
    loss: str
    data: str
    size: str
    equal: str
    is_error: bool = False
    is_timed: bool = True

    @property
    def unit(self) -> str:
        """What one of the data is called in the plural: ``tokens`` or ``images``."""
        return self.data.removeprefix("training ")


#: By task. The error of a classifier is a loss in (0, 1).
SUBJECTS = {
    "lm": Subject(
        "bits_per_byte",
        "validation",
        "bits per byte",
        "training tokens",
        "non-zero weights of the blocks",
        "weights",
    ),
    "vision": Subject(
        "accuracy",
        "test",
        "test error",
        "training images",
        "stage weights of the dense network of equal FLOPs",
        "FLOPs",
        is_error=True,
        is_timed=False,
    ),
}


def subject(study: PlannedStudy) -> Subject:
    """What the laws of a study are about: that of its first run's task."""
    task = study.runs[0].spec.task if study.runs else "lm"
    return SUBJECTS.get(task, SUBJECTS["lm"])


def name_of(study: PlannedStudy, algorithm: str) -> str:
    """What people read for an algorithm of a study.

    With the family in front where all planned runs of the algorithm are Sparse-Wide.
    """
    families = {run.spec.family for run in study.runs if run.spec.algorithm == algorithm}
    name = algorithm_name(algorithm)
    return f"{FAMILIES['wide'][0]} {name}" if families == {"wide"} else name


COLUMNS = ["run", "method", "algorithm", "model", "sparsity", "seed", "weights", "nonzero",
           "data", "held_out", "loss"]  # fmt: skip
#: Types of the columns that tables are joined and compared by, also where there is no row.
TYPES = {"sparsity": float, "seed": int, "weights": int, "nonzero": float, "data": int,
         "held_out": bool}  # fmt: skip
EMPTY = pd.DataFrame(columns=COLUMNS)


def planned(study: PlannedStudy, *, annealed: str = "stable") -> pd.DataFrame:
    """The runs that laws are about, finished or not; `COLUMNS` without the loss.

    Args:
        study: The study with its planned runs.
        annealed: ``stable`` for those whose rate was constant and then decayed, which laws are
            about; ``cosine`` for the others that end with a low rate.
    """
    rows = []
    for run in study.runs:
        spec, recipe, weights = run.spec, run.spec.recipe, run.block_weights
        data: Any = spec.data
        kind = "cosine" if recipe.stable is None else "stable" if recipe.stable.decay else "trunk"
        if kind != annealed or weights is None:
            continue
        sparsity = spec.final_sparsity or 0.0
        # A Sparse-Wide model counts as the dense one of equal FLOPs, which it is made from.
        nonzero = weights if spec.family == "wide" else weights * (1 - sparsity)
        rows.append(
            {
                "run": run.id,
                "method": spec.method,
                "algorithm": spec.algorithm,
                "model": spec.model.label,
                "sparsity": sparsity,
                "seed": spec.seed,
                "weights": weights,
                "nonzero": nonzero,
                "data": recipe.steps * recipe.batch_size * getattr(data, "context", 1),
                "held_out": run.held_out,
            }
        )
    return pd.DataFrame(rows, columns=COLUMNS[:-1]).astype(TYPES)


def finished(records: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """The planned runs that have a score; `COLUMNS`."""
    both = planned(study).merge(scores(records, study), on="run")
    return both[COLUMNS].dropna(subset=["loss"])


def scores(records: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """``run`` and ``loss`` of each record that has the study's score."""
    about = subject(study)
    rows = tidy.select(records, about.metric, split=about.split)[["run", "value"]]
    if about.is_error:
        rows = rows.assign(value=1 - rows["value"])
    return rows.rename(columns={"value": "loss"})


def of_algorithm(rows: pd.DataFrame, algorithm: str) -> pd.DataFrame:
    """The rows of one algorithm, and the dense ones, which are its sparsity 0."""
    return rows[rows["algorithm"].isin([algorithm, DENSE])]


def waits_for(rows: pd.DataFrame, algorithm: str) -> str:
    """What is missing before a law of this algorithm can be fitted; empty if nothing is."""
    own = of_algorithm(rows, algorithm)
    counts = [(own["model"], MIN_SIZES, "sizes"), (own["data"], MIN_BUDGETS, "budgets")]
    if algorithm != DENSE:
        levels = own.loc[own["algorithm"] == algorithm, "sparsity"]
        counts.append((levels, MIN_LEVELS, "sparsities besides dense"))
    lacking = [
        f"{values.nunique()} of {count} {name}"
        for values, count, name in counts
        if values.nunique() < count
    ]
    if not lacking and len(own.groupby(["model", "sparsity", "data"])) < 10:
        lacking = ["fewer than 10 cells"]
    return ", ".join(lacking)


def waiting(rows: pd.DataFrame, study: PlannedStudy) -> list[str]:
    """One sentence per planned algorithm without a law: what it waits for."""
    names = dict.fromkeys(planned(study)["algorithm"])
    rows = rows[~rows["held_out"].astype(bool)]
    missing = {name_of(study, name): waits_for(rows, name) for name in names}
    return [f"{name} has no law yet: {text}." for name, text in missing.items() if text]


def cell_means(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per cell: mean, number of seeds, and the spread between them."""
    keys = ["algorithm", "method", "model", "sparsity", "weights", "nonzero", "data", "held_out"]
    groups = rows.groupby(keys, sort=False)["loss"]
    return groups.agg(loss="mean", seeds="size", sd="std").reset_index()
