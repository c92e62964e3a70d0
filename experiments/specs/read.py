"""Files become checked sections: studies and single runs from YAML.

What is wrong with a file is a `SpecError` of one sentence that begins with the file's name. Trials
try the methods of the evidence: ``like: <study>.<method>`` takes a section of another study, of
which keys beside ``like`` replace those of the same name.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from experiments import models, tasks
from experiments.errors import UserError, did_you_mean, not_one_of
from experiments.specs.code import ROOT
from experiments.specs.schema import (
    KEYS,
    Method,
    Single,
    SpecError,
    Study,
    Workload,
    check_choice,
    module_names,
)
from experiments.strict import read_yaml

STUDIES = ROOT / "experiments" / "studies"
#: Commit that holds the studies that were retired since, with their records and pages.
BEFORE_RETIREMENT = "de8e87e8"


def suite_names() -> list[str]:
    """Evaluation suites on disk."""
    return sorted(path.stem for path in (ROOT / "experiments/evaluation/suites").glob("*.yaml"))


def computation_names() -> list[str]:
    """Computations on disk."""
    return module_names(ROOT / "experiments" / "computations")


def study_names(folder: Path | None = None) -> list[str]:
    """All studies, in alphabetical order."""
    return sorted(path.stem for path in (folder or STUDIES).glob("*.yaml"))


def check_study(name: Any, *others: str) -> None:
    """Raise `SpecError` for a name of no study, with the nearest one."""
    allowed = [*others, *study_names()]
    if name not in allowed:
        said = not_one_of("study", name, allowed, "experiments/studies")
        raise SpecError(f"{said} (retired studies are in commit {BEFORE_RETIREMENT})")


def stamp(folder: Path | None = None) -> tuple[Any, ...]:
    """Changes with the files of studies."""
    files = ((path, path.stat()) for path in sorted((folder or STUDIES).glob("*.yaml")))
    return tuple((path, stat.st_mtime_ns, stat.st_size) for path, stat in files)


def load_study(name: str, *, folder: Path | None = None) -> Study:
    """Read and validate one study; raises `SpecError` with one sentence."""
    path = (folder or STUDIES) / f"{name}.yaml"
    if not path.is_file():
        check_study(name)
    now = stamp(folder)
    try:
        return _load(path, now)
    except SpecError:
        with one_sentence(path):
            likes = re.findall(r"\blike: ([\w-]+)\.", path.read_text(encoding="utf-8"))
        for other in (path.with_name(f"{like}.yaml") for like in likes):
            if other.is_file():
                _load(other, now)  # what is wrong with it is told of its own file
        raise


@functools.cache
def _load(path: Path, stamp: tuple[Any, ...]) -> Study:
    def read(name: str) -> Any:
        check_choice("like", name, study_names(path.parent), "experiments/studies")
        with one_sentence(other := path.with_name(f"{name}.yaml")):
            return _parsed(other, stamp)

    with one_sentence(path):
        value = _parsed(path, stamp)
        methods = dict(methods_of(value))
        for key, section in methods.items():
            if isinstance(section, dict) and "like" in section:
                methods[key] = _whole(f"methods.{key}.like", section, read)
        study = Study.model_validate({**value, "methods": methods} if methods else value)
        _check_names(study, path.stem)
    return study


@functools.cache
def _parsed(path: Path, _stamp: tuple[Any, ...]) -> Any:
    """The value of a file, to be read only: many studies take methods from the same few."""
    return read_yaml(path.read_text(encoding="utf-8"))


def methods_of(study: Any) -> dict[Any, Any]:
    """The sections of ``methods`` as the YAML of a study reads, well-formed or not."""
    methods = study.get("methods") if isinstance(study, dict) else None
    return methods if isinstance(methods, dict) else {}


def _whole(place: str, section: dict[str, Any], read: Callable[[str], Any]) -> dict[str, Any]:
    """A section with what it takes from the one that ``like`` names.

    Raises:
        UserError: For a ``like`` that names no method, or one that is itself like another.
    """
    own = dict(section)
    like = own.pop("like")
    other, _, method = like.partition(".") if isinstance(like, str) else ("", "", "")
    if not (other and method):
        raise UserError(f"{place} is {like!r}, but must be <study>.<method>")
    others = methods_of(read(other))
    check_choice(place, method, map(str, others), f"experiments/studies/{other}.yaml")
    base = others[method]
    if not isinstance(base, dict) or "like" in base:
        raise UserError(f"{place} is {like!r}, which has no settings of its own")
    for one, two in (("levels", "final_sparsity"), ("final_sparsity", "levels")):
        if one in own and two not in own:
            base = {name: value for name, value in base.items() if name != two}
    return {**base, **own}


@contextmanager
def one_sentence(path: Path) -> Iterator[None]:
    """Turn what is wrong with a file into a `SpecError` that begins with its name."""
    try:
        yield
    except OSError as error:
        raise SpecError(f"{path}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise SpecError(f"{path.name}: not valid YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        raise SpecError(f"{path.name}: {_sentence(error)}") from None
    except UnicodeDecodeError:
        raise SpecError(f"{path.name}: no text in UTF-8") from None
    except UserError as error:
        raise SpecError(f"{path.name}: {error}") from None


def _sentence(error: ValidationError, *section: str, known: Iterable[str] = ()) -> str:
    """The first problem of a pydantic error as one sentence, an unknown key before others.

    Args:
        known: The keys of that section, where it is flat; else all keys of a study file serve for
            the hint.
    """
    problems = error.errors()
    unknown = [problem for problem in problems if problem["type"] == "extra_forbidden"]
    first = (unknown or problems)[0]
    place = (*section, *first["loc"])
    if place[-1:] == ("[key]",):  # the message has the key itself
        place = place[:-2]
    where = " ".join(".".join(map(str, place)).split()) or "the file"
    if first["type"] == "extra_forbidden":
        known = sorted(known)
        listed = f": known are {', '.join(known)}" if known else ""
        return f"unknown key {where}{listed}" + did_you_mean(str(first["loc"][-1]), known or KEYS)
    if first["type"] == "missing":
        return f"the key {where} is missing"
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":
        return f"{where}: {message}" if place else message
    message = message[0].lower() + message[1:]
    return f"{where} is {first['input']!r}: {message}"


def _check_names(study: Study, stem: str) -> None:
    """Check what one section says against what another section or a folder holds."""
    if study.name != stem:
        raise UserError(f"name is {study.name!r}, but must equal the file's name {stem!r}")
    labelled: dict[tuple[str, float], str] = {}
    for name, method in study.methods.items():
        shown = method.label or f"methods.{name}"
        first = labelled.setdefault((shown, method.final_sparsity), name)
        if first != name:
            raise UserError(
                f"methods.{name}.label is {method.label!r}, which methods.{first} has at the same "
                "sparsity"
            )
        check_choice(f"methods.{name}.recipe", method.recipe, study.recipes)
        if method.sparsity is None and method.final_sparsity:
            raise UserError(f"methods.{name}.final_sparsity needs methods.{name}.sparsity")
        _check_method(study, name, method)
    for name in study.shown:
        check_choice("shown", name, study.recipes)
    for computation in study.computations:
        check_choice("computations", computation.name, computation_names())
    for kind in ("figures", "tables"):
        for name in getattr(study, kind):
            check_choice(kind, name, module_names(ROOT / "experiments" / "analysis" / kind))
    for scale, grids in study.scales.items():
        labels = [grid.label for grid in grids if grid.label is not None]
        for index, grid in enumerate(grids):
            where = f"scales.{scale}.{index}"
            if grid.label and labels.count(grid.label) > 1:
                raise UserError(f"{where}.label is {grid.label!r}, as another grid's is")
            if not grid.variants or (grid.label and isinstance(grid.variant, list)):
                raise UserError(
                    f"{where}.variant is {grid.variant}, but needs names; with label, one"
                )
            for key, names, known in (
                ("methods", [*grid.methods], study.methods),
                ("learning_rate_scale", [*grid.learning_rate_scale], study.methods),
                ("pretrained", [grid.pretrained], labels),
                ("continues", [grid.continues], labels),
                ("variant", grid.variants, study.recipes),
                ("suite", [grid.suite], suite_names()),
            ):
                for named in names:
                    if named is not None:
                        check_choice(f"{where}.{key}", named, known)
            check_workload(grid, where)


def check_workload(workload: Workload, *where: str) -> None:
    """Check what the model's file and its task say about their sections."""
    name = workload.model.name
    check_choice(".".join((*where, "model.name")), name, models.names())
    check_choice(".".join((*where, "task")), workload.task, tasks.names())
    task = tasks.get(workload.task)
    for key, section, value in (
        ("model", models.get(name).Config, workload.model.model_extra),
        ("data", task.Data, workload.data),
        ("recipe", task.Recipe, workload.recipe),
    ):
        try:
            section.model_validate(value)
        except ValidationError as error:
            fields = set(section.model_fields) - set(tasks.Recipe.PLANNED)
            raise UserError(_sentence(error, *where, key, known=fields)) from None


def _check_method(study: Study, name: str, method: Method) -> None:
    """Check how a method's transformation and first phase fit the rest of it."""
    key = f"methods.{name}"
    if method.transform is not None and method.final_sparsity != method.transform.sparsity:
        raise UserError(
            f"{key}.final_sparsity is {method.final_sparsity}, but {key}.transform.sparsity "
            f"is {method.transform.sparsity}; they must be equal"
        )
    start = method.starts_from
    if start is None:
        return
    check_choice(f"{key}.starts_from.method", start.method, study.methods)
    if study.methods[start.method].starts_from is not None:
        raise UserError(
            f"{key}.starts_from.method is {start.method!r}, but a first phase may not itself "
            "start from another run"
        )
    if method.transform is not None:
        raise UserError(f"{key}.transform: a second phase has the model of its first phase")
    if not start.densify and method.sparsity is None:
        raise UserError(f"{key}.starts_from.densify is false, which needs {key}.sparsity")


def read_single(path: Path) -> Single:
    """Read and validate the YAML file of a run outside of studies; raises `SpecError`."""
    with one_sentence(path):
        run = Single.model_validate(read_yaml(path.read_text(encoding="utf-8")))
        check_workload(run)
    return run
