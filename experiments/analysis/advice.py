"""Which method and sparsity to choose at a size and a budget, by the laws of a study."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from experiments.analysis import clocks, effects, law_cells, scaling
from experiments.errors import UserError
from experiments.specs.planned import PlannedStudy

DEVICES = tuple(clocks.DEVICES)
COLUMNS = ["method", "sparsity", "loss", "low", "high", "minus dense", "minus dense low",
           "minus dense high", "time", "extrapolated"]  # fmt: skip
#: So many times beyond the sizes or budgets that were trained there is no advice.
REACH = 100
WEIGHTS = "non-zero weights"


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
        `COLUMNS`; the difference to a dense model of as many weights, by the law of the method,
        which has the dense runs as its sparsity 0; ``loss`` (bits per byte), the dense law's plus
        this difference, with its band; and ``time`` of training over that of this dense model (NaN
        where it is not known). Empty where no law is fitted.

    Raises:
        UserError: More than `REACH` times beyond what was trained; one sentence.
    """
    laws = scaling.fit_all(law_cells.finished(records, study))
    _check_reach(laws.values(), study, params, tokens)
    clock = clocks.clocks(study.scale).get(device)
    rows = []
    for name, law in laws.items():
        for sparsity in sorted(set(law.rows["sparsity"])):
            if (name == law_cells.DENSE) != (sparsity == 0):
                continue
            base = laws.get(law_cells.DENSE, law)
            point, change = effects.minus(law, base, sparsity, params, tokens)
            loss = float(base.law(0.0, params, tokens)) + float(point)
            draws = base.sample(0.0, params, tokens) + change
            cost = clock.cost(clocks.path(study, name, sparsity)) if clock else np.nan
            time = cost / (1 - sparsity) if sparsity else 1.0
            beyond = law.extrapolated(sparsity, params, tokens)
            values = (name, sparsity, loss, *effects.interval(draws), float(point))
            rows.append((*values, *effects.interval(change), time, beyond))
    return pd.DataFrame(rows, columns=COLUMNS).sort_values("loss", ignore_index=True)


def _check_reach(
    laws: Iterable[scaling.Fitted], study: PlannedStudy, params: float, tokens: float
) -> None:
    rows = pd.concat([law.rows for law in laws]) if laws else pd.DataFrame()
    for column, what, asked in (
        ("nonzero", WEIGHTS, params),
        ("data", _budget(study), tokens),
    ):
        if rows.empty:
            return
        low, high = float(rows[column].min()), float(rows[column].max())
        if not low / REACH <= asked <= high * REACH:
            raise UserError(
                f"there is no advice for {_count(asked, what)}: {low:,.0f} to {high:,.0f} were "
                f"trained, and the laws are asked at most {REACH} times beyond"
            )


def _budget(study: PlannedStudy) -> str:
    """What a budget of the study counts, in words."""
    return law_cells.subject(study).data.removeprefix("training ")


def _count(number: float, what: str) -> str:
    return f"{number:,.0f} {what if number != 1 else what.removesuffix('s')}"


def text(
    rows: pd.DataFrame,
    study: PlannedStudy,
    params: float,
    tokens: float,
    waiting: Sequence[str] = (),
) -> str:
    """The answer in words, with one line per option below it, and who is not among them.

    Args:
        rows: What `options` returned.
        study: The study that was asked.
        params: Non-zero weights of the blocks.
        tokens: Training tokens.
        waiting: Sentences on the methods that have no law yet (`law_cells.waiting`).
    """
    about = law_cells.subject(study)
    place = f"{_count(params, WEIGHTS)} and {_count(tokens, _budget(study))}"
    if rows.empty:
        return (
            f"There is no answer for {place} yet: no law is fitted, because the runs of the study "
            f"`{study.name}` are not finished; `python -m experiments plan --scale {study.scale} "
            f"--study {study.name}` lists them."
        )
    sparse = rows[rows["sparsity"] > 0]
    if sparse.empty:
        head = f"At {place} only the dense law is fitted yet, so no method can be advised."
    else:
        best = sparse.iloc[0]
        gain = f"{best['minus dense low']:+.3f} to {best['minus dense high']:+.3f} {about.loss}"
        name = f"{best['method']} at {100 * best['sparsity']:g}%"
        if best["minus dense high"] < 0:
            head = f"At {place}: {name}, {gain} against a dense model of as many weights."
        elif best["minus dense low"] > 0:
            head = f"At {place}: a dense model; the best sparse one, {name}, is {gain} off."
        else:
            head = f"At {place}: no answer; {name} is {gain} from dense, a band of both signs."
        if best["extrapolated"]:
            head += " This is extrapolated beyond the sizes or budgets that were trained."
    header = f"{'method':<9} {'sparsity':>8}  {about.loss + ' (95% band)':<27}  "
    lines = [head, "", f"{header}{'minus dense (95% band)':<27}  step time"]
    for row in rows.to_dict("records"):
        band = f"{row['loss']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
        change = f"{row['minus dense']:+.3f} ({row['minus dense low']:+.3f} to "
        change = f"{change}{row['minus dense high']:+.3f})" if row["sparsity"] else ""
        time = "unknown" if np.isnan(row["time"]) else f"{row['time']:.2f}x"
        mark = "extrapolated" if row["extrapolated"] else ""
        level = f"{100 * row['sparsity']:g}%"
        lines.append(
            f"{row['method']:<9} {level:>8}  {band:<27}  {change:<27}  {time:>9}  {mark}".rstrip()
        )
    if rows["time"].isna().any():
        lines.append("Step times are unknown until `python -m experiments compute device` has run.")
    else:
        lines.append("Step times are of masked products, over a dense model of as many weights.")
    lines += waiting
    return "\n".join(lines)
