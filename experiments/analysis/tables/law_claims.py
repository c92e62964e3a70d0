"""What the laws say of claims. First at the sparsity, size and budget of the claim's source,
extrapolated by orders of magnitude: the difference of losses with its 95% band, and no answer where
the band covers both signs. A claim on several sparsities is asked at each, and the worst counts.
Trained or extrapolated says whether all that is asked lies inside of the fitted sizes and budgets.
Weights in says which weights are counted: of Sparse-Wide, those of the dense network. The verdict
at the tested point is in the ledger of the study that tests the claim; the front page has both. Of
text, C070 to C072 are asked at the non-zero weights of the smallest fitted dense model and the
longest fitted budget, of gradual pruning, as in the source, and C070 and C071 of Static, too."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from experiments import published
from experiments.analysis import effects, law_cells, scaling
from experiments.specs.planned import PlannedStudy

EVERY_RECIPE = True
COLUMNS = ["claim", "statement", "asked", "non-zero weights", "weights in", "data", "data in",
           "value", "low", "high", "unit", "says", "place", "runs"]  # fmt: skip
GRADUAL, CONSTANT = "gmp", "static"
#: In places.yaml: each sparsity of a list against the one before it.
SPARSER = "sparser"
LEVELS = (0.0, 0.5, 0.75, 0.875)
#: Worth of 75% sparsity in the source (T5), and how far from it still agrees.
PUBLISHED_WORTH, TOLERANCE = 2.157, 0.1


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per claim and method that laws can speak of."""
    rows, about = law_cells.finished(records, study), law_cells.subject(study)
    laws = scaling.fit_all(rows)
    fitted = rows[~rows["held_out"].astype(bool)]
    made = []
    for claim, place in published.places().items():
        if place["study"] != study.name:
            continue
        needed = [place["a"], law_cells.DENSE if place["b"] == SPARSER else place["b"]]
        missing = [name for name in needed if name not in laws]
        row = {"claim": claim, "asked": _asked(study, place), "place": "extrapolated"}
        row |= {"data": place["data"], "unit": about.loss}
        found = _waits(study, fitted, missing) if missing else _at(study, laws, place)
        made.append(row | found)
    trained = law_cells.planned(study)["algorithm"].unique()
    questions = (("C070", _falls), ("C071", _worth), ("C072", _rises))
    for claim, ask in questions if GRADUAL in trained else ():
        for name in (GRADUAL, CONSTANT):
            if name == GRADUAL or (name in laws and ask is not _rises):
                made.append({"claim": claim} | _of(study, laws, fitted, name, ask))
    table = pd.DataFrame(made, columns=COLUMNS)
    statements = published.claims().set_index("claim_id")["statement"]
    shared = {"weights in": about.size, "data in": about.unit}
    return table.assign(statement=table["claim"].map(statements), **shared)


def _asked(study: PlannedStudy, place: dict[str, Any]) -> str:
    """What is asked at a place, in words."""
    levels = np.atleast_1d(place["sparsity"])
    at = ", ".join(f"{100 * level:g}" for level in levels)
    if place["b"] == SPARSER:
        steps = at.replace(", ", " to ")
        return f"{_name(study, place['a'])}: largest step of loss from {steps}%"
    worst = f"{_name(study, place['a'])} minus {_name(study, place['b'])} at {at}%"
    return worst if len(levels) == 1 else f"largest of {worst}"


def _name(study: PlannedStudy, key: str) -> str:
    """A method in a sentence."""
    return key if key == law_cells.DENSE else law_cells.name_of(study, key)


def _waits(study: PlannedStudy, rows: pd.DataFrame, names: list[str]) -> dict[str, Any]:
    parts = [
        f"{law_cells.name_of(study, name)} has {law_cells.waits_for(rows, name)}" for name in names
    ]
    return {"says": f"waits for runs: {'; '.join(parts)}"}


