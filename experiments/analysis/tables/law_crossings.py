"""Where one method passes another, by their laws: training data (tokens or images) per non-zero
weight at which the difference of losses changes sign, which of the two is better before that, and
a 95% interval over the draws that change the same way, with their share. Two sparse methods are
compared at the middle size; against dense it is a dense model of as many non-zero weights as the
largest fitted model has at that sparsity. Better says which method the band names at the longest
fitted budget and at ten times that (extrapolated); no answer where the band covers both signs."""

from typing import Any

import pandas as pd

from experiments.analysis import effects, law_cells, scaling
from experiments.specs.planned import PlannedStudy

EVERY_RECIPE = True
COLUMNS = ["a", "b", "sparsity", "non-zero weights", "passes at (data per weight)", "low", "high",
           "better before", "draws that cross so", "better at the longest budget",
           "better at ten times", "runs"]  # fmt: skip


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per pair of methods and sparsity."""
    laws = scaling.fit_all(law_cells.finished(records, study))
    made = []
    against_dense = [(name, law_cells.DENSE) for name in laws if name != law_cells.DENSE]
    for a, b in [*against_dense, *effects.pairs(laws)]:
        for sparsity in effects.common_levels(laws[a], laws[b]):
            names = (law_cells.name_of(study, a), law_cells.name_of(study, b))
            made.append(_row(laws[a], laws[b], sparsity, names))
    return pd.DataFrame(made, columns=COLUMNS)


def _row(
    a: scaling.Fitted, b: scaling.Fitted, sparsity: float, names: tuple[str, str]
) -> dict[str, Any]:
    nonzero = a.largest(sparsity) if b.algorithm == law_cells.DENSE else a.middle(sparsity)
    longest = float(a.rows["data"].max())
    found = effects.crossing(
        lambda d: effects.minus(a, b, sparsity, nonzero, d)[0],
        lambda d: effects.minus(a, b, sparsity, nonzero, d)[1],
        (float(a.rows["data"].min()), effects.BEYOND * longest),
    )
    answers = []
    for budget in (longest, effects.BEYOND * longest):
        _, low, high = effects.effect(a, b, sparsity, nonzero, budget)
        answers.append(effects.words(float(low), float(high), names))
    own = pd.concat([a.rows, b.rows])
    runs = own[own["sparsity"].isin([sparsity])]["run"].drop_duplicates()
    before = {-1: names[0], 1: names[1], 0: ""}[found.before]
    values = [found.data / nonzero, found.low / nonzero, found.high / nonzero, before, found.share]
    place = [*names, sparsity, nonzero, *values, *answers, " ".join(runs)]
    return dict(zip(COLUMNS, place, strict=True))
