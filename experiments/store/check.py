"""What a record must have, checked before anything is made from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, FiniteFloat, NonNegativeInt, ValidationError

from experiments.specs.schema import SpecError
from experiments.store import paths
from experiments.store.io import read_json

Number = FiniteFloat | None


class Loose(BaseModel):
    """Keys that are not named here may hold anything."""

    model_config = ConfigDict(extra="allow", strict=True)


class Model(Loose):
    label: str


class Data(Loose):
    name: str


class Recipe(Loose):
    name: str | None = None


class Transform(Loose):
    family: str


class Sparsity(Loose):
    algorithm: str


class Spec(Loose):
    model: Model
    data: Data
    recipe: Recipe
    method: str
    final_sparsity: FiniteFloat
    sparsity: Sparsity | None
    transform: Transform = Transform(family="")
    seed: NonNegativeInt
    scale: str


class Row(Loose):
    """One row of a learning curve."""

    kind: Literal["train", "validation"]
    step: NonNegativeInt
    loss: Number = None
    perplexity: Number = None
    accuracy: Number = None
    learning_rate: Number = None
    sparsity: Number = None
    drop_fraction: Number = None
    churn: Number = None
    itop: Number = None
    tokens: Number = None
    images: Number = None
    flops_executed: Number = None
    flops_dense: Number = None
    elapsed_s: Number = None


class Layer(Loose):
    name: str
    sparsity: Number = None
    target: Number = None
    churn: Number = None
    itop: Number = None


class Score(Loose):
    task: str
    metric: str
    value: Number
    stderr: Number = None
    split: str | None = None
    num_items: NonNegativeInt | None = None
    chance: Number = None
    num_fewshot: NonNegativeInt | None = None
    truncated_fraction: Number = None
    unknown_fraction: Number = None
    higher_is_better: bool | None = None


class Evaluation(Loose):
    scores: list[Score] = []
    wall_s: Number = None


class RecordData(Loose):
    name: str
    hash: str
    floor_nats_per_token: Number = None


class Flops(Loose):
    executed: Number = None
    dense_equivalent: Number = None


class Record(Loose):
    """The keys of a record that tables, figures and pages read."""

    run: str
    spec: Spec
    data: RecordData
    curve: list[Row]
    layers: list[Layer] | None = None
    evaluation: Evaluation | None = None
    flops: Flops | None = None
    final_loss: Number = None
    wall_s: Number = None
    num_parameters: Number = None
    num_nonzero: Number = None
    num_threads: NonNegativeInt | None = None
    spec_hash: str
    code_hash: str
    cpu: str | None = None
    command: str | None = None
    versions: dict[str, str] | None = None


def read_record(path: Path) -> dict[str, Any]:
    """A record that is whole.

    Raises:
        SpecError: If a key is missing or has another type, or the run's id is no name; one
            sentence that names the file.
        OSError: If there is no such file.
    """
    try:
        record = read_json(path)
        paths.name("run", Record.model_validate(record).run)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "the file"
        problem = first["msg"][0].lower() + first["msg"][1:]
        raise SpecError(f"{path}: {key}: {problem}") from None
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path}: {error or 'nested too deeply'}") from None
    return record
