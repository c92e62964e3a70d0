"""Which method and sparsity to choose at a size and a budget, by the laws of a study."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.analysis import clocks, effects, law_cells, scaling
from experiments.errors import UserError
from experiments.specs.planned import PlannedStudy

DEVICES = tuple(clocks.DEVICES)
COLUMNS = ["method", "sparsity", "loss", "low", "high", "minus dense", "minus dense low",
           "minus dense high", "time", "at equal time", "at equal time low", "at equal time high",
           "extrapolated", "time extrapolated", "ties"]  # fmt: skip
#: So many times beyond the largest sizes or budgets that were trained there is no advice, and so
#: many below the smallest: there the laws soon exceed the loss of guessing.
ABOVE, BELOW = 100, 3
#: By how much a measured place may differ from the one that is asked, as a factor.
NEAR = 1e-3


def options(
    records: pd.DataFrame, study: PlannedStudy, params: float, tokens: float, device: str
) -> pd.DataFrame:
    """What the laws expect of each method and sparsity at a size and a budget, best first.

    Sizes are equal in non-zero weights of the blocks, or, of Sparse-Wide, in FLOPs.

    Args:
        records: Tidy records of the study.
        study: The study with its planned runs.
        params: The law's N (`law_cells.Subject.size`).
        tokens: Training tokens or images.
        device: One of `DEVICES`.

    Returns:
        `COLUMNS`; the difference to the dense model of this size, by the law of the method, which
        has the dense runs as its sparsity 0; ``loss`` (`law_cells.Subject.loss`), the dense law's
        plus this difference, with its band; ``time``, that of the products of the whole training
        over those of this dense model; the difference to it where the sparse model is trained for
        its time, on fewer tokens (both NaN where times are not known, as those of convolutions);
        what of either is beyond what was trained; and ``ties``, whether the difference to `best`
        has a band of both signs. Empty where no law is fitted.

    Raises:
        UserError: Beyond `ABOVE` or `BELOW`; one sentence.
    """
    laws = scaling.fit_all(law_cells.finished(records, study))
    _check_reach(laws.values(), study, params, tokens)
    clock = clocks.of_study(study).get(device)
    rows, changes = [], []
    for name, law in laws.items():
        for sparsity in sorted(set(law.rows["sparsity"])):
            if (name == law_cells.DENSE) != (sparsity == 0):
                continue
            base = laws[law_cells.DENSE]
            point, change = effects.minus(law, base, sparsity, params, tokens)
            loss = float(base.law(0.0, params, tokens)) + float(point)
            draws = base.sample(0.0, params, tokens) + change
            cost = clock.cost(clocks.path(study, name, sparsity)) if clock else np.nan
            time = cost / (1 - sparsity) if sparsity else 1.0
            beyond = law.difference_extrapolated(sparsity, params, tokens)
            losses = (loss, *effects.interval(draws))
            differences = (float(point), *effects.interval(change))
            later, late = (np.nan, np.nan, np.nan), beyond
            if clock:
                seen = tokens / time
                in_time = float(law.law(sparsity, params, seen) - base.law(0.0, params, tokens))
                drawn = law.sample(sparsity, params, seen) - base.sample(0.0, params, tokens)
                low, high = map(float, effects.interval(drawn))
                later = (in_time, low, high)
                late = beyond or law.extrapolated(sparsity, params, seen)
            rows.append((name, sparsity, *losses, *differences, time, *later, beyond, late, False))
            changes.append(change)
    found = pd.DataFrame(rows, columns=COLUMNS)
    chosen = best(found)
    if chosen is not None:
        bands = [effects.interval(change - changes[chosen]) for change in changes]
        found["ties"] = [bool(low <= 0 <= high) for low, high in bands]
    return found.sort_values("loss", ignore_index=True)


def best(rows: pd.DataFrame, value: str = "minus dense") -> int | None:
    """Index of the best sparse option: of least loss among those surely better than dense, if any.

    Args:
        rows: What `options` returned.
        value: The difference that counts: at equal data, or ``at equal time``.
    """
    sparse = rows[(rows["sparsity"] > 0) & rows[value].notna()]
    sure = sparse[sparse[f"{value} high"] < 0]
    chosen = sparse if sure.empty else sure
    return None if chosen.empty else int(chosen[value].idxmin())


def _check_reach(
    laws: Iterable[scaling.Fitted], study: PlannedStudy, params: float, tokens: float
) -> None:
    rows = pd.concat([law.rows for law in laws]) if laws else pd.DataFrame()
    about = law_cells.subject(study)
    for column, what, asked in (
        ("nonzero", about.size, params),
        ("data", about.unit, tokens),
    ):
        if rows.empty:
            return
        low, high = float(rows[column].min()), float(rows[column].max())
        if not low / BELOW <= asked <= high * ABOVE:
            raise UserError(
                f"there is no advice for {_count(asked, what)}: {low:,.0f} to {high:,.0f} were "
                f"trained, and the laws are asked from {low / BELOW:,.0f} to {high * ABOVE:,.0f}"
            )


def _count(number: float, what: str) -> str:
    """A number and what it counts, in the singular where it is one."""
    noun, of, rest = what.partition(" of ")
    return f"{number:,.0f} {noun if number != 1 else noun.removesuffix('s')}{of}{rest}"


def text(
    rows: pd.DataFrame,
    study: PlannedStudy,
    params: float,
    tokens: float,
    waiting: Sequence[str] = (),
    contrasts: pd.DataFrame | None = None,
) -> str:
    """The answer in words, with one line per option below it, and who is not among them.

    Args:
        rows: What `options` returned.
        study: The study that was asked.
        params: The law's N (`law_cells.Subject.size`).
        tokens: Training tokens or images.
        waiting: Sentences on the methods that have no law yet (`law_cells.waiting`).
        contrasts: The table law_contrasts: where the laws have no answer, what it has measured at
            this place is said.
    """
    about = law_cells.subject(study)
    place = f"{_count(params, about.size)} and {_count(tokens, about.unit)}"
    if rows.empty:
        return (
            f"There is no answer for {place} yet: no law is fitted, because the runs of the study "
            f"`{study.name}` are not finished; `python -m experiments plan --scale {study.scale} "
            f"--study {study.name}` lists them."
        )
    names = {key: law_cells.name_of(study, key) for key in rows["method"]}
    lines = [_head(rows, about, names, place)]
    if contrasts is not None:
        lines += _measured(rows, contrasts, about, names, (params, tokens))
    lines += ["", *_table(rows, about, names), *_notes(rows, study), *waiting]
    return "\n".join(lines)


def _head(rows: pd.DataFrame, about: law_cells.Subject, names: dict[str, str], place: str) -> str:
    """The answer at equal data, and the one at equal time."""
    if not (rows["sparsity"] > 0).any():
        return f"At {place} only the dense law is fitted yet, so no method can be advised."
    said = [_answer(rows, "minus dense", about, names, f"At {place}", "extrapolated")]
    if rows["at equal time"].notna().all():
        where = "In the time that this dense model takes"
        said.append(_answer(rows, "at equal time", about, names, where, "time extrapolated"))
    return "\n".join(said)


def _answer(
    rows: pd.DataFrame,
    value: str,
    about: law_cells.Subject,
    names: dict[str, str],
    place: str,
    beyond: str,
) -> str:
    chosen = best(rows, value)
    assert chosen is not None
    row = rows.loc[chosen]
    low, high = row[f"{value} low"], row[f"{value} high"]
    name = f"{names[row['method']]} at {100 * row['sparsity']:g}%"
    gain = f"{_signed(low)} to {_signed(high)} {about.loss}"
    if high < 0:
        text = f"{place}: {name}, {gain} against a dense model of as many {about.equal}."
        ties = rows[rows["ties"] & (rows.index != chosen) & (rows["sparsity"] > 0)]
        if len(ties) and value == "minus dense":
            others = [
                f"{names[own]} {100 * level:g}%"
                for own, level in zip(ties["method"], ties["sparsity"], strict=True)
            ]
            text += f" Not told apart from it: {', '.join(others)}."
    elif low > 0:
        text = f"{place}: a dense model; the best sparse one, {name}, is {gain} off."
    else:
        text = f"{place}: no answer; {name} is {gain} from dense, a band of both signs."
    if row[beyond]:
        text += " This is extrapolated beyond the sizes or budgets that were trained."
    return text


def _measured(
    rows: pd.DataFrame,
    contrasts: pd.DataFrame,
    about: law_cells.Subject,
    names: dict[str, str],
    place: tuple[float, float],
) -> list[str]:
    """What was measured of the best sparse option where the laws have no answer at equal data."""
    chosen = best(rows)
    if chosen is None:
        return []
    keys = ["method", "sparsity", "minus dense low", "minus dense high"]
    method, sparsity, low, high = rows.loc[chosen, keys]
    if not low <= 0 <= high:
        return []
    own = contrasts[
        (contrasts["method"] == method)
        & (contrasts["sparsity"] == sparsity)
        & (contrasts["other sparsity"] == 0)
        & np.isclose(contrasts["non-zero weights"].astype(float), place[0], rtol=NEAR, atol=0)
        & np.isclose(contrasts["data"].astype(float), place[1], rtol=NEAR, atol=0)
    ]
    said = []
    for row in own.to_dict("records"):
        band = f" ({_signed(row['low'])} to {_signed(row['high'])})"
        seeds = _count(row["seeds"], "seeds")
        said.append(
            f"Measured there: {names[method]} at {100 * sparsity:g}% minus dense, "
            f"{_signed(row['measured'])}{band if row['seeds'] > 1 else ''} {about.loss}, {seeds}."
        )
    return said


def _signed(number: float) -> str:
    """With a sign, and digits enough to see it."""
    return f"{number:+.3f}" if abs(number) >= 0.0005 else f"{number:+.1e}"


def _table(rows: pd.DataFrame, about: law_cells.Subject, names: dict[str, str]) -> list[str]:
    """A header and one line per option; without times where the models have no clock."""
    width = max(9, *map(len, names.values()))
    head = [
        f"{'method':<{width}} {'sparsity':>8}",
        f"{about.loss + ' (95% band)':<28}",
        f"{'minus dense (95% band)':<30}",
    ]
    if about.is_timed:
        head += [f"{'training time':>13}", "minus dense at equal time"]
    lines = ["  ".join(head).rstrip()]
    for row in rows.to_dict("records"):
        level = f"{100 * row['sparsity']:g}%"
        band = f"{row['loss']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
        cells = [f"{names[row['method']]:<{width}} {level:>8}", f"{band:<28}"]
        cells.append(f"{_change(row, 'minus dense'):<30}")
        if about.is_timed:
            time = "unknown" if np.isnan(row["time"]) else f"{row['time']:.2f}x"
            cells += [f"{time:>13}", f"{_change(row, 'at equal time'):<30}"]
        lines.append("  ".join([*cells, "extrapolated" * bool(row["extrapolated"])]).rstrip())
    return lines


def _change(row: dict[str, Any], key: str) -> str:
    """A difference to dense with its band; empty of dense itself, and where it is not known."""
    if not row["sparsity"] or np.isnan(row[key]):
        return ""
    return f"{_signed(row[key])} ({_signed(row[f'{key} low'])} to {_signed(row[f'{key} high'])})"


def _notes(rows: pd.DataFrame, study: PlannedStudy) -> list[str]:
    about = law_cells.subject(study)
    bands = (
        "Bands hold two forms of the laws and what either misses; what was measured at equal "
        f"{about.equal}, without a law, is in the table law_contrasts of the study's page."
    )
    if not about.is_timed or rows["time"].isna().any():
        return [clocks.missing(study), bands]
    return [
        f"Times are of the products of a training on these {about.unit}, over those of a dense "
        "model of as many weights; at equal time a sparse model sees fewer.",
        bands,
    ]
