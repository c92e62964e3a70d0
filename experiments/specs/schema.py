"""The sections of a study file, their keys and the allowed values."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PositiveFloat,
    ValidationInfo,
    field_validator,
    model_validator,
)

from experiments import models, tasks
from experiments.errors import UserError, not_one_of
from experiments.specs.code import ROOT, parse
from experiments.specs.run import Model as RunModel
from experiments.specs.run import Run, Transform, Treatment
from experiments.strict import Seed, Strict

Scale = Literal["smoke", "quick", "small", "gpu", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
Choice = TypeVar("Choice", bound=str)


class SpecError(UserError):
    """A study file or an option is wrong; the message is one sentence that names the key."""


def check_choice(key: str, value: Any, allowed: Iterable[Choice], found_in: str = "") -> Choice:
    """The value, if it is allowed; else raises `SpecError` with the sentence of `not_one_of`."""
    allowed = list(allowed)
    if value not in allowed:
        raise SpecError(not_one_of(key, value, allowed, found_in))
    return allowed[allowed.index(value)]


#: The form of names, and of the ids made of them: one path component, no option, not hidden.
NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]*"


def checked_name(text: str) -> str:
    """A name that may be part of an id, a path and a command, if it is one."""
    if not re.fullmatch(NAME, text) or len(text) > 64 or "__" in text:
        raise UserError(
            f"{text!r} is no name: up to 64 letters, digits, '.', '_' and '-', the first no dot or "
            "dash, without a double underscore"
        )
    return text


Name = Annotated[str, AfterValidator(checked_name)]


def module_names(folder: Path) -> list[str]:
    """Modules of a folder in which each file is found by its name, without importing them."""
    return sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_"))


@functools.cache
def _classes(path: Path) -> list[str]:
    """Classes that a file defines."""
    return [node.name for node in parse(path).body if isinstance(node, ast.ClassDef)]


class Start(Strict):
    """The method whose final weights a second phase starts from: same seed, same model."""

    method: Name
    densify: bool = Field(True, description="whether the first phase's masks are dropped")


class Method(Treatment, Strict):
    """One row of a study: how sparse, and by which recipe variant."""

    recipe: Name
    final_sparsity: float = Field(0.0, ge=0, lt=1)
    sparsity: dict[str, Any] | None = None
    transform: Transform | None = None
    starts_from: Start | None = None
    label: str | None = Field(None, pattern=r"^[^$\n]+$", description="name in figures and tables")
    retuned: bool = Field(False, description="settings chosen after the study had run")

    @field_validator("sparsity")
    @classmethod
    def known_algorithm(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        """The algorithm is a file of ``sparse_lib/algorithms``; `check` reads its settings."""
        if value is not None:
            name, folder = value.get("algorithm"), ROOT / "sparse_lib" / "algorithms"
            check_choice("sparsity.algorithm", name, module_names(folder))
            classes = _classes(folder / f"{name}.py")
            if name not in {own.lower() for own in classes}:
                raise UserError(
                    f"sparsity.algorithm is {name!r}, but sparse_lib/algorithms/{name}.py defines "
                    f"{', '.join(classes) or 'no class'}; a file has its class's name in lower case"
                )
        return value


#: A factor of a recipe's number.
Factor = Annotated[float, Field(gt=0, le=10_000)]


class Variant(Strict):
    """A recipe variant: how it differs from the grid's recipe.

    When the batch is scaled, the steps adapt and the tokens stay equal.
    """

    batch_scale: Factor = 1.0
    learning_rate_scale: Factor = 1.0
    budget_scale: Factor = Field(1.0, description="of the tokens, or of the epochs")


class Model(RunModel):
    """The model of a file; its label is part of run ids."""

    label: Name


#: What workloads of the same task, data and recipe were read as; each of their runs asks.
_TYPED: dict[tuple[str, str, str], tuple[tasks.Data, tasks.Recipe]] = {}


class Workload(Strict):
    """One model on one dataset by one recipe."""

    model: Model
    data: dict[str, Any] = Field(description="``Data`` of the task")
    recipe: dict[str, Any] = Field(description="``Recipe`` of the task")
    task: str = Field(
        "", validate_default=True, description="what is trained; the model's own if it is not given"
    )

    @field_validator("recipe")
    @classmethod
    def unplanned(cls, value: dict[str, Any]) -> dict[str, Any]:
        """Refuse keys that the expansion of the study sets."""
        for key in tasks.Recipe.PLANNED:
            if key in value:
                raise UserError(f"unknown key recipe.{key}: the plan sets it")
        return value

    @field_validator("task")
    @classmethod
    def of_the_model(cls, value: str, info: ValidationInfo) -> str:
        """The task that is named, else the one that the model is for."""
        model = info.data.get("model")
        if value or model is None or model.name not in models.names():
            return value
        return models.task(model.name)

    @property
    def typed(self) -> tuple[tasks.Data, tasks.Recipe]:
        """``data`` and ``recipe`` as the task reads them."""
        key = self.task, repr(self.data), repr(self.recipe)
        if key not in _TYPED:
            task = tasks.get(self.task)
            read = task.Data.model_validate(self.data), task.Recipe.model_validate(self.recipe)
            _TYPED[key] = read
        return _TYPED[key]


def checked_seeds(seeds: Any) -> int | list[int]:
    """The number of seeds of a method, or the seeds, if it has any."""
    numbers = seeds if isinstance(seeds, list) else range(seeds) if type(seeds) is int else []
    if not 0 < len(numbers) <= 1000 or not all(type(n) is int and 0 <= n < 2**63 for n in numbers):
        raise UserError(f"{seeds!r} is no number of seeds from 1 to 1000, and no list of seeds")
    return seeds


Seeds = Annotated[int | list[int], BeforeValidator(checked_seeds)]


class Grid(Workload):
    """A workload, and the number of seeds of each method on it."""

    suite: Name
    label: Name | None = Field(None, description="name of this grid for others to start from")
    pretrained: str | None = Field(None, description="label of the grid that phase two starts from")
    continues: str | None = Field(
        None,
        description="label of the grid whose runs, of the same methods and seeds at a constant "
        "rate, these go on from where their rate begins to decay",
    )
    variant: str | list[str] | None = Field(
        None, description="recipe variant in place of the methods' own, or several"
    )
    learning_rate_scale: dict[str, Factor] = Field(
        {}, description="method -> factor of the recipe's learning rate, where it is tuned"
    )
    methods: dict[str, Seeds] = Field(
        description="method -> number of seeds, counted from 0, or the seeds themselves"
    )
    core_seconds: PositiveFloat = Field(description="expected cost of one run, start-up included")

    @property
    def variants(self) -> list[Any]:
        """The recipe variants; None stands for the methods' own."""
        return self.variant if isinstance(self.variant, list) else [self.variant]

    def seeds(self, method: str) -> list[int]:
        """The seeds of a method; none where the grid does not have it."""
        seeds = self.methods.get(method, [])
        return seeds if isinstance(seeds, list) else list(range(seeds))


