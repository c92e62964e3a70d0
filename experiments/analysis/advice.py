"""Which method and sparsity to choose at a size and a budget, by the laws of a study."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from experiments.analysis import clocks, scaling
from experiments.specs.planned import PlannedStudy

DEVICES = tuple(clocks.DEVICES)
COLUMNS = ["method", "sparsity", "loss", "low", "high", "minus dense", "minus dense low",
           "minus dense high", "time", "extrapolated"]  # fmt: skip


def options(
    records: pd.DataFrame, study: PlannedStudy, params: float, tokens: float, device: str
) -> pd.DataFrame:
    """What the laws expect of each method and sparsity at equal non-zero weights, best first.

    Args:
        records: Tidy records of the study.
        study: The study with its planned runs.
        params: Non-zero weights of the blocks.
        tokens: Training tokens.
        device: One of `DEVICES`.

    Returns:
        `COLUMNS`; ``loss`` (bits per byte) with its band, the difference to a dense model of as
        many weights by the same law, and ``time`` of training over that of this dense model (NaN
        where it is not known). Empty where no law is fitted.
    """
    laws = scaling.fit_all(scaling.finished(records, study))
    clock = clocks.clocks(study.scale).get(device)
    rows = []
    for name, law in laws.items():
        for sparsity in sorted(set(law.rows["sparsity"])):
            if (name == scaling.DENSE) != (sparsity == 0):
                continue
            draws = law.sample(sparsity, params, tokens)
            change = draws - law.sample(0.0, params, tokens)
            loss = float(law.law(sparsity, params, tokens))
            point = loss - float(law.law(0.0, params, tokens))
            cost = clock.cost(clocks.path(study, name, sparsity)) if clock else np.nan
            time = cost / (1 - sparsity) if sparsity else 1.0
            beyond = law.extrapolated(sparsity, params, tokens)
            values = (name, sparsity, loss, *scaling.interval(draws), point)
            rows.append((*values, *scaling.interval(change), time, beyond))
    return pd.DataFrame(rows, columns=COLUMNS).sort_values("loss", ignore_index=True)


def text(rows: pd.DataFrame, params: float, tokens: float, waiting: Sequence[str] = ()) -> str:
    """The answer in words, with one line per option below it, and who is not among them.

    Args:
        rows: What `options` returned.
        params: Non-zero weights of the blocks.
        tokens: Training tokens.
        waiting: Sentences on the methods that have no law yet (`scaling.waiting`).
    """
    place = f"{params:,.0f} non-zero weights and {tokens:,.0f} tokens"
    if rows.empty:
        return (
            f"There is no answer for {place} yet: no law is fitted, because the runs of the study "
            "`scaling` are not finished; `python -m experiments plan --scale small "
            "--study scaling` lists them."
        )
    sparse = rows[rows["sparsity"] > 0]
    if sparse.empty:
        head = f"At {place} only the dense law is fitted yet, so no method can be advised."
    else:
        best = sparse.iloc[0]
        gain = f"{best['minus dense low']:+.3f} to {best['minus dense high']:+.3f} bits per byte"
        name = f"{best['method']} at {100 * best['sparsity']:g}%"
        if best["minus dense high"] < 0:
            head = f"At {place}: {name}, {gain} against a dense model of as many weights."
        elif best["minus dense low"] > 0:
            head = f"At {place}: a dense model; the best sparse one, {name}, is {gain} off."
        else:
            head = f"At {place}: no answer; {name} is {gain} from dense, a band of both signs."
        if best["extrapolated"]:
            head += " This is extrapolated beyond the sizes or budgets that were trained."
    lines = [head, "", "method    sparsity  bits per byte (95% band)     step time  "]
    for row in rows.to_dict("records"):
        band = f"{row['loss']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
        time = "unknown" if np.isnan(row["time"]) else f"{row['time']:.2f}x"
        mark = "extrapolated" if row["extrapolated"] else ""
        level = f"{100 * row['sparsity']:g}%"
        lines.append(f"{row['method']:<9} {level:>8}  {band:<27}  {time:>9}  {mark}".rstrip())
    if rows["time"].isna().any():
        lines.append("Step times are unknown until `python -m experiments compute device` has run.")
    else:
        lines.append("Step times are of masked products, over a dense model of as many weights.")
    lines += waiting
    return "\n".join(lines)
