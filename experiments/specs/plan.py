"""Studies become runs: YAML in, validated specs with readable ids out.

Snakemake imports this module at parse time, so it imports neither torch nor pandas.
"""

from __future__ import annotations

import csv
import difflib
import functools
import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from experiments import models, tasks
from experiments.specs.code import ROOT, code_hash, digest, module_files
from experiments.specs.schema import (
    KEYS,
    SCALES,
    ClaimTest,
    Grid,
    Method,
    Single,
    SpecError,
    Study,
    Variant,
    Workload,
    check_choice,
    module_names,
)

STUDIES = ROOT / "experiments" / "studies"
PUBLISHED = ROOT / "experiments" / "published"
REFERENCE = ROOT / "results" / "reference" / "runs"
EXECUTIONS = ("auto", "dense", "skip")
# libyaml's where the wheel has it: it reads the studies ten times faster.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: Core-seconds that all studies together may cost, start-up included.
BUDGET_CORE_S = {"smoke": 240, "quick": 2000}


@dataclass(frozen=True)
class Run:
    """A frozen row: everything that determines a result, under a readable id."""

    id: str
    scale: str
    spec: dict[str, Any]
    core_seconds: float
    studies: tuple[str, ...] = field(default=(), compare=False)

    @functools.cached_property
    def spec_hash(self) -> str:
        """Hash of what determines the trained weights, the evaluation suite left out."""
        return digest({key: value for key, value in self.spec.items() if key != "suite"})

    @property
    def data_label(self) -> str:
        """Folder of the prepared data under ``resources/data``."""
        return data_of(self.spec).label

    @property
    def first(self) -> str | None:
        """Id of the run that this one starts from, if it is a second phase."""
        return self.spec["starts_from"]["run"] if "starts_from" in self.spec else None

    @property
    def reference(self) -> Path:
        """Where the committed record of this run lies, if there is one."""
        return REFERENCE / f"{self.id}.json"


def data_of(spec: dict[str, Any]) -> tasks.Data:
    """The data of a run, as its task reads it."""
    return tasks.get(spec["task"]).Data(**spec["data"])


def suite_names() -> list[str]:
    """Evaluation suites on disk."""
    return sorted(path.stem for path in (ROOT / "experiments/evaluation/suites").glob("*.yaml"))


def computation_names() -> list[str]:
    """Computations on disk."""
    return module_names(ROOT / "experiments" / "computations")


@functools.cache
def claim_ids() -> list[str]:
    """Published claims, in the order of ``claims.csv``."""
    with (PUBLISHED / "claims.csv").open(newline="", encoding="utf-8") as file:
        return [row["claim_id"] for row in csv.DictReader(file)]


@functools.cache
def claim_tests() -> dict[str, ClaimTest]:
    """The test of each claim; raises `SpecError` where ``tests.yaml`` is wrong."""
    path = PUBLISHED / "tests.yaml"
    with _one_sentence(path):
        tests = yaml.load(path.read_text(), Loader=_LOADER)
        checked = {}
        for name, test in tests.items():
            check_choice("claim", name, claim_ids())
            try:
                checked[name] = ClaimTest.model_validate(test)
            except ValidationError as error:
                raise ValueError(_sentence(error, name)) from None
        return checked


def study_names() -> list[str]:
    """All studies, in alphabetical order."""
    return sorted(path.stem for path in STUDIES.glob("*.yaml"))


def load_study(name: str, *, folder: Path | None = None) -> Study:
    """Read and validate one study; raises `SpecError` with one sentence."""
    path = (folder or STUDIES) / f"{name}.yaml"
    if not path.is_file():
        check_choice("study", name, study_names())
    with _one_sentence(path):
        return _read_study(path.stem, path.read_text())


@functools.cache
def _read_study(name: str, text: str) -> Study:
    study = Study.model_validate(yaml.load(text, Loader=_LOADER))
    _check_names(study, name)
    return study


