"""The studies: specs, data, models, training, evaluation, analysis and reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from experiments.store.results import Results


def load(study: str, scale: str = "small") -> Results:
    """The results of a study as DataFrames ``records``, ``curves`` and ``scores``.

    Raises:
        ValueError: If there is no such study or scale, or it has no finished run.
    """
    from experiments.store import results

    return results.load(study, scale)
