"""What the laws say of claims. Of two methods: the difference of their losses (bits per byte) at
the sparsity, size and budget of the claim's source, extrapolated by orders of magnitude, with its
95% band; no answer where the band covers both signs. The verdict at the tested point is in the
ledger of the study that tests the claim. C070 to C072 are asked of gradual pruning at the sizes
and budgets trained here, at the middle size and the longest budget."""

from typing import Any

import numpy as np
import pandas as pd

from experiments import published
from experiments.analysis import scaling
from experiments.specs.planned import PlannedStudy

COLUMNS = ["claim", "statement", "asked", "sparsity", "non-zero weights", "tokens", "value", "low",
           "high", "says", "place", "runs"]  # fmt: skip
GRADUAL = "gmp"
LEVELS = (0.0, 0.5, 0.75, 0.875)
NO_ANSWER = "no answer"
#: Worth of 75% sparsity in the source (T5), and how far from it still agrees.
PUBLISHED_WORTH, TOLERANCE = 2.157, 0.1


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per claim that laws can speak of."""
    rows = scaling.finished(records, study)
    laws = scaling.fit_all(rows)
    fitted = rows[~rows["held_out"].astype(bool)]
    statements = published.claims().set_index("claim_id")["statement"]
    made = []
    for claim, place in published.places().items():
        missing = [name for name in (place["a"], place["b"]) if name not in laws]
        row = {"asked": f"{place['a']} minus {place['b']}", "sparsity": place["sparsity"]}
        row |= {"place": "extrapolated", "tokens": place["tokens"]}
        row["non-zero weights"] = place["weights"] * (1 - place["sparsity"])
        row |= _waits(fitted, missing) if missing else _pair(laws, claim, place)
        made.append({"claim": claim, "statement": statements[claim], **row})
    for claim, ask in (("C070", _falls), ("C071", _worth), ("C072", _rises)):
        missing = [] if GRADUAL in laws else [GRADUAL]
        row = _waits(fitted, missing) if missing else ask(laws[GRADUAL])
        made.append({"claim": claim, "statement": statements[claim], "place": "trained", **row})
    return pd.DataFrame(made, columns=COLUMNS)


def _waits(rows: pd.DataFrame, names: list[str]) -> dict[str, Any]:
    parts = [f"{name} has {scaling.waits_for(rows, name)}" for name in names]
    return {"says": f"waits for runs: {'; '.join(parts)}"}


def _pair(laws: dict[str, scaling.Fitted], claim: str, place: dict[str, Any]) -> dict[str, Any]:
    a, b = laws[place["a"]], laws[place["b"]]
    nonzero = place["weights"] * (1 - place["sparsity"])
    value, low, high = map(float, scaling.effect(a, b, place["sparsity"], nonzero, place["tokens"]))
    better = scaling.words(low, high, (place["a"], place["b"]))
    says = better if better == NO_ANSWER else f"{better} is better"
    runs = pd.concat([a.rows, b.rows])
    used = runs[runs["sparsity"] > 0]["run"].drop_duplicates()
    return {"value": value, "low": low, "high": high, "says": says, "runs": " ".join(used)}


def _place(law: scaling.Fitted) -> tuple[float, float]:
    """Non-zero weights and tokens at which claims about one law are asked."""
    return float(np.median(law.rows["nonzero"])), float(law.rows["tokens"].max())


def _says(low: float, high: float, *, agrees: bool, against: bool) -> dict[str, Any]:
    word = "agrees" if agrees else "disagrees" if against else NO_ANSWER
    return {"low": low, "high": high, "says": word}


def _falls(law: scaling.Fitted) -> dict[str, Any]:
    """The largest step of loss from one sparsity to the next, at equal non-zeros."""
    nonzero, tokens = _place(law)
    levels = np.array([s for s in LEVELS if s <= law.rows["sparsity"].max()])
    value = float(np.diff(law.law(levels, nonzero, tokens)).max())
    low, high = map(float, scaling.interval(np.diff(law.sample(levels, nonzero, tokens)).max(1)))
    shared = {"asked": "largest step of loss between sparsities", "value": value}
    shared |= {"non-zero weights": nonzero, "tokens": tokens}
    return {**shared, **_says(low, high, agrees=high < 0, against=low > 0)}


def _worth(law: scaling.Fitted) -> dict[str, Any]:
    """How many times its non-zeros a dense model of equal loss has at 75%."""
    nonzero, tokens = _place(law)
    value = law.law.worth(0.75, nonzero, tokens)
    draws = np.array([one.worth(0.75, nonzero, tokens) for one in law.draws])
    low, high = map(float, scaling.interval(draws))
    bounds = PUBLISHED_WORTH * (1 - TOLERANCE), PUBLISHED_WORTH * (1 + TOLERANCE)
    shared = {"asked": "worth of 75% sparsity", "sparsity": 0.75, "value": value}
    shared |= {"non-zero weights": nonzero, "tokens": tokens}
    inside = bounds[0] <= low and high <= bounds[1]
    outside = high < bounds[0] or low > bounds[1]
    return {**shared, **_says(low, high, agrees=inside, against=outside)}


def _rises(law: scaling.Fitted) -> dict[str, Any]:
    """How much the best sparsity rises from the shortest to the longest budget."""
    nonzero, tokens = _place(law)
    highest, shortest = float(law.rows["sparsity"].max()), float(law.rows["tokens"].min())

    def rise(one: Any) -> float:
        ends = [one.best_sparsity(nonzero, d, highest=highest) for d in (shortest, tokens)]
        return float(ends[1] - ends[0])

    low, high = map(float, scaling.interval(np.array([rise(one) for one in law.draws])))
    shared = {"asked": "rise of the best sparsity, shortest to longest", "value": rise(law.law)}
    shared |= {"non-zero weights": nonzero, "tokens": tokens}
    return {**shared, **_says(low, high, agrees=low > 0, against=high <= 0)}