def _at(
    study: PlannedStudy, laws: dict[str, scaling.Fitted], place: dict[str, Any]
) -> dict[str, Any]:
    """The answer at the place of a source."""
    a, levels = laws[place["a"]], np.atleast_1d(place["sparsity"])
    b = a if place["b"] == SPARSER else laws[place["b"]]
    kept = 1 if a.widened else 1 - levels
    nonzero = place["weights"] * kept * np.ones_like(levels)
    if place["b"] == SPARSER:
        points = np.diff(a.law(levels, nonzero, place["data"]))
        draws = np.diff(a.sample(levels, nonzero, place["data"]))
    else:
        points, draws = effects.minus(a, b, levels, nonzero, place["data"])
    value, (low, high) = float(points.max()), map(float, effects.interval(draws.max(1)))
    runs = pd.concat([a.rows, b.rows])
    used = runs[runs["sparsity"] > 0]["run"].drop_duplicates()
    if len(levels) == 1:
        better = effects.words(low, high, [_name(study, place[key]) for key in "ab"])
        says = better if better == effects.NO_ANSWER else f"{better} is better"
    else:
        says = _word(agrees=high < 0, against=low > 0)
    found = {"value": value, "low": low, "high": high, "says": says, "runs": " ".join(used)}
    return found | {"non-zero weights": float(nonzero.max())}


def _of(
    study: PlannedStudy,
    laws: dict[str, scaling.Fitted],
    rows: pd.DataFrame,
    name: str,
    ask: Callable[[scaling.Fitted], dict[str, Any]],
) -> dict[str, Any]:
    """The answer of one method's law where it was trained."""
    if name not in laws:
        return {"asked": law_cells.name_of(study, name), **_waits(study, rows, [name])}
    found = ask(laws[name])
    return found | {"asked": f"{law_cells.name_of(study, name)}: {found['asked']}"}


def _where(law: scaling.Fitted, levels: Any, nonzero: float, budgets: Any) -> dict[str, Any]:
    """Where one law is asked, and whether all of it lies inside of what was fitted."""
    beyond = any(
        law.extrapolated(float(level), nonzero, float(budget))
        for level in np.atleast_1d(levels)
        for budget in np.atleast_1d(budgets)
    )
    return {
        "non-zero weights": nonzero,
        "data": float(np.max(budgets)),
        "place": "extrapolated" if beyond else "trained",
    }


def _says(low: float, high: float, *, agrees: bool, against: bool) -> dict[str, Any]:
    return {"low": low, "high": high, "says": _word(agrees=agrees, against=against)}


def _word(*, agrees: bool, against: bool) -> str:
    return "agrees" if agrees else "disagrees" if against else effects.NO_ANSWER


def _falls(law: scaling.Fitted) -> dict[str, Any]:
    """The largest step of loss from one sparsity to the next, at equal non-zeros."""
    nonzero, tokens = law.place
    levels = np.array([s for s in LEVELS if s <= law.rows["sparsity"].max()])
    value = float(np.diff(law.law(levels, nonzero, tokens)).max())
    low, high = map(float, effects.interval(np.diff(law.sample(levels, nonzero, tokens)).max(1)))
    shared = {"asked": "largest step of loss between sparsities", "value": value}
    shared["unit"] = "bits per byte"
    shared |= _where(law, levels, nonzero, tokens)
    return {**shared, **_says(low, high, agrees=high < 0, against=low > 0)}


def _worth(law: scaling.Fitted) -> dict[str, Any]:
    """How many times its non-zeros a dense model of equal loss has at 75%."""
    nonzero, tokens = law.place
    value, draws = law.worth(0.75, nonzero, tokens)
    low, high = map(float, effects.interval(draws))
    bounds = PUBLISHED_WORTH * (1 - TOLERANCE), PUBLISHED_WORTH * (1 + TOLERANCE)
    shared = {"asked": "worth of 75% sparsity", "value": value, "unit": "times its non-zeros"}
    shared |= _where(law, [0.0, 0.75], nonzero, tokens)
    inside = bounds[0] <= low and high <= bounds[1]
    outside = high < bounds[0] or low > bounds[1]
    return {**shared, **_says(low, high, agrees=inside, against=outside)}


def _rises(law: scaling.Fitted) -> dict[str, Any]:
    """How much the best sparsity rises from the shortest to the longest budget."""
    nonzero, tokens = law.place
    highest, shortest = float(law.rows["sparsity"].max()), float(law.rows["data"].min())

    def rise(one: Any) -> float:
        ends = [one.best_sparsity(nonzero, d, highest=highest) for d in (shortest, tokens)]
        return float(ends[1] - ends[0])

    low, high = map(float, effects.interval(np.array([rise(one) for one in law.draws])))
    shared = {"asked": "rise of the best sparsity, shortest to longest", "value": rise(law.law)}
    shared["unit"] = "share of zeros"
    shared |= _where(law, [0.0, highest], nonzero, [shortest, tokens])
    return {**shared, **_says(low, high, agrees=low > 0, against=high <= 0)}
