"""Studies become runs: each grid, method and seed gives one frozen spec under a readable id."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from experiments import tasks
from experiments.errors import UserError
from experiments.specs.read import load_study, one_sentence, read_single, study_names
from experiments.specs.run import FirstPhase, Run, RunSpec
from experiments.specs.schema import (
    SCALES,
    Grid,
    SpecError,
    Study,
    Variant,
    Workload,
    check_choice,
    checked_name,
)

#: Core-seconds that all studies together may cost, start-up included.
BUDGET_CORE_S = {"smoke": 300, "quick": 2000}


def _level(sparsity: float) -> str:
    """A sparsity for an id: two digits where they are exact, else all."""
    short = f"{sparsity:.2f}"
    return short if float(short) == sparsity else repr(sparsity)


#: As ``stop`` of mask updates: they end with the constant rate of a ``stable`` recipe. One that is
#: due after the last step of that rate still takes place.
DECAY = "decay"


def _resolve_shares(value: Any, recipe: tasks.Recipe, key: str) -> Any:
    """Replace strings such as ``75%`` by that share of the run's steps (at least 1)."""
    if isinstance(value, dict):
        found = {name: _resolve_shares(item, recipe, name) for name, item in value.items()}
        if value.get("stop") == DECAY and recipe.stable is not None:
            found["stop"] = recipe.decay_start
            found["stop"] += recipe.decay_start in _due({**found, "stop": None}, recipe.decay_start)
        return found
    if isinstance(value, list):
        return [_resolve_shares(item, recipe, key) for item in value]
    if isinstance(value, str) and value.endswith("%") and key != "seed":
        try:
            share = float(value[:-1]) / 100
        except ValueError:
            share = math.nan
        if not (math.isfinite(share) and share >= 0):
            raise SpecError(f"{key} is {value!r}, but a share of the run reads like 75%")
        if key in ("sparsity", "backward_sparsity", "drop_fraction"):
            raise SpecError(f"{key} is {value!r}, a share of the run's steps; write {share:g}")
        return max(1, math.floor(share * recipe.steps + 0.5))
    return value


def _due(update: Mapping[str, Any], last: int) -> range:
    """The steps from 1 to a last one after which masks are updated, by ``freq``, ``start`` and
    ``stop`` (exclusive).

    It is what `sparse_lib.schedules.FreqSchedule` does; plans are made without torch.
    """
    freq, stop = update.get("freq", 1), update.get("stop")
    for key, value in (("freq", freq), ("start", update.get("start") or 1)):
        if not isinstance(value, int) or value < 1:
            raise SpecError(f"update.{key} is {value!r}; it must be a share like 2%, or steps")
    end = last + 1 if stop is None else min(stop, last + 1)
    return range(update.get("start") or freq, end, freq)


def _recipe(workload: Workload, name: str, variant: Variant, *, rate: float = 1.0) -> tasks.Recipe:
    """The recipe of a run, with its name and its steps."""
    data, base = workload.typed
    budget = max(1, round(getattr(base, base.BUDGET) * variant.budget_scale))
    base = base.model_copy(update={base.BUDGET: budget})
    batch_size = max(1, round(base.batch_size * variant.batch_scale))
    steps = base.num_steps(data, batch_size)
    values = {
        "name": name,
        "batch_size": batch_size,
        "steps": steps,
        "learning_rate": base.learning_rate * variant.learning_rate_scale * rate,
    }
    return base.model_copy(update=values).in_order()  # type: ignore[operator]


def _seeded(sparsity: Any, recipe: tasks.Recipe, seed: int) -> Any:
    """A method's sparsity with steps in place of shares, and with the run's seed."""
    resolved = _resolve_shares(sparsity, recipe, "sparsity")
    if isinstance(resolved, dict):
        resolved.setdefault("seed", seed)
    return resolved


def load_single(path: Path, *, run_id: str, max_steps: int | None = None) -> RunSpec:
    """The spec of a run that one YAML file describes by itself.

    Args:
        max_steps: bound on the optimizer steps of the recipe.
    """
    run = read_single(path)
    with one_sentence(path):
        recipe = _recipe(run, run_id, Variant())  # the file may be renamed
        steps = min(recipe.steps, max_steps or recipe.steps)
        recipe = recipe.model_copy(update={"steps": steps})
        return RunSpec(
            id=run_id,
            task=run.task,
            model=run.model.model_dump(),  # type: ignore[arg-type]
            data=run.typed[0],
            recipe=recipe,
            sparsity=_seeded(run.sparsity, recipe, run.seed),
            seed=run.seed,
            transform=run.transform,
        )