class Single(Workload):
    """One run by itself, outside of studies; `load_single` reads its YAML."""

    sparsity: Any = Field(None, description="whatever `sparse_lib.configure` takes")
    transform: Transform | None = None
    seed: Seed = 0

    @model_validator(mode="after")
    def joinable(self) -> Single:
        """``sparsity`` must be a mapping beside ``transform``, which adds keys to it."""
        if self.transform is not None and not isinstance(self.sparsity, dict | None):
            raise UserError("sparsity must be a mapping beside transform")
        return self


class Computation(Strict):
    """A result that needs no training: a file of ``experiments/computations``."""

    name: str
    core_seconds: PositiveFloat | dict[Scale, PositiveFloat] = Field(
        5.0, description="expected cost, start-up included; one number or one per scale"
    )

    def cost(self, scale: str) -> float:
        """Expected core-seconds at a scale; nothing where the mapping does not name it."""
        if isinstance(self.core_seconds, dict):
            return self.core_seconds.get(scale, 0.0)  # type: ignore[call-overload]
        return self.core_seconds


class Answer(Strict):
    """A study's answer at a scale, and the words of its results under which it is true."""

    text: str = Field(description="at most 60 words; ``{name}`` is the result of that name")
    when: dict[Name, str] = Field({}, description="result -> its word")

    @model_validator(mode="after")
    def is_short(self) -> Answer:
        """At most 60 words, which name the results of ``when``."""
        if len(self.text.split()) > 60:
            raise UserError(f"it has {len(self.text.split())} words, but at most 60 are allowed")
        try:
            self.text.format(**dict.fromkeys(name.replace("-", "_") for name in self.when))
        except (LookupError, ValueError) as error:
            raise UserError(f"text has a wrong {{name}}: {error}; it may be of when") from None
        return self


