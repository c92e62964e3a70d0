"""Which setting trials choose for a method, and which one studies of evidence train with.

A trial is one run at one seed, so its outcome has the noise of a seed. A setting that is better
than another by less than that noise allows has won nothing: the two tie, and of all settings that
tie with the best the one nearest to the default is chosen. What is chosen is a rule's answer to the
trials; what is taken stands in the specs of the studies that the trials are for, and may be
another setting.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import NormalDist, variance
from typing import TYPE_CHECKING, Any

from experiments.specs.expand import study_runs, unscheduled
from experiments.specs.planned import PlannedStudy
from experiments.specs.read import load_study, study_names
from experiments.specs.run import RunSpec
from experiments.specs.schema import Scale, Study
from experiments.store import paths
from experiments.store.io import read_json
from experiments.store.made import file_digest

if TYPE_CHECKING:
    import pandas as pd  # Snakemake imports this module at parse time

LEVEL = 0.95
LOWEST, TIE, DEFAULT, ONLY = "best", "tie", "tie, the default", "the only one"
NEAREST = "tie, nearest to the default"


def pooled_sd(groups: Iterable[Sequence[float]]) -> float:
    """Return the standard deviation within groups, pooled; NaN where no group has two values."""
    sums = [(variance(group) * (len(group) - 1), len(group) - 1)
            for group in groups if len(group) > 1]  # fmt: skip
    degrees = sum(count for _, count in sums)
    return math.sqrt(sum(part for part, _ in sums) / degrees) if degrees else math.nan


def without_seeds(value: Any) -> Any:
    """Return a spec's JSON without the keys ``seed`` and ``run``, which follow from the seed."""
    if isinstance(value, dict):
        kept = {name: part for name, part in value.items() if name not in ("seed", "run")}
        return {name: without_seeds(part) for name, part in kept.items() if name != "spec_hash"}
    return value


def noise_records(model: str, dataset: str) -> list[Path]:
    """Return the committed records that `seed_noise` reads, by the names of their files."""
    return sorted(paths.REFERENCE_RUNS.glob(f"*__{model}__*__{dataset}-*.json"))


@functools.cache
def seed_noise(model: str, dataset: str, metric: str) -> float:
    """Return the spread between seeds that the committed runs of a workload show.

    Args:
        model: Model label.
        dataset: Name of the data.
        metric: What the last validation measured, such as ``perplexity`` or ``loss``.

    Returns:
        Standard deviation within runs that differ in their seed only, pooled over all of them, in
        the metric's units; NaN where no two such runs are committed.
    """
    groups: dict[Any, list[float]] = {}
    for path in noise_records(model, dataset):
        record = read_json(path)
        spec, curve = record["spec"], record["curve"]
        values = [row[metric] for row in curve if row["kind"] == "validation" and metric in row]
        if (spec["model"]["label"], spec["data"]["name"]) == (model, dataset) and values:
            same = {name: part for name, part in spec.items() if name not in ("id", "seed")}
            key = json.dumps(without_seeds(same), sort_keys=True)
            groups.setdefault(key, []).append(float(values[-1]))
    return pooled_sd(groups.values())


def tie_margin(noise: float, num_seeds: int = 1) -> float:
    """Return how far two means may be apart without being different at the 95% level.

    Args:
        noise: Standard deviation between seeds.
        num_seeds: Seeds of each mean, at least 1.
    """
    return NormalDist().inv_cdf((1 + LEVEL) / 2) * noise * math.sqrt(2 / num_seeds)


def choose(values: Mapping[Any, float], distance: Mapping[Any, float], margin: float) -> Any:
    """Return the setting to choose: of those that tie with the lowest, the nearest to the default.

    Args:
        values: Setting to its outcome; lower is better.
        distance: Setting to how far it is from the default, which has 0.
        margin: What `tie_margin` returns; NaN, where the noise is unknown, lets all settings tie.
    """
    lowest = min(values.values())
    tied = [name for name in values if not values[name] - lowest > margin]
    return min(tied, key=lambda name: (distance[name], values[name]))


def place_of(spec: RunSpec) -> tuple[Any, ...]:
    """Return what a run's learning rate was tuned for: task, model, data, algorithm and family."""
    return spec.task, spec.model.label, spec.data.name, spec.algorithm, spec.family


@functools.cache
def _tried(scale: Scale) -> dict[tuple[Any, ...], dict[float, frozenset[float]]]:
    """The learning rates that the studies of trials try, by `place_of`, then by sparsity."""
    found: dict[tuple[Any, ...], dict[float, frozenset[float]]] = {}
    for study in map(load_study, study_names()):
        if not study.trials or not study.scales.get(scale):
            continue
        for spec in (run.spec for run in study_runs(study, scale)):
            levels, level = found.setdefault(place_of(spec), {}), spec.final_sparsity or 0.0
            levels[level] = levels.get(level, frozenset()) | {spec.recipe.learning_rate}
    return found


def tried_rates(scale: Scale) -> dict[tuple[Any, ...], frozenset[float]]:
    """Return the learning rates that were tried at a scale, at any sparsity, by `place_of`."""
    return {place: frozenset().union(*levels.values()) for place, levels in _tried(scale).items()}