def _first_phase(study: Study, scale: str, grid: Grid, method_name: str, seed: int) -> RunSpec:
    """The spec of the run that a second phase starts from."""
    where, start = f"{study.name}.yaml: scales.{scale}", study.methods[method_name].starts_from
    assert start is not None
    if grid.pretrained is None:
        raise SpecError(
            f"{where}: method {method_name} starts from {start.method}, but its grid has no key "
            "pretrained with the label of the first phase's grid"
        )
    grids = study.scales[scale]  # type: ignore[index]
    first = next(other for other in grids if other.label == grid.pretrained)
    if first.model != grid.model:
        raise SpecError(f"{where}: model differs from that of the grid {grid.pretrained!r}")
    if seed not in first.seeds(start.method):
        raise SpecError(
            f"{where}: method {method_name} needs seed {seed} of {start.method}, but the grid "
            f"{grid.pretrained!r} has the seeds {first.seeds(start.method)} of it"
        )
    return make_spec(study, scale, first, start.method, seed)


def _continued(study: Study, scale: str, grid: Grid, method_name: str, spec: RunSpec) -> FirstPhase:
    """The run at a constant rate whose state a run goes on from, and the step of that state."""
    where = f"{study.name}.yaml: scales.{scale}"
    grids = study.scales[scale]  # type: ignore[index]
    trunk = next(other for other in grids if other.label == grid.continues)
    if trunk.continues is not None or study.methods[method_name].starts_from is not None:
        raise SpecError(f"{where}: {method_name} may not continue a run that itself has a start")
    if spec.seed not in trunk.seeds(method_name):
        raise SpecError(
            f"{where}: the grid {grid.continues!r} has no run of {method_name} with seed "
            f"{spec.seed} to continue"
        )
    first = make_spec(study, scale, trunk, method_name, spec.seed)
    for key, own, other in (
        ("model", spec.model, first.model),
        ("data", spec.data, first.data),
        *(
            (f"recipe.{key}", unscheduled(spec).get(key), value)
            for key, value in unscheduled(first).items()
        ),
    ):
        if own != other:
            raise SpecError(f"{where}: {key} differs from that of the grid {grid.continues!r}")
    step, stable = spec.recipe.decay_start, first.recipe.stable
    if problem := _masks_apart(spec.sparsity, first.sparsity, step):
        raise SpecError(
            f"{where}: {spec.id} cannot continue the grid {grid.continues!r}: {problem}"
        )
    if stable is None or first.recipe.decay_start < step or step not in stable.keep:
        raise SpecError(
            f"{where}: {spec.id} decays from step {step} on, but the grid {grid.continues!r} keeps "
            f"the steps {list(stable.keep) if stable else []} in recipe.stable.keep"
        )
    return FirstPhase(run=first.id, spec_hash=first.hash, densify=False, step=step)


def _masks_apart(own: Mapping[str, Any] | None, trunk: Mapping[str, Any] | None, last: int) -> str:
    """The difference of two runs' masks up to a step, in words; empty if there is none."""
    own, trunk = dict(own or {}), dict(trunk or {})
    update, other = own.pop("update", None), trunk.pop("update", None)
    for key in sorted(own.keys() | trunk.keys()):
        if own.get(key) != trunk.get(key):
            return f"sparsity.{key} is {own.get(key)!r} in one and {trunk.get(key)!r} in the other"
    if update == other:
        return ""
    if not (isinstance(update, Mapping) and isinstance(other, Mapping)):
        return f"sparsity.update is {update!r} in one and {other!r} in the other"
    if (due := _due(update, last)) != (others := _due(other, last)):
        step = min({*due} ^ {*others})
        return f"only one of them updates its masks at step {step}, before the decay"
    return ""


def unscheduled(spec: RunSpec) -> dict[str, Any]:
    """Settings that two recipes share if one run continues the other: all but length and decay."""
    recipe = spec.recipe.model_dump(mode="json")
    stable = recipe.get("stable") or {}
    own = {*spec.recipe.PLANNED, spec.recipe.BUDGET, "stable"}
    kept = {key: value for key, value in recipe.items() if key not in own and "valid" not in key}
    return {**kept, "stable.warmup_steps": stable.get("warmup_steps")}


