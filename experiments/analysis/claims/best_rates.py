"""Claims on the best learning rate, read off our committed tuning trials."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from experiments.analysis import trials
from experiments.analysis.claims.exact import Check
from experiments.specs.run import RunSpec
from experiments.store.beyond import TRIALS_READ, planned_trials
from experiments.store.io import read_json

#: The study of the trials at one sparsity, and that of those at several under two rules.
TRIALS, GRID = TRIALS_READ["best_rates"]
#: Methods and sparsity of the trials at one sparsity.
TRIED = {"dense-control": 0.0, "static": 0.8}


def _trials(study: str) -> Iterator[tuple[RunSpec, dict[str, Any]]]:
    """Each committed trial of a study, and its last validation."""
    for spec, path in planned_trials(study):
        if path.is_file():
            rows = [row for row in read_json(path)["curve"] if row["kind"] == "validation"]
            yield spec, rows[-1]


def tried_rates() -> dict[str, pd.Series]:
    """Return the last validation perplexity by learning rate, of the trials of each method."""
    found: dict[str, dict[float, float]] = {name: {} for name in TRIED}
    for spec, last in _trials(TRIALS):
        if spec.method in TRIED:
            found[spec.method][float(spec.recipe.learning_rate)] = float(last["perplexity"])
    return {name: pd.Series(values).sort_index() for name, values in found.items() if values}


def grid() -> pd.DataFrame:
    """The trials of Dense and Static over sparsities and rates.

    Returns:
        Columns ``rule`` (``supar`` or ``standard``), ``sparsity``, ``rate`` (before the rule
        scales it) and ``loss`` (nats), one row per seed. At the base width and without zeros the
        rules agree, so Dense has each of its rows under both.
    """
    rows = []
    for spec, last in _trials(GRID):
        rule = getattr(spec.recipe, "parameterization", None)  # of language models
        if rule is None or spec.algorithm not in ("dense", "static"):
            continue
        zeros = float(spec.final_sparsity or 0.0)
        for name in (rule.rule,) if zeros else ("supar", "standard"):
            rows.append((name, zeros, float(spec.recipe.learning_rate), float(last["loss"])))
    return pd.DataFrame(rows, columns=["rule", "sparsity", "rate", "loss"])


def is_whole(found: pd.DataFrame) -> bool:
    """Whether every planned trial of the grid is there."""
    planned = [spec.algorithm for spec, _ in planned_trials(GRID)]
    static, dense = planned.count("static"), planned.count("dense")
    return len(found) == static + 2 * dense > 0


def check_transfer(found: pd.DataFrame) -> Check:
    """Under the standard rule the best rate rises with sparsity, under SuPar's one rate stays best.

    Rates whose mean losses are apart by less than the noise of seeds, pooled over all trials of the
    grid, tie. The rate rises if all that tie at the highest sparsity lie above all that tie for
    Dense; it stays if one rate ties with the best at every sparsity. Where a best rate under
    SuPar's rule is at an end of its range nothing is decided.

    Args:
        found: As of `grid`, whole.
    """
    cells = found.groupby(["rule", "sparsity", "rate"])["loss"]
    noise = trials.pooled_sd(list(values) for _, values in cells)
    margin = trials.tie_margin(noise, int(cells.size().min()))
    tied: dict[str, list[set[float]]] = {}
    parts, at_an_end = [], ""
    for rule, own in cells.mean().groupby("rule"):
        best = {}
        for zeros, means in own.groupby("sparsity"):
            means = means.droplevel(["rule", "sparsity"])
            tied.setdefault(str(rule), []).append(set(means.index[means - means.min() <= margin]))
            best[zeros] = float(means.idxmin())
            if rule == "supar" and best[zeros] in (means.index.min(), means.index.max()):
                at_an_end = f"the best one at {100 * zeros:g}% is at an end of what was tried"
        shown = ", ".join(f"{rate:g} at {100 * zeros:g}%" for zeros, rate in best.items())
        parts.append(f"{rule}: {shown}")
    dense, sparsest = tied["standard"][0], tied["standard"][-1]
    rises, falls = max(dense) < min(sparsest), min(dense) > max(sparsest)
    common = set.intersection(*tied["supar"])
    stays = bool(common)
    how = "the latter lie above" if rises else "the latter lie below" if falls else "they overlap"
    reason = (
        f"from {len(found)} rows of committed trials at two seeds, the best rate by zeros: "
        f"{'; '.join(parts)}; rates within {margin:.2g} nats tie. Tied with the best under "
        f"standard: at 0% {_set(dense)}, at {100 * found['sparsity'].max():g}% {_set(sparsest)}: "
        f"{how}; under supar, at every sparsity: {_set(common) if stays else 'none'}"
    )
    if stays and not rises and not falls or at_an_end:
        return Check(None, reason + "; " * bool(at_an_end) + at_an_end, is_inconclusive=True)
    return Check(rises and stays, reason)


def _set(rates: set[float]) -> str:
    return f"{{{', '.join(f'{rate:g}' for rate in sorted(rates))}}}"


def check_best_rates(*_: Any) -> Check:
    """The best rate over sparsities: by the grid of trials where it is whole, else by a pair."""
    found = grid()
    return check_transfer(found) if is_whole(found) else check_pair()


def check_pair() -> Check:
    """The best learning rate of our trials rises from dense to 80% zeros, by more than noise."""
    rates = tried_rates()
    if len(rates) < len(TRIED):
        return Check(None, f"the trials of {TRIALS} are not committed")
    spec, _ = planned_trials(TRIALS)[0]
    noise = trials.seed_noise(spec.model.label, spec.data.name, "perplexity")
    margin = trials.tie_margin(noise)
    tied = {name: own.index[own - own.min() <= margin] for name, own in rates.items()}
    dense, sparse = (rates[name].idxmin() for name in TRIED)
    low, high = tied["dense-control"].max(), tied["static"].min()
    reason = (
        f"recomputed from {sum(map(len, rates.values()))} committed trials of one seed: best at "
        f"{dense:g} for dense and {sparse:g} for Static 80%, {sparse / dense:.1f} times, where "
        f"SuPar's rule gives 5; within seed noise ({margin:.2g}) lie rates up to {low:g} and from "
        f"{high:g}. The second half, that SuPar keeps it fixed, waits for the trials of {GRID}"
    )
    if high <= low:
        return Check(None, reason, is_inconclusive=True)
    return Check(bool(sparse > dense), reason)


CHECKS = {"best_rates": check_best_rates}