def tried_sparsities(spec: RunSpec, scale: Scale) -> list[float]:
    """Return the sparsities at which several rates were tried for what a run trains."""
    levels = _tried(scale).get(place_of(spec), {})
    return sorted(level for level, rates in levels.items() if len(rates) > 1)


def setting_of(spec: RunSpec, study: Study) -> str:
    """Return all that a run trains with but its seed and its length, as one text.

    Schedules of masks count as the study's file has them, in shares of a run.
    """
    method = study.methods.get(spec.method or "")
    masks = without_seeds(spec.sparsity) if method is None else method.sparsity
    recipe = unscheduled(spec)
    rate = f"{recipe.pop('learning_rate'):.6g}"
    # A run that continues another of its own method is no second phase.
    second = spec.starts_from is not None and spec.starts_from.step is None
    value = spec.model_dump(mode="json", include={"task", "model", "data", "transform"})
    return json.dumps([value, masks, second, recipe, rate], sort_keys=True)


def taken_by(study: PlannedStudy) -> dict[str, str]:
    """Return which studies of evidence train with a trial's setting, by the id of its run.

    Of the studies that these trials are for, those runs count that train by their method's own
    recipe. A setting that was tried at several lengths is taken at that of the evidence, if that
    is among them. The method stands in brackets where it is one whose settings were chosen after
    its study had run.

    Args:
        study: A study of trials.
    """
    lengths: dict[str, set[int]] = {}
    keys = {run.id: setting_of(run.spec, study) for run in study.runs}
    for run in study.runs:
        lengths.setdefault(keys[run.id], set()).add(run.spec.recipe.steps)
    names: dict[tuple[str, int | None], dict[str, None]] = {}
    for other in map(load_study, study.trials_for):
        for spec in (run.spec for run in study_runs(other, study.scale)):
            method = other.methods[spec.method or ""]
            key, steps = setting_of(spec, other), spec.recipe.steps
            if spec.recipe.name != method.recipe or key not in lengths:
                continue
            name = f"{other.name} ({spec.method})" if method.retuned else other.name
            place = (key, steps if steps in lengths[key] else None)
            names.setdefault(place, {})[name] = None
    return {
        run.id: ", ".join(
            {
                **names.get((keys[run.id], run.spec.recipe.steps), {}),
                **names.get((keys[run.id], None), {}),
            }
        )
        for run in study.runs
    }


@functools.cache
def _digest(path: Path, _stamp: int) -> str:
    return file_digest(path)


def beyond(study: PlannedStudy) -> Any:
    """Return what a study's results depend on besides its own records, as JSON.

    The ledger names the rates that were tried for what the runs train. The page of a study of
    trials shows the noise between seeds of committed runs, and what studies of evidence take.
    """
    tried = _tried(study.scale)
    places = dict.fromkeys(place_of(run.spec) for run in study.runs)
    found: dict[str, Any] = {
        "tried": [
            [place, [[level, sorted(rates)] for level, rates in sorted(tried[place].items())]]
            for place in places
            if place in tried
        ]
    }
    if study.trials:
        pairs = dict.fromkeys((run.spec.model.label, run.spec.data.name) for run in study.runs)
        files = [path for pair in pairs for path in noise_records(*pair)]
        found["noise"] = {path.name: _digest(path, path.stat().st_mtime_ns) for path in files}
        found["taken"] = taken_by(study)
    return found


def judged(
    trials: pd.DataFrame, default_rate: float, *, takes_lowest: bool = False
) -> pd.DataFrame:
    """Add what was decided to the trials of one method on one workload.

    Args:
        trials: Columns ``model``, ``dataset``, ``metric``, ``value``, ``seed``, ``learning rate``
            and ``method``; the method that comes first has the default mask settings.
        default_rate: The learning rate that stands without a reason for another.
        takes_lowest: Whether the lowest is chosen, however near others are.

    Returns:
        The trials with ``noise`` (between seeds), ``margin`` (below it settings tie), ``chosen``
        and ``choice`` in words.
    """
    first = trials.iloc[0]
    settings = trials[["method", "learning rate"]].apply(tuple, axis=1)
    means = trials["value"].groupby(settings).mean()
    seeds = int(trials["seed"].groupby(settings).nunique().min())
    noise = seed_noise(first["model"], first["dataset"], first["metric"])
    margin = tie_margin(noise, seeds)
    # A change of the mask settings counts for more than any change of the rate.
    distance = {
        (method, rate): 100.0 * (method != first["method"]) + abs(math.log(rate / default_rate))
        for method, rate in means.index
    }
    chosen = choose(means.to_dict(), distance, 0.0 if takes_lowest else margin)
    lowest = means.min()
    words = []
    for setting in settings:
        is_tied = not means[setting] - lowest > margin  # all of them by an unknown margin
        if setting == chosen:
            is_best, is_default = means[setting] == lowest, distance[setting] == 0
            best = LOWEST if len(means) > 1 else ONLY
            words.append(best if is_best else DEFAULT if is_default else NEAREST)
        elif means[setting] == lowest:
            words.append(LOWEST + ", " + TIE)
        else:
            words.append(TIE if is_tied else "")
    return trials.assign(noise=noise, margin=margin, chosen=settings == chosen, choice=words)