def make_spec(study: Study, scale: str, grid: Grid, method_name: str, seed: int) -> RunSpec:
    """The spec of one run."""
    method = study.methods[method_name]
    variant = grid.variants[0] or method.recipe
    data, _ = grid.typed
    rate = grid.learning_rate_scale.get(method_name, 1.0)
    try:
        recipe = _recipe(grid, variant, study.recipes[variant], rate=rate)
        checked_name(data.label)
        sparsity = _seeded(method.sparsity, recipe, seed)
    except (UserError, ValidationError) as error:
        raise SpecError(f"{study.name}.yaml: scales.{scale}: {error}") from None
    label, transform, start = method_name, method.transform, None
    if sparsity is not None:
        label = f"{method_name}-s{_level(method.final_sparsity)}"
    if method.starts_from is not None:
        first = _first_phase(study, scale, grid, method_name, seed)
        start = FirstPhase(run=first.id, spec_hash=first.hash, densify=method.starts_from.densify)
        transform = first.transform
    spec = RunSpec(
        id="__".join([scale, grid.model.label, label, data.label, variant, f"seed{seed}"]),
        scale=scale,
        task=grid.task,
        model=grid.model.model_dump(),  # type: ignore[arg-type]
        data=data,
        recipe=recipe,
        method=method_name,
        final_sparsity=method.final_sparsity,
        sparsity=sparsity,
        seed=seed,
        suite=grid.suite,
        transform=transform,
        starts_from=start,
    )
    if grid.continues is None:
        return spec
    start = _continued(study, scale, grid, method_name, spec)
    return spec.model_copy(update={"starts_from": start})


def study_runs(study: Study, scale: str) -> list[Run]:
    """All runs of one study at one scale; an empty list where the scale is not defined."""
    runs: dict[str, Run] = {}
    grids = study.scales.get(scale, [])  # type: ignore[call-overload]
    for grid in (g.model_copy(update={"variant": one}) for g in grids for one in g.variants):
        for method_name in grid.methods:
            for seed in grid.seeds(method_name):
                spec = make_spec(study, scale, grid, method_name, seed)
                run = Run(spec, grid.core_seconds, (study.name,))
                if run.id in runs:
                    raise SpecError(f"{study.name}.yaml: the run id {run.id} occurs twice")
                runs[run.id] = run
    return list(runs.values())


def all_runs(
    scale: str, *, folder: Path | None = None, broken: dict[str, SpecError] | None = None
) -> dict[str, Run]:
    """Runs of all studies by id; a run that two studies share trains once.

    Args:
        broken: Receives what is wrong with a study, which is left out, by its name; None raises it.

    Raises:
        SpecError: when a study is wrong, or one id stands for two different specs.
    """
    check_choice("scale", scale, SCALES)
    runs: dict[str, Run] = {}
    for name in study_names(folder):
        try:
            study = load_study(name, folder=folder)
            own = study_runs(study, scale)
            for run in own:
                known = runs.get(run.id, run)
                if known.spec != run.spec:
                    raise SpecError(
                        f"the run id {run.id} has one spec in {known.studies[0]}.yaml and another "
                        f"in {name}.yaml; give one of them another model label or recipe name"
                    )
        except SpecError as error:
            if broken is None:
                raise
            broken[name] = error
            continue
        for run in own:
            known = runs.setdefault(run.id, replace(run, studies=()))
            runs[run.id] = replace(known, studies=(*known.studies, name))
    return runs


def runs_of(scale: str, study: str = "all") -> list[Run]:
    """The runs of a study, or of all, at a scale."""
    return [*all_runs(scale).values()] if study == "all" else study_runs(load_study(study), scale)


def computation_costs(scale: str) -> dict[str, float]:
    """Expected core-seconds of the computations of all sound studies; each is made once."""
    costs: dict[str, float] = {}
    for name in study_names():
        with suppress(SpecError):
            for computation in load_study(name).computations:
                cost = computation.cost(scale)
                costs[computation.name] = max(cost, costs.get(computation.name, 0.0))
    return costs
