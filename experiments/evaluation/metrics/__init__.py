"""Evaluation metrics, one file each, found by the name that suites use.

A file's ``compute(outputs)`` returns an `Estimate`; ``OF`` is the class of outputs, or a tuple of
classes, that it takes.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from experiments.errors import UserError, added, not_one_of

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Names of all metrics."""
    return sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")


def path(name: str) -> Path:
    """File of a metric."""
    if name not in names():
        raise UserError(not_one_of("metric", name, names(), "experiments/evaluation/metrics"))
    return FOLDER / f"{name}.py"


def get(name: str) -> ModuleType:
    """The module of a metric."""
    return added(f"{__name__}.{path(name).stem}", "OF", "compute")


def read(chosen: Iterable[str]) -> set[type]:
    """Classes of outputs that the chosen metrics are computed from."""
    kinds = [get(name).OF for name in chosen]
    return {cls for kind in kinds for cls in (kind if isinstance(kind, tuple) else (kind,))}


def rows(outputs: Any, chosen: Iterable[str], *, task: str) -> Iterator[dict[str, Any]]:
    """Scores of those of the chosen metrics that are computed from such outputs.

    Args:
        task: what the scores are of.

    Returns:
        Rows with task, metric, value, stderr, num_items and chance.
    """
    for name in chosen:
        metric = get(name)
        if not isinstance(outputs, metric.OF):
            continue
        yield {"task": task, "metric": name, **metric.compute(outputs)._asdict()}
