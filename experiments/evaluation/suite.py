"""Suites: which scores a model gets, and under which conditions. One YAML file each."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    field_validator,
)

FOLDER = Path(__file__).parent / "suites"
#: lm-eval's files of our own tasks.
OWN_TASKS = Path(__file__).parent / "lm" / "tasks"


class Strict(BaseModel):
    """An unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Perplexity(Strict):
    """Perplexity of the dataset's own held-out splits."""

    splits: tuple[Literal["validation", "test"], ...] = Field(("validation", "test"), min_length=1)
    stride: PositiveInt | None = Field(default=None, description="tokens; None is half the context")
    max_tokens: PositiveInt | None = Field(
        default=None, description="tokens per split, spread over it; None takes all"
    )


class TaskEntry(Strict):
    """One lm-eval task or group."""

    task: str
    folder: str | None = Field(
        default=None, description="folder of the task below lm_eval/tasks; None for our own tasks"
    )
    num_fewshot: NonNegativeInt = 0
    limit: PositiveInt | None = Field(default=None, description="first documents; None takes all")
    enabled: bool = True
    if_present: str | None = Field(
        default=None, description="file of the data folder that it needs"
    )
    if_absent: str | None = Field(
        default=None, description="file of the data folder that replaces it"
    )

    @field_validator("if_present", "if_absent")
    @classmethod
    def _is_own_file(cls, name: str | None) -> str | None:
        known = sorted(filter(None, own_tasks().values()))
        if name is not None and name not in known:
            raise ValueError(f"it must be one of {', '.join(known)}")
        return name

    def applies(self, data_dir: Path) -> bool:
        """Whether the task fits this dataset and is switched on."""
        needed = self.if_present is None or (data_dir / self.if_present).exists()
        replaced = self.if_absent is not None and (data_dir / self.if_absent).exists()
        return self.enabled and needed and not replaced


class Common(Strict):
    """What every suite has: how to run the model, recorded with every score."""

    name: str
    batch_size: PositiveInt = 32
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    execution: Literal["auto", "dense"] = Field(
        default="auto", description="auto skips the work of zeros where that is faster"
    )

    @property
    def how(self) -> dict[str, Any]:
        """How the model is run, as scores record it."""
        return {"batch_size": self.batch_size, "dtype": self.dtype, "execution": self.execution}

    @property
    def hash(self) -> str:
        """Digest of every setting."""
        return digest(self.model_dump(mode="json"))


class Suite(Common):
    """What is scored of a language model."""

    bootstrap_iters: PositiveInt = Field(
        default=1000, description="resamples for the standard errors that have no closed form"
    )
    perplexity: Perplexity | None = Perplexity()
    tasks: tuple[TaskEntry, ...] = ()


Kind = TypeVar("Kind", bound=Common)


def digest(value: Any) -> str:
    """SHA-256 of a JSON value, keys sorted."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


class _TaskLoader(yaml.SafeLoader):
    """Reads lm-eval's task files; a function is the name that it is given by."""


_TaskLoader.add_constructor("!function", lambda loader, node: loader.construct_scalar(node))


@functools.cache
def _own_task(path: Path) -> dict[str, Any]:
    """One file of our own tasks, without what it includes."""
    return yaml.load(path.read_text(), Loader=_TaskLoader)


def own_tasks() -> dict[str, str | None]:
    """Our own tasks, each with the file of a prepared dataset that it reads.

    None stands for a task whose documents are made from the dataset's text.
    """
    tasks = [_own_task(path) for path in sorted(OWN_TASKS.glob("*.yaml"))]
    return {
        task["task"]: task.get("dataset_kwargs", {}).get("data_files", {}).get("test")
        for task in tasks
    }


def task_files(suite: str | Suite) -> list[Path]:
    """Files of our own tasks that a suite's scores depend on, in order; lm_eval is not imported.

    Args:
        suite: a suite, or its name or path; one of a kind without tasks has no such files.

    Raises:
        ValueError: if there is no such suite.
    """
    if isinstance(suite, str):
        entries = read_suite(suite).get("tasks") or []
        named = [entry for entry in entries if isinstance(entry, dict)]
        names = {entry.get("task") for entry in named if not entry.get("folder")}
    else:
        names = {entry.task for entry in suite.tasks if not entry.folder}
    queue = [path for path in OWN_TASKS.glob("*.yaml") if _own_task(path).get("task") in names]
    found: set[Path] = set()
    while queue:
        path = queue.pop()
        found.add(path)
        if path.suffix != ".py":
            queue += _named_files(_own_task(path))
    return sorted(found)


def _named_files(task: dict[str, Any]) -> list[Path]:
    """Files that a task file includes or takes functions from."""
    includes = task.get("include") or []
    names = [includes] if isinstance(includes, str) else list(includes)
    names += [f"{v.split('.')[0]}.py" for v in task.values() if isinstance(v, str)]
    return [OWN_TASKS / name for name in names if (OWN_TASKS / name).is_file()]


def load_suite(name: str, kind: type[Kind] = Suite) -> Kind:  # type: ignore[assignment]
    """Read a suite by name, or by the path of a YAML file.

    Args:
        name: name or path.
        kind: what the file must describe.

    Raises:
        ValueError: if there is no such suite, or a key or value in it is wrong.
    """
    content = read_suite(name)
    try:
        return kind(**{**content, "name": Path(name).stem})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ValueError(
            f"{Path(name).stem}.yaml: {key} is {first['input']!r}: {first['msg']}"
        ) from None


def suite_path(name: str) -> Path:
    """File of a suite, given its name or the path of a YAML file.

    Raises:
        ValueError: if there is no such suite.
    """
    path = Path(name) if name.endswith(".yaml") else FOLDER / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in FOLDER.glob("*.yaml")))
        raise ValueError(f"suite is {name!r}; it must be one of {known}, or the path of a YAML")
    return path


def read_suite(name: str) -> dict[str, Any]:
    """Settings of a suite as its file has them, unchecked.

    Raises:
        ValueError: if there is no such suite, or its file is no mapping.
    """
    path = suite_path(name)
    try:
        content = yaml.safe_load(path.read_text()) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"{path.name} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ValueError(f"{path.name} must be a mapping of settings by name, not {content!r:.60}")
    return content
