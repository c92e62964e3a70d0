"""Suites: which scores a model gets, and under which conditions. One YAML file each."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import AfterValidator, Field, NonNegativeInt, PositiveInt, ValidationError

from experiments import tasks
from experiments.digest import digest
from experiments.errors import UserError, not_one_of
from experiments.evaluation import metrics
from experiments.specs.code import code_hash, module_files
from experiments.strict import Several, Strict, first_problem, read_yaml

FOLDER = Path(__file__).parent / "suites"
#: lm-eval's files of our own tasks.
OWN_TASKS = Path(__file__).parent / "lm" / "tasks"
Splits = Several[Literal["validation", "test"]]


Metrics = Several[Annotated[str, AfterValidator(lambda name: metrics.path(name).stem)]]


class Perplexity(Strict):
    """Perplexity of the dataset's own held-out splits."""

    splits: Splits = Field(("validation", "test"), min_length=1)
    metrics: Metrics = Field(("loss", "perplexity", "bits_per_byte"), min_length=1)
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
    fallback: bool = Field(
        default=False,
        description="left out where another own task fits the dataset, and where it finds no row",
    )


class Common(Strict):
    """Settings of every suite: how to run the model, recorded with every score."""

    name: str
    batch_size: PositiveInt = 32
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    execution: Literal["auto", "dense"] = Field(
        default="auto", description="auto skips the work of zeros where that is faster"
    )

    @property
    def how(self) -> dict[str, Any]:
        """Settings of the model's execution, as scores record them."""
        return {"batch_size": self.batch_size, "dtype": self.dtype, "execution": self.execution}

    def facts(self, split: str, data_hash: str | None, limit: int | None) -> dict[str, Any]:
        """Fields of a split's scores beside their values, where no prompt is given."""
        shown = {"num_fewshot": 0, "limit": limit, **self.how, "truncated_fraction": 0.0}
        return shown | {"split": split, "data_hash": data_hash}

    @property
    def hash(self) -> str:
        """Digest of every setting."""
        return digest(self.model_dump(mode="json"))


class Suite(Common):
    """The scores of a language model."""

    kind: Literal["text"] = "text"
    bootstrap_iters: NonNegativeInt = Field(
        default=1000,
        description="resamples for the standard errors that have no closed form; 0 gives none",
    )
    perplexity: Perplexity | None = Perplexity()
    tasks: Several[TaskEntry] = ()


class ImageSuite(Common):
    """The scores of an image classifier."""

    kind: Literal["images"] = "images"
    splits: Splits = Field(("validation", "test"), min_length=1)
    metrics: Metrics = Field(("accuracy", "loss"), min_length=1)


KINDS: dict[str, type[Suite | ImageSuite]] = {"text": Suite, "images": ImageSuite}
Kind = TypeVar("Kind", bound=Common)


class _TaskLoader(yaml.SafeLoader):
    """Reads lm-eval's task files; a function is the name that it is given by."""


_TaskLoader.add_constructor("!function", lambda loader, node: str(node.value))


@functools.cache
def _own_task(path: Path) -> dict[str, Any]:
    """One file of our own tasks, without what it includes."""
    return yaml.load(path.read_text(encoding="utf-8"), Loader=_TaskLoader)


def applicable(suite: Suite, data_dir: Path | None) -> list[TaskEntry]:
    """Entries of a suite that fit a prepared dataset."""
    if data_dir is None:
        return [*suite.tasks]
    ours = map(_own_task, OWN_TASKS.glob("*.yaml"))
    files = {task["task"]: data_dir / task["dataset_kwargs"]["file"] for task in ours}
    found = [
        entry
        for entry in suite.tasks
        if entry.folder or entry.task not in files or files[entry.task].exists()
    ]
    fits = any(entry.folder is None and not entry.fallback for entry in found)
    return [entry for entry in found if not (fits and entry.fallback)]


def suite_files(suite: Suite | ImageSuite) -> list[Path]:
    """Files beside its own that a suite's scores depend on: metrics and our own tasks, in order.

    lm_eval is not imported.
    """
    if isinstance(suite, ImageSuite):
        return [metrics.path(name) for name in sorted(set(suite.metrics))]
    chosen = () if suite.perplexity is None else suite.perplexity.metrics
    names = {entry.task for entry in suite.tasks if not entry.folder}
    queue = [path for path in OWN_TASKS.glob("*.yaml") if _own_task(path).get("task") in names]
    found = {metrics.path(name) for name in chosen}
    while queue:
        path = queue.pop()
        found.add(path)
        if path.suffix != ".py":
            queue += _named_files(_own_task(path))
    return sorted(found)


def suite_code_hash(suite: Suite | ImageSuite, *modules: Path) -> str:
    """Hash of modules, of `suite_files`, and of the code that they import."""
    files = suite_files(suite)
    texts = {path.name: path.read_text("utf-8") for path in files if path.suffix != ".py"}
    return digest([code_hash(*modules, *(f for f in files if f.suffix == ".py")), texts])


@functools.cache
def evaluation_code_hash(task: str, suite: str) -> str:
    """Hash of a task's evaluation code, one suite file and our own task definitions."""
    code = suite_code_hash(load_suite(suite), *module_files(tasks.get(task).EVALUATION))
    return digest([code, suite_path(suite).read_text("utf-8")])


def _named_files(task: dict[str, Any]) -> list[Path]:
    """Files that a task file includes or takes functions from."""
    includes = task.get("include") or []
    names = [includes] if isinstance(includes, str) else list(includes)
    values = [*task.values(), *task.get("dataset_kwargs", {}).values()]
    names += [f"{v.split('.')[0]}.py" for v in values if isinstance(v, str)]
    return [OWN_TASKS / name for name in names if (OWN_TASKS / name).is_file()]


def load_suite(name: str, kind: type[Kind] | None = None) -> Kind:
    """Read a suite by name, or by the path of a YAML file.

    Args:
        kind: what it must be a suite of; None takes what the file says.
    """
    path = suite_path(name)
    return _read(path, path.read_bytes(), kind)  # type: ignore[return-value]


@functools.cache
def _read(path: Path, text: bytes, kind: type[Suite | ImageSuite] | None) -> Suite | ImageSuite:
    """The suite of a file's content."""
    try:
        content = read_yaml(text.decode()) or {}
    except yaml.YAMLError as error:
        raise UserError(f"{path.name} is not valid YAML: {' '.join(str(error).split())}") from None
    except (UserError, UnicodeDecodeError) as error:
        raise UserError(f"{path.name}: {error}") from None
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise UserError(f"{path.name} must be a mapping of settings by name, not {content!r:.60}")
    found = content.get("kind", "text")
    if found not in [*KINDS]:
        raise UserError(f"{path.name}: kind is {found!r}; it must be {' or '.join(KINDS)}")
    if kind not in (None, KINDS[found]):
        raise UserError(f"{path.name}: kind is {found!r}, but the model is of another kind")
    try:
        return KINDS[found](**{**content, "name": path.stem})
    except ValidationError as error:
        key, problem = first_problem(error)
        value = f"{error.errors()[0]['input']!r:.200}"
        raise UserError(f"{path.name}: {key} is {value}: {problem}") from None


def suite_path(name: str) -> Path:
    """File of a suite, given its name or the path of a YAML file."""
    path = Path(name) if name.endswith(".yaml") else FOLDER / f"{name}.yaml"
    if not path.is_file():
        known = not_one_of("suite", name, (file.stem for file in FOLDER.glob("*.yaml")))
        raise UserError(f"{known}; or the path of a YAML")
    return path
