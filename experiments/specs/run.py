"""The spec of one run: frozen, typed, the same from the study's YAML to the record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, NonNegativeInt, SerializeAsAny, ValidationInfo, field_validator

from experiments import models, tasks
from experiments.digest import digest
from experiments.strict import Seed, Strict


class Model(Strict, extra="allow"):
    """A model file's name, a label for run ids, and the keys of that file's ``Config``."""

    name: str
    label: str

    @property
    def config(self) -> Any:
        """The sizes, as the ``Config`` of the model's file."""
        return models.get(self.name).Config.model_validate(self.model_extra)


class Transform(Strict):
    """Sparse replacement of layers: Sparse-IFT, at the FLOPs of the dense ones, or SLTrain."""

    family: Literal["wide", "parallel", "factorized", "doped", "sltrain"]
    sparsity: float = Field(gt=0, lt=1, description="sets the new sizes")
    budget: Literal["layer", "dense"] = Field(
        "layer", description="what meets the dense FLOPs: each layer, or the whole model"
    )

    def to_json(self) -> dict[str, Any]:
        """Arguments of `sparse_lib.ift.transform`; what is left at its default is left out."""
        return self.model_dump(mode="json", exclude_defaults=True)


class FirstPhase(Strict):
    """The finished run whose weights a second phase starts from."""

    run: str
    spec_hash: str
    densify: bool = Field(description="whether the first phase's masks are dropped")
    step: NonNegativeInt | None = Field(
        None,
        description="continue that run's whole state of this step, in place of its last weights",
        exclude_if=lambda value: value is None,
    )


class Treatment:
    """Names of what a method does to a model, by its ``sparsity`` and ``transform``."""

    if TYPE_CHECKING:
        sparsity: Any
        transform: Transform | None

    @property
    def algorithm(self) -> str:
        """The sparsity algorithm, ``dense`` where no weight is masked."""
        return "dense" if self.sparsity is None else self.sparsity["algorithm"]

    @property
    def family(self) -> str | None:
        """The Sparse-IFT family of the transformed model."""
        return None if self.transform is None else self.transform.family


class RunSpec(Treatment, Strict):
    """Everything that determines a run's result.

    A run outside of studies has no scale, method, final sparsity or suite.
    """

    id: str = Field(description="a label; nothing reads facts out of it")
    scale: str | None = None
    task: str
    model: Model
    data: SerializeAsAny[tasks.Data]
    recipe: SerializeAsAny[tasks.Recipe]
    method: str | None = None
    final_sparsity: float | None = Field(None, ge=0, lt=1)
    sparsity: Any = Field(None, description="what `sparse_lib.configure` takes; None is dense")
    seed: Seed
    suite: str | None = None
    transform: Transform | None = None
    starts_from: FirstPhase | None = None

    @field_validator("data", "recipe", mode="before")
    @classmethod
    def of_the_task(cls, value: Any, info: ValidationInfo) -> Any:
        """``data`` and ``recipe`` have the types that the run's task gives them."""
        if "task" not in info.data or not isinstance(value, dict):
            return value
        kind = {"data": "Data", "recipe": "Recipe"}[str(info.field_name)]
        return getattr(tasks.get(info.data["task"]), kind).model_validate(value)

    def to_json(self) -> dict[str, Any]:
        """The JSON form; unused keys are left out, so that a new one changes no older hash."""
        value = self.model_dump(mode="json")
        if self.transform is not None:
            value["transform"] = self.transform.to_json()
        for key in tasks.Recipe.PLANNED:  # last, after the task's own keys
            value["recipe"][key] = value["recipe"].pop(key)
        return {key: v for key, v in value.items() if v is not None or key == "sparsity"}

    @property
    def labels(self) -> dict[str, Any]:
        """Names and numbers that tell runs apart, as tables call them."""
        return {
            "model": self.model.label,
            "dataset": self.data.name,
            "method": self.method,
            "algorithm": self.algorithm,
            "family": self.family,
            "sparsity": self.final_sparsity,
            "seed": self.seed,
            "scale": self.scale,
            "recipe": self.recipe.name,
        }

    @property
    def hash(self) -> str:
        """Hash of what determines the trained weights, the evaluation suite left out."""
        return digest({key: value for key, value in self.to_json().items() if key != "suite"})

    def mask_setting(self, *path: str) -> Any:
        """A setting of the masks by its path, such as ``update``, ``freq``; None where it is not.

        Settings that differ between groups of weights have no such path.
        """
        value = self.sparsity
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def mask_config(self, transformed: dict[str, Any] | None = None) -> Any:
        """The argument of `sparse_lib.configure`, with the transformation's filter and levels.

        The method's own settings go first, so a schedule may replace the constant sparsity.

        Args:
            transformed: Filter and levels as `sparse_lib.ift.transform` returns them; None takes
                the transformation's nominal level.
        """
        if self.sparsity is None or self.transform is None:
            return self.sparsity
        return (transformed or {"sparsity": self.transform.sparsity}) | self.sparsity


@dataclass(frozen=True)
class Run:
    """A run that studies ask for, and its expected cost."""

    spec: RunSpec
    core_seconds: float = 0.0
    studies: tuple[str, ...] = field(default=(), compare=False)

    @property
    def id(self) -> str:
        """The spec's id."""
        return self.spec.id

    @property
    def scale(self) -> str:
        """The scale of the grid."""
        return self.spec.scale or ""

    @property
    def first(self) -> str | None:
        """Id of the run that this one starts from, if it is a second phase."""
        return None if self.spec.starts_from is None else self.spec.starts_from.run