@contextmanager
def _one_sentence(path: Path) -> Iterator[None]:
    """Turn what is wrong with a file into a `SpecError` that begins with its name."""
    try:
        yield
    except OSError as error:
        raise SpecError(f"{path}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise SpecError(f"{path.name}: not valid YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        raise SpecError(f"{path.name}: {_sentence(error)}") from None
    except ValueError as error:
        raise SpecError(f"{path.name}: {error}") from None


def _sentence(error: ValidationError, *section: str, known: Iterable[str] = ()) -> str:
    """The first problem of a pydantic error as one sentence, an unknown key before others.

    Args:
        error: What pydantic raised.
        section: Where the values were read.
        known: The keys of that section, where it is flat; else all keys of a study file serve for
            the hint.
    """
    problems = error.errors()
    unknown = [problem for problem in problems if problem["type"] == "extra_forbidden"]
    first = (unknown or problems)[0]
    where = ".".join(str(part) for part in (*section, *first["loc"])) or "the file"
    if first["type"] == "extra_forbidden":
        known = sorted(known)
        close = difflib.get_close_matches(str(first["loc"][-1]), known or KEYS, n=1)
        listed = f": known are {', '.join(known)}" if known else ""
        return f"unknown key {where}{listed}" + (f"; did you mean {close[0]!r}?" if close else "")
    if first["type"] == "missing":
        return f"the key {where} is missing"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":
        return f"{where}: {message}"
    message = message[0].lower() + message[1:]
    return f"{where} is {first['input']!r}: {message}"


def _check_names(study: Study, stem: str) -> None:
    """Check what one section says against what another section or a folder holds."""
    if study.name != stem:
        raise ValueError(f"name is {study.name!r}, but must equal the file's name {stem!r}")
    for name, method in study.methods.items():
        check_choice(f"methods.{name}.recipe", method.recipe, study.recipes)
        if method.sparsity is None and method.final_sparsity:
            raise ValueError(f"methods.{name}.final_sparsity needs methods.{name}.sparsity")
        if name.count("__"):
            raise ValueError(f"methods.{name}: a method's name may not hold a double underscore")
        _check_method(study, name, method)
    for computation in study.computations:
        check_choice("computations", computation.name, computation_names())
    for kind in ("figures", "tables"):
        for name in getattr(study, kind):
            check_choice(kind, name, module_names(ROOT / "experiments" / "analysis" / kind))
    for role in ("primary", "exploratory"):
        for claim in getattr(study.claims, role):
            check_choice(f"claims.{role}", claim, claim_ids())
    for scale, grids in study.scales.items():
        for index, grid in enumerate(grids):
            where = f"scales.{scale}.{index}"
            for method_name in grid.methods:
                check_choice(f"{where}.methods", method_name, study.methods)
            for method_name in grid.learning_rate_scale:
                check_choice(f"{where}.learning_rate_scale", method_name, study.methods)
            if grid.pretrained is not None:
                labels = [other.label for other in grids if other.label is not None]
                check_choice(f"{where}.pretrained", grid.pretrained, labels)
            if grid.variant is not None:
                check_choice(f"{where}.variant", grid.variant, study.recipes)
            check_choice(f"{where}.suite", grid.suite, suite_names())
            _check_workload(grid, where)


def _check_workload(workload: Workload, *where: str) -> None:
    """Check what the model's file and its task say about their sections."""
    name = workload.model.name
    check_choice(".".join((*where, "model.name")), name, models.names())
    task = tasks.get(workload.task)
    for key, section, value in (
        ("model", models.get(name).Config, workload.model.model_extra),
        ("data", task.Data, workload.data),
        ("recipe", task.Recipe, workload.recipe),
    ):
        try:
            section.model_validate(value)
        except ValidationError as error:
            fields = section.model_fields
            raise ValueError(_sentence(error, *where, key, known=fields)) from None


def _check_method(study: Study, name: str, method: Method) -> None:
    """Check how a method's transformation and first phase fit the rest of it."""
    key = f"methods.{name}"
    if method.transform is not None and method.final_sparsity != method.transform.sparsity:
        raise ValueError(
            f"{key}.final_sparsity is {method.final_sparsity}, but {key}.transform.sparsity "
            f"is {method.transform.sparsity}; they must be equal"
        )
    start = method.starts_from
    if start is None:
        return
    check_choice(f"{key}.starts_from.method", start.method, study.methods)
    if study.methods[start.method].starts_from is not None:
        raise ValueError(
            f"{key}.starts_from.method is {start.method!r}, but a first phase may not itself "
            "start from another run"
        )
    if method.transform is not None:
        raise ValueError(f"{key}.transform: a second phase has the model of its first phase")
    if not start.densify and method.sparsity is None:
        raise ValueError(f"{key}.starts_from.densify is false, which needs {key}.sparsity")


def _first_phase(
    study: Study, scale: str, grid: Grid, method_name: str, seed: int
) -> dict[str, Any]:
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


def _resolve_shares(value: Any, num_steps: int, key: str) -> Any:
    """Replace strings such as ``75%`` by that share of the run's steps (at least 1)."""
    if isinstance(value, dict):
        return {name: _resolve_shares(item, num_steps, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_resolve_shares(item, num_steps, key) for item in value]
    if isinstance(value, str) and value.endswith("%"):
        try:
            share = float(value[:-1]) / 100
        except ValueError:
            raise SpecError(f"{key} is {value!r}, but a share of the run reads like 75%") from None
        return max(1, math.floor(share * num_steps + 0.5))
    return value


def _recipe(workload: Workload, name: str, variant: Variant | None = None) -> dict[str, Any]:
    """The recipe as a run's spec holds it, with its steps."""
    data, base = workload.typed
    variant = variant or Variant()
    base = base.with_budget(variant.budget_scale)
    batch_size = max(1, round(base.batch_size * variant.batch_scale))
    steps = base.num_steps(data, batch_size)
    learning_rate = base.learning_rate * variant.learning_rate_scale
    values = {
        "name": name,
        "batch_size": batch_size,
        "steps": steps,
        "learning_rate": learning_rate,
    }
    return base.model_dump(mode="json") | values


def load_single(path: Path, *, run_id: str, max_steps: int | None = None) -> dict[str, Any]:
    """The spec of a run that one YAML file describes by itself.

    Args:
        path: file with the keys of `Single`.
        run_id: what the run is called in its messages.
        max_steps: bound on the optimizer steps of the recipe.

    Raises:
        SpecError: if the file is missing or wrong; one sentence.
    """
    with _one_sentence(path):
        run = Single.model_validate(yaml.safe_load(path.read_text()))
        _check_workload(run)
        recipe = _recipe(run, path.stem)
        recipe["steps"] = min(recipe["steps"], max_steps or recipe["steps"])
        sparsity = _resolve_shares(run.sparsity, recipe["steps"], "sparsity")
    if isinstance(sparsity, dict):
        sparsity.setdefault("seed", run.seed)
    spec = {
        "id": run_id,
        "task": run.task,
        "model": run.model.model_dump(mode="json"),
        "data": run.typed[0].model_dump(mode="json"),
        "recipe": recipe,
        "sparsity": sparsity,
        "seed": run.seed,
    }
    if run.transform is not None:
        spec["transform"] = run.transform.model_dump(mode="json", exclude_defaults=True)
    return spec


def make_spec(study: Study, scale: str, grid: Grid, method_name: str, seed: int) -> dict[str, Any]:
    """The JSON-serialisable spec of one run."""
    method = study.methods[method_name]
    variant = grid.variant or method.recipe
    data, _ = grid.typed
    try:
        recipe = _recipe(grid, variant, study.recipes[variant])
        recipe["learning_rate"] *= grid.learning_rate_scale.get(method_name, 1.0)
    except ValueError as error:
        raise SpecError(f"{study.name}.yaml: scales.{scale}: {error}") from None
    sparsity = _resolve_shares(method.sparsity, recipe["steps"], "sparsity")
    label = method_name
    if sparsity is not None:
        sparsity.setdefault("seed", seed)
        label = f"{method_name}-s{method.final_sparsity:.2f}"
    name = [scale, grid.model.label, label, data.label, variant, f"seed{seed}"]
    spec = {
        "id": "__".join(name),
        "scale": scale,
        "task": grid.task,
        "model": grid.model.model_dump(mode="json"),
        "data": data.model_dump(mode="json"),
        "recipe": recipe,
        "method": method_name,
        "final_sparsity": method.final_sparsity,
        "sparsity": sparsity,
        "seed": seed,
        "suite": grid.suite,
    }
    # Unused keys are left out, so that a new one changes the hash of no run without it.
    if method.transform is not None:
        spec["transform"] = method.transform.model_dump(mode="json", exclude_defaults=True)
    if method.starts_from is not None:
        first = _first_phase(study, scale, grid, method_name, seed)
        run = Run(first["id"], scale, first, 0.0)
        start = {"run": run.id, "spec_hash": run.spec_hash, "densify": method.starts_from.densify}
        spec["starts_from"] = start
        if "transform" in first:
            spec["transform"] = first["transform"]
    return spec


def study_runs(study: Study, scale: str) -> list[Run]:
    """All runs of one study at one scale; an empty list where the scale is not defined."""
    runs: dict[str, Run] = {}
    for grid in study.scales.get(scale, []):  # type: ignore[call-overload]
        for method_name in grid.methods:
            for seed in grid.seeds(method_name):
                spec = make_spec(study, scale, grid, method_name, seed)
                run = Run(spec["id"], scale, spec, grid.core_seconds, (study.name,))
                if run.id in runs:
                    raise SpecError(f"{study.name}.yaml: the run id {run.id} occurs twice")
                runs[run.id] = run
    return list(runs.values())


def all_runs(scale: str, *, folder: Path | None = None) -> dict[str, Run]:
    """Runs of all studies by id; a run that two studies share trains once.

    Raises:
        SpecError: when a study is wrong, one id stands for two different specs, or two studies
            test one claim.
    """
    if scale not in SCALES:
        raise SpecError(f"scale is {scale!r}, but must be one of {', '.join(SCALES)}")
    tests = claim_tests()
    names = sorted(path.stem for path in (folder or STUDIES).glob("*.yaml"))
    runs: dict[str, Run] = {}
    tested_by: dict[str, str] = {}
    for name in names:
        study = load_study(name, folder=folder)
        for claim in (*study.claims.primary, *study.claims.exploratory):
            if claim not in tests or tests[claim].exact:
                continue  # arithmetic gives the same verdict everywhere
            other = tested_by.setdefault(claim, name)
            if other != name:
                raise SpecError(
                    f"{name}.yaml: claims names {claim}, which {other}.yaml tests; a claim has "
                    "one verdict, so leave it out of one of them"
                )
        for run in study_runs(study, scale):
            known = runs.setdefault(run.id, run)
            if known is run:
                continue
            if known.spec != run.spec:
                raise SpecError(
                    f"the run id {run.id} has one spec in {known.studies[0]}.yaml and another "
                    f"in {name}.yaml; give one of them another model label or recipe name"
                )
            shared = (*known.studies, name)
            runs[run.id] = Run(run.id, run.scale, run.spec, run.core_seconds, shared)
    return runs


def computation_costs(scale: str, *, folder: Path | None = None) -> dict[str, float]:
    """Expected core-seconds of the computations of all studies; each is made once."""
    costs: dict[str, float] = {}
    for name in sorted(path.stem for path in (folder or STUDIES).glob("*.yaml")):
        for computation in load_study(name, folder=folder).computations:
            cost = computation.cost(scale)
            costs[computation.name] = max(cost, costs.get(computation.name, 0.0))
    return costs


def find_run(run_id: str) -> Run:
    """The run with this id; its first part names the scale."""
    runs = all_runs(run_id.split("__")[0]) if run_id.split("__")[0] in SCALES else {}
    if run_id not in runs:
        known = [name for scale in SCALES for name in all_runs(scale)]
        close = difflib.get_close_matches(run_id, known, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise SpecError(f"run is {run_id!r}, which no study defines{hint}")
    return runs[run_id]


def find_runs(text: str) -> list[Run]:
    """The runs of a comma-separated list of ids, as `rerun_command` writes it.

    A number alone is a further seed of the run before it: ``ID__seed0,1,ID2__seed0``.

    Raises:
        SpecError: for an id that no study defines, or runs of several scales.
    """
    ids: list[str] = []
    for part in text.split(","):
        further = part.isdigit() and ids
        ids.append(f"{ids[-1].rpartition('__')[0]}__seed{part}" if further else part)
    runs = [find_run(run_id) for run_id in ids]
    scales = sorted({run.scale for run in runs})
    if len(scales) > 1:
        raise SpecError(f"run is {text!r}, but all runs must be of one scale, not {scales}")
    return runs


def rerun_command(ids: Iterable[str]) -> str:
    """The one command that repeats these runs and what depends on them."""
    seeds: dict[str, list[str]] = {}
    for run_id in ids:
        stem, _, seed = run_id.rpartition("__seed")
        seeds.setdefault(stem, []).append(seed)
    names = ",".join(
        f"{stem}__seed{','.join(sorted(numbers, key=int))}" for stem, numbers in seeds.items()
    )
    return f"snakemake rerun --config run={names}"


def find_data(label: str) -> tuple[str, tasks.Data]:
    """Task and data of a folder of ``resources/data``, as the studies ask for it."""
    known = {run.data_label: run.spec for scale in SCALES for run in all_runs(scale).values()}
    check_choice("data", label, known)
    return known[label]["task"], data_of(known[label])


def study_as_dict(study: Study, scale: str) -> dict[str, Any]:
    """What tables, figures, claims and the report know of a study."""
    return {
        **study.model_dump(mode="json", exclude={"scales"}),
        "scale": scale,
        "runs": [
            {
                "id": run.id,
                "method": run.spec["method"],
                "seed": run.spec["seed"],
                "spec": run.spec,
                "command": rerun_command([run.id]),
            }
            for run in study_runs(study, scale)
        ],
    }


def training_code_hash(spec: dict[str, Any]) -> str:
    """Hash of the code that one run's training executes: core, its model, its algorithm."""
    entries = [
        ROOT / "experiments" / "training" / "loop.py",
        ROOT / "experiments" / "tasks" / f"{spec['task']}.py",
        ROOT / "experiments" / "models" / f"{spec['model']['name']}.py",
    ]
    if spec["sparsity"] is not None:
        entries.append(ROOT / "sparse_lib" / "algorithms" / f"{spec['sparsity']['algorithm']}.py")
    if "transform" in spec:
        entries.append(ROOT / "experiments" / "models" / "_transform.py")
    return code_hash(*entries)


def evaluation_code_hash(spec: dict[str, Any]) -> str:
    """Hash of the task's evaluation code, one suite file and our own task definitions."""
    from experiments.evaluation.suite import suite_path, task_files

    files = [suite_path(spec["suite"]), *task_files(spec["suite"])]
    texts = {path.name: path.read_text() for path in files}
    return digest([code_hash(*module_files(tasks.get(spec["task"]).EVALUATION)), texts])


def reusable(run: Run, *, data_folder: Path) -> bool:
    """Whether a committed record answers for this run: same spec, and same data if prepared."""
    if not run.reference.is_file():
        return False
    record = json.loads(run.reference.read_text())
    if record["spec_hash"] != run.spec_hash or record["spec"]["suite"] != run.spec["suite"]:
        return False
    meta = data_folder / run.data_label / "meta.json"
    return not meta.is_file() or json.loads(meta.read_text())["hash"] == record["data"]["hash"]
