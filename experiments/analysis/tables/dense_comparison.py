"""Sparse against dense at equal cost or size, in validation perplexity (lower is better). "cut
off": the dense runs of the same model and data at the moment they have executed the sparse runs'
FLOPs, in the middle of their learning-rate schedule, by their validation curve. "finished": dense
runs of at least three budgets, each with its whole schedule, joined by a saturating power law of
the loss over FLOPs; its budgets and seeds are few, so read it to about one perplexity. "smaller":
the dense model with the closest number of parameters to the sparse runs' non-zero ones, which
trained on tokens of its own. Nothing is extrapolated: a dash says that no dense run covers the
point."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import minimize_scalar

from experiments.analysis import select as selection
from experiments.analysis import stats
from experiments.analysis.methods import Methods
from experiments.specs.planned import PlannedStudy
from experiments.store import tidy

EVERY_RECIPE = True
#: Exponents of the law of finished dense runs.
EXPONENTS = (0.01, 3.0)
#: How far apart, as a factor, parameter counts may be to count as similar.
SIMILAR = 1.25
COLUMNS = ["model", "dataset", "method", "sparsity", "seeds", "perplexity", "executed FLOPs"]
COLUMNS += ["non-zero parameters", "tokens"]
COLUMNS += ["dense, cut off at equal FLOPs", "minus cut off", "paired seeds", "low", "high"]
COLUMNS += ["dense, finished at equal FLOPs", "minus finished"]
COLUMNS += ["smaller dense model", "its parameters", "its tokens", "its perplexity"]
COLUMNS += ["minus smaller", "runs"]
METRICS = ("flops_executed", "num_nonzero", "num_parameters", "tokens")


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per model, dataset and sparse treatment."""
    values = tidy.validation_perplexity(records)
    values = values.join(selection.per_run(records, *METRICS), on="run")
    values["loss"] = np.log(values["value"])
    own, looks = selection.headline(values, study), Methods(study)
    own = own[own["family"].isna()]
    curves = curves[(curves["metric"] == "loss") & (curves["kind"] == "validation")]
    curves = tidy.label_curves(curves.dropna(subset=["flops_executed"]), own)
    rows = []
    for workload in tidy.workloads(own):
        here = tidy.in_workload(own, workload)
        for method, sparsity, sparse in selection.by_treatment(here[here["sparsity"] > 0]):
            row = {
                **workload._asdict(),
                "method": method,
                "sparsity": sparsity,
            }
            row |= {"seeds": len(sparse), "perplexity": sparse["value"].mean()}
            row["executed FLOPs"] = sparse["flops_executed"].mean()
            row["non-zero parameters"] = sparse["num_nonzero"].mean()
            row["tokens"] = sparse["tokens"].mean()
            dense = here[here["method"] == looks.dense(here["method"])]
            row |= _cut_off(sparse, dense, tidy.in_workload(curves, workload))
            row |= _finished(sparse, dense, tidy.in_workload(values, workload))
            row |= _smaller(sparse, workload, own, looks)
            row["runs"] = " ".join([*sparse["run"], *dense["run"]])
            rows.append(row)
    return pd.DataFrame(rows, columns=COLUMNS)


def _cut_off(sparse: pd.DataFrame, dense: pd.DataFrame, curves: pd.DataFrame) -> dict[str, Any]:
    """The dense runs' validation curves at the FLOPs of the sparse runs of the same seeds."""
    reached: dict[int, float] = {}
    flops = sparse.set_index("seed")["flops_executed"]
    for row in dense.itertuples():
        curve = curves[curves["run"] == row.run].sort_values("flops_executed")
        if row.seed in flops.index and len(curve):
            # The end is measured as the sparse runs are: the curve's own may be on more tokens.
            losses = [*curve["value"].iloc[:-1], row.loss]
            loss = between(curve["flops_executed"], losses, flops[row.seed])
            if loss == loss:
                reached[int(row.seed)] = float(np.exp(loss))
    if not reached:
        return {}
    pair = stats.paired(tidy.by_seed(sparse), reached)
    return {
        "dense, cut off at equal FLOPs": float(np.mean(list(reached.values()))),
        "minus cut off": pair.effect,
        "paired seeds": pair.num_seeds,
        "low": pair.low,
        "high": pair.high,
    }


def _finished(sparse: pd.DataFrame, dense: pd.DataFrame, every: pd.DataFrame) -> dict[str, Any]:
    """Finished dense runs of several budgets, at the mean FLOPs of the sparse runs."""
    if dense.empty:
        return {}
    same = every[every["method"] == dense["method"].iloc[0]]
    ends = same.groupby("recipe")[["flops_executed", "loss"]].mean().sort_values("flops_executed")
    loss = _between(ends["flops_executed"], ends["loss"], sparse["flops_executed"].mean())
    if loss != loss:
        return {}
    perplexity = float(np.exp(loss))
    return {
        "dense, finished at equal FLOPs": perplexity,
        "minus finished": sparse["value"].mean() - perplexity,
    }


def _between(budgets: pd.Series, losses: pd.Series, budget: float) -> float:
    """The loss at a budget by a power law with a floor; NaN outside of at least three budgets."""
    x, y = budgets.to_numpy(float), losses.to_numpy(float)
    if len(set(x)) < 3 or not x.min() <= budget <= x.max():
        return float("nan")
    unit = np.exp(np.log(x).mean())

    def fitted(exponent: float) -> tuple[float, np.ndarray]:
        design = np.column_stack([np.ones_like(x), (x / unit) ** -exponent])
        found = np.linalg.lstsq(design, y, rcond=None)[0]
        return float(((design @ found - y) ** 2).sum()), found

    best = minimize_scalar(lambda log: fitted(np.exp(log))[0], bounds=np.log(EXPONENTS))
    floor, scale = fitted(np.exp(best.x))[1]
    return floor + scale * (budget / unit) ** -np.exp(best.x) if scale > 0 else float("nan")


def _smaller(
    sparse: pd.DataFrame, workload: tidy.Workload, own: pd.DataFrame, looks: Methods
) -> dict[str, Any]:
    """The dense model of the dataset whose size is closest to the non-zero weights."""
    others = own[(own["dataset"] == workload.dataset) & (own["sparsity"] == 0)]
    others = others[others["model"] != workload.model]
    if others.empty:
        return {}
    others = others[others["method"] == looks.dense(others["method"])]
    means = others.groupby("model")[["num_parameters", "tokens", "value"]].mean()
    factor = np.abs(np.log(means["num_parameters"] / sparse["num_nonzero"].mean()))
    if not factor.min() <= np.log(SIMILAR):
        return {}
    found = means.loc[factor.idxmin()]
    return {
        "smaller dense model": factor.idxmin(),
        "its parameters": found["num_parameters"],
        "its tokens": found["tokens"],
        "its perplexity": found["value"],
        "minus smaller": sparse["value"].mean() - found["value"],
    }


def between(flops: pd.Series, losses: Sequence[float], at: float) -> float:
    """Return the loss at some FLOPs, linear over their logarithm; NaN outside of the points."""
    if len(flops) < 2 or not flops.min() <= at <= flops.max():
        return float("nan")
    return float(np.interp(np.log(at), np.log(flops), losses))
