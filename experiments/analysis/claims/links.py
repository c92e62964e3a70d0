"""Which runs a claim compares: its links, their sides, and what of a scale each side selects."""

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from experiments.analysis.methods import Methods
from experiments.specs.planned import PlannedStudy
from experiments.specs.schema import ClaimTest, Comparison
from experiments.store import tidy

LARGER = "larger"

Side = Mapping[Any, Any]
"""What selects runs: values, or lists of them, by the column of the records."""
Namer = Callable[[Side], str]
"""What gives a side its words."""


def links_of(test: ClaimTest) -> list[Comparison]:
    """The comparisons that a claim is made of, each with ``a`` and ``b`` or with ``gaps``.

    What a link does not say itself is as the claim's test says.
    """
    keys = ("metric", "split", "direction", "margin", "collapse")
    shared = {key: getattr(test, key) for key in keys}
    if test.order is not None:
        shared["direction"] = "less"
        pairs = zip(test.order, test.order[1:], strict=False)
        return [Comparison(**shared, a=a, b=b) for a, b in pairs]
    if test.every is not None:
        own = [link.model_dump(exclude_unset=True) for link in test.every]
        return [Comparison(**(shared | link)) for link in own]
    return [Comparison(**shared, a=test.a, b=test.b, gaps=test.gaps)]


def sides_of(link: Comparison) -> list[Side]:
    """Both sides of a comparison; all four where it is one of differences."""
    if link.gaps is not None:
        return [side for gap in link.gaps for side in gap]
    return [side for side in (link.a, link.b) if side is not None]


def selections_of(link: Comparison) -> list[Side]:
    """The sides of a comparison that are runs, not a number that a source published."""
    return [side for side in sides_of(link) if "published" not in side]


def restricted(test: ClaimTest, plan: pd.DataFrame) -> tuple[ClaimTest, list[Side]]:
    """The part of a claim that the scale trains, and the sides that were left out.

    Only what is marked ``where_planned`` is left out: links one by one, a chain as a whole.
    """

    def absent(side: Side) -> bool:
        return "published" not in side and sided(plan, None, side).empty

    if test.order is not None and test.where_planned:
        kept = [side for side in test.order if not absent(side)]
        if len(kept) < 2:
            return test, []
        gone: list[Side] = [side for side in test.order if absent(side)]
        return test.model_copy(update={"order": kept}), gone
    if test.every is not None:
        left_out = [
            link
            for link in test.every
            if link.where_planned and any(absent(side) for side in sides_of(link))
        ]
        links = [link for link in test.every if link not in left_out]
        if not links:
            return test, []
        gone = [s for link in left_out for s in sides_of(link) if absent(s)]
        return test.model_copy(update={"every": links}), gone
    return test, []


def is_named(workload: tidy.Workload, side: Side) -> bool:
    """Whether a workload is the one that a selection names, as far as it names one."""
    model, dataset = side.get("model", LARGER), side.get("dataset", workload.dataset)
    return model in (LARGER, workload.model) and dataset == workload.dataset


def sided(rows: pd.DataFrame, workload: tidy.Workload | None, side: Side) -> pd.DataFrame:
    """A selection within a workload; ``model: larger`` is of the dataset's other models.

    A model or dataset that the selection names stands in place of the workload's.
    """
    wanted = {key: value for key, value in side.items() if value != LARGER}
    if workload is not None:
        wanted.setdefault("dataset", workload.dataset)
        if side.get("model") == LARGER:
            rows = rows[rows["model"] != workload.model]
        else:
            wanted.setdefault("model", workload.model)
    for column, value in wanted.items():
        rows = rows[rows[column].isin(value if isinstance(value, list) else [value])]
    return rows


def name_of(selection: Side) -> str:
    """Return the words for a side: what it selects runs by, or the published number."""
    if "published" in selection:
        return f"the published {selection['published']:g}"
    return " ".join(
        " and ".join(map(str, wanted)) if isinstance(wanted, list) else str(wanted)
        for wanted in selection.values()
    )


def namer(test: ClaimTest, study: PlannedStudy) -> Namer:
    """Return what names the sides of a test: by the labels that figures of the study have.

    A label that tells no sparsity has it behind itself. Where two sides would have one label,
    all of them are named by what selects them.
    """
    methods = Methods(study)

    def label(side: Side) -> str:
        if "method" not in side:
            return name_of(side)
        shown = [
            _treatment(methods, key, level)
            for key in _listed(side["method"])
            for level in _listed(side.get("sparsity"))
        ]
        rest = {key: value for key, value in side.items() if key not in ("method", "sparsity")}
        return " ".join(filter(None, [" and ".join(shown), name_of(rest)]))

    sides = [side for link in links_of(test) for side in selections_of(link)]
    is_clear = len(set(map(label, sides))) == len(set(map(name_of, sides)))
    return label if is_clear else name_of


def _treatment(methods: Methods, key: str, sparsity: float | None) -> str:
    own = methods[key]
    if sparsity is None and (own.name == key or "%" in own.name):
        return own.name
    return methods.treatment(key, own.sparsity if sparsity is None else sparsity)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