def _at_each_level(key: Any, section: dict[Any, Any]) -> dict[Any, Any]:
    """The methods that a section with ``levels`` stands for."""
    checked_name(str(key))
    levels = section["levels"]
    if not isinstance(levels, dict) or not levels:
        raise UserError(f"{key}.levels is {levels!r}, but must map names to sparsities")
    if "final_sparsity" in section:
        raise UserError(f"{key}.final_sparsity and {key}.levels exclude each other")
    shared = {name: part for name, part in section.items() if name != "levels"}
    return {
        name: {**_with_level(shared, level), "final_sparsity": level}
        for name, level in levels.items()
    }


def _with_level(value: Any, level: Any) -> Any:
    """A section in which the word ``level`` is replaced by a sparsity."""
    if isinstance(value, dict):
        return {key: _with_level(item, level) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_level(item, level) for item in value]
    return level if value == "level" else value


class Study(Strict):
    """One file of ``experiments/studies``."""

    name: Name
    title: str
    source: str
    description: str
    tables: list[str]
    figures: list[str]
    trials: bool = Field(
        False,
        description="runs that choose settings: evidence for no claim. Of settings that tie within "
        "seed noise the default is chosen",
    )
    trials_for: list[Name] = Field(
        [],
        description="studies of evidence whose settings these trials choose",
        exclude_if=lambda value: not value,
    )
    answer: dict[Scale, Answer] = Field({}, description="in words, by scale")
    computations: list[Computation] = []
    recipes: dict[Name, Variant] = {}
    shown: list[Name] = Field(
        [],
        description="recipes that tables and figures show beside each method's own",
        exclude_if=lambda value: not value,
    )
    methods: dict[Name, Method] = {}
    scales: dict[Scale, list[Grid]] = {}

    @field_validator("computations", mode="before")
    @classmethod
    def name_alone(cls, value: Any) -> Any:
        """A computation may be given by its name alone."""
        names = value if isinstance(value, list) else []
        return [{"name": item} if isinstance(item, str) else item for item in names] or value

    @field_validator("methods", mode="before")
    @classmethod
    def each_level(cls, value: Any) -> Any:
        """A section with ``levels`` (name -> sparsity) stands for a method at each of them.

        ``level`` in its ``sparsity`` and ``transform`` is replaced by the sparsity.
        """
        methods: dict[Any, Any] = {}
        for key, section in value.items() if isinstance(value, dict) else ():
            made = {key: section}
            if isinstance(section, dict) and "levels" in section:
                made = _at_each_level(key, section)
            for twice in made.keys() & methods.keys():
                raise UserError(f"{twice!r} is defined twice, once by the levels of a method")
            methods |= made
        return methods or value

    def shows(self, scale: str) -> bool:
        """Whether the study has anything at this scale."""
        return bool(self.scales.get(scale) or self.computations)  # type: ignore[call-overload]


class PlannedStudy(Study):
    """A study at one scale with its runs, in the order of its file: what pages are made from."""

    scale: Scale
    runs: tuple[Run, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The JSON form; it changes with the study's file and with what its runs are."""
        value = self.model_dump(mode="json", exclude={"scales", "runs"})
        return value | {"runs": [{"spec": run.spec.to_json()} for run in self.runs]}


#: Every key that a study file may hold.
KEYS = sorted(
    {
        key
        for section in (Study, Method, Grid, Model, Variant, Transform, Start, Answer, Computation)
        for key in section.model_fields
    }
    | {"levels", "like"}
)
