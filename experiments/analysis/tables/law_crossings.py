"""Where one method passes another, by their laws: training tokens per non-zero weight at which the
difference of losses changes sign, at the middle size, with a 95% interval over the draws that
cross at all and their share. Better says which method the band names at the longest fitted budget
and at ten times that (extrapolated); no answer where the band covers both signs."""

from typing import Any

import numpy as np
import pandas as pd

from experiments.analysis import scaling
from experiments.analysis.figures.law_effects import BEYOND, common_levels, pairs
from experiments.specs.planned import PlannedStudy

COLUMNS = ["a", "b", "sparsity", "non-zero weights", "passes at (tokens per weight)", "low", "high",
           "draws that cross", "better at the longest budget", "better at ten times",
           "runs"]  # fmt: skip


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per pair of methods and sparsity."""
    laws = scaling.fit_all(scaling.finished(records, study))
    made = []
    for a, b in pairs(laws):
        for sparsity in common_levels(laws[a], laws[b]):
            made.append(_row(laws[a], laws[b], sparsity))
    return pd.DataFrame(made, columns=COLUMNS)


def _row(a: scaling.Fitted, b: scaling.Fitted, sparsity: float) -> dict[str, Any]:
    weights = float(np.median(a.rows["weights"].unique()))
    nonzero = weights * (1 - sparsity)
    longest = float(a.rows["tokens"].max())
    found = scaling.crossing(
        lambda d: a.law(sparsity, nonzero, d) - b.law(sparsity, nonzero, d),
        lambda d: a.sample(sparsity, nonzero, d) - b.sample(sparsity, nonzero, d),
        (float(a.rows["tokens"].min()), BEYOND * longest),
    )
    answers = []
    for tokens in (longest, BEYOND * longest):
        _, low, high = scaling.effect(a, b, sparsity, nonzero, tokens)
        answers.append(scaling.words(float(low), float(high), (a.algorithm, b.algorithm)))
    own = pd.concat([a.rows, b.rows])
    runs = own[own["sparsity"].isin([sparsity])]["run"]
    values = [found.tokens / nonzero, found.low / nonzero, found.high / nonzero, found.share]
    place = [a.algorithm, b.algorithm, sparsity, nonzero, *values, *answers, " ".join(runs)]
    return dict(zip(COLUMNS, place, strict=True))
