"""What was measured, beside what the laws say: two models of as many non-zero weights (Sparse-Wide:
of equal FLOPs) on equal data, of which one is sparser, such as a dense one and a wider one at 75%.
Measured is the mean loss of the sparser one minus that of the other, with a 95% Welch interval over
seeds; by law is the same difference by the fitted laws, with the 95% band of means of as many
seeds, and inside says whether the measured difference lies in it. Where the two disagree, the
measured one counts. Non-zero weights are those of the blocks, or, of Sparse-Wide, the stage weights
of the dense network of equal FLOPs."""

from typing import Any

import pandas as pd

from experiments.analysis import effects, law_cells, scaling
from experiments.specs.planned import PlannedStudy

EVERY_RECIPE = True
COLUMNS = ["method", "sparsity", "model", "other sparsity", "other model", "non-zero weights",
           "data", "seeds", "measured", "low", "high", "better", "by law", "law low", "law high",
           "inside", "runs"]  # fmt: skip
#: By how much non-zero weights may differ and still count as equal.
EQUAL = 1e-3


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per method, pair of sparsities and budget."""
    rows = law_cells.finished(records, study)
    laws = scaling.fit_all(rows)
    keys = ["algorithm", "model", "sparsity", "nonzero", "data"]
    cells = [(dict(zip(keys, key, strict=True)), own) for key, own in rows.groupby(keys)]
    made = []
    for sparser, its_runs in cells:
        for other, other_runs in cells:
            if _is_pair(sparser, other):
                row = _measured(sparser, its_runs, other, other_runs)
                made.append(row | _by_law(laws, sparser, its_runs, other, other_runs))
    order = ["method", "other sparsity", "sparsity", "non-zero weights", "data"]
    return pd.DataFrame(made, columns=COLUMNS).sort_values(order, ignore_index=True)


def _is_pair(sparser: dict[str, Any], other: dict[str, Any]) -> bool:
    is_own = other["algorithm"] in (sparser["algorithm"], law_cells.DENSE)
    is_equal = abs(other["nonzero"] / sparser["nonzero"] - 1) <= EQUAL
    return (
        is_own
        and is_equal
        and sparser["sparsity"] > other["sparsity"]
        and sparser["data"] == other["data"]
    )


def _measured(
    sparser: dict[str, Any], runs: pd.DataFrame, other: dict[str, Any], others: pd.DataFrame
) -> dict[str, Any]:
    from scipy import stats

    row = {
        "method": sparser["algorithm"],
        "sparsity": sparser["sparsity"],
        "model": sparser["model"],
        "other sparsity": other["sparsity"],
        "other model": other["model"],
        "non-zero weights": sparser["nonzero"],
        "data": sparser["data"],
        "seeds": min(len(runs), len(others)),
        "measured": float(runs["loss"].mean() - others["loss"].mean()),
        "runs": " ".join([*runs["run"], *others["run"]]),
    }
    if row["seeds"] < 2:
        return row | {"better": f"waits for seeds: {row['seeds']} of 2"}
    found = stats.ttest_ind(runs["loss"], others["loss"], equal_var=False).confidence_interval()
    low, high = float(found.low), float(found.high)
    return row | {"low": low, "high": high, "better": effects.words(low, high, _names(row))}


def _names(row: dict[str, Any]) -> tuple[str, str]:
    """The sparser model, and the other."""
    first, second = (f"{100 * row[key]:g}%" for key in ("sparsity", "other sparsity"))
    return first, second if row["other sparsity"] else law_cells.DENSE


def _by_law(
    laws: dict[str, scaling.Fitted],
    sparser: dict[str, Any],
    runs: pd.DataFrame,
    other: dict[str, Any],
    others: pd.DataFrame,
) -> dict[str, Any]:
    """What the law says of means of as many seeds."""
    if sparser["algorithm"] not in laws:
        return {"inside": "no law yet"}
    law = laws[sparser["algorithm"]]
    places = [(cell["sparsity"], sparser["nonzero"], sparser["data"]) for cell in (sparser, other)]
    point = float(law.law(*places[0]) - law.law(*places[1]))
    drawn = [
        law.predicted_means(*place, seeds=len(own))
        for place, own in zip(places, (runs, others), strict=True)
    ]
    low, high = map(float, effects.interval(drawn[0] - drawn[1]))
    measured = runs["loss"].mean() - others["loss"].mean()
    inside = "yes" if low <= measured <= high else "no"
    return {"by law": point, "law low": low, "law high": high, "inside": inside}
