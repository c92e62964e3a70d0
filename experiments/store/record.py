"""A record: the committed form of one finished run.

It is ``train.json`` and ``eval.json`` merged with a thinned learning curve.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, FiniteFloat, NonNegativeInt, ValidationError
from pydantic import field_validator as check

from experiments import machine
from experiments.errors import UserError
from experiments.specs.run import RunSpec
from experiments.specs.schema import SpecError
from experiments.store import paths
from experiments.store.io import read_json, read_jsonl, write_json
from experiments.strict import first_problem

MAX_CURVE_ROWS = 200
FINAL_SHARE = 0.1

Number = int | FiniteFloat
Row = dict[str, Any]


class Facts(BaseModel):
    """Base of a record's sections: frozen; facts without a name here are kept as they are."""

    model_config = ConfigDict(extra="allow", frozen=True)


class Data(Facts):
    """The prepared data of a run."""

    name: str
    hash: str


class Flops(Facts):
    """FLOPs of a training, and of the same steps if all weights were there."""

    executed: Number
    dense_equivalent: Number


class Score(Facts):
    """One score of an evaluation."""

    task: str
    metric: str
    value: Number | None = None
    stderr: Number | None = None
    split: str | None = None
    data_hash: str | None = None
    num_items: NonNegativeInt | None = None
    chance: Number | None = None
    num_fewshot: NonNegativeInt | None = None
    truncated_fraction: Number | None = None


class Machine(Facts):
    """Facts of the machine that trained, as `experiments.machine.facts` gathers them."""

    processor: str
    num_threads: NonNegativeInt


class Evaluation(Facts):
    """The content of ``eval.json``."""

    run: str | None = None
    scores: tuple[Score, ...] = ()
    wall_s: Number | None = None
    machine: dict[str, Any] | None = None


class Record(Facts):
    """One finished run."""

    run: str
    spec: RunSpec
    spec_hash: str
    code_hash: str
    command: str
    data: Data
    versions: dict[str, str]
    cpu: str
    #: None in records of versions that did not keep it; see `machine_key`.
    machine: Machine | None = None
    num_threads: NonNegativeInt
    wall_s: Number
    #: Seconds of ``wall_s`` in which another run trained the state that this one continues.
    borrowed_s: Number = 0
    num_parameters: int
    num_nonzero: int
    flops: Flops
    layers: tuple[Row, ...] = ()
    evaluation: Evaluation | None = None
    final_loss: Number | None = None
    curve: tuple[Row, ...] = ()

    @check("run")
    @classmethod
    def is_a_name(cls, run: str) -> str:
        """Files are named after the run."""
        return paths.name("run", run)

    @check("spec")
    @classmethod
    def has_one_algorithm(cls, spec: RunSpec) -> RunSpec:
        """Methods of studies have one algorithm, or none."""
        if spec.sparsity is not None:
            named = spec.sparsity.get("algorithm") if isinstance(spec.sparsity, dict) else None
            if not isinstance(named, str):
                raise UserError(f"sparsity is {spec.sparsity!r:.200}, which names no algorithm")
        return spec

    @property
    def machine_key(self) -> str:
        """Key of the machine of its timings; `experiments.machine` says what that means."""
        return machine.key(self.machine_facts)

    @property
    def machine_facts(self) -> dict[str, Any] | None:
        """The machine as it was recorded; None where it was not."""
        if self.machine is None:
            return None
        return self.machine.model_dump(mode="json", exclude_unset=True)

    def shared_flops(self) -> Flops:
        """FLOPs of the steps that another run trained, whose state this one continues.

        A first phase whose weights a run starts from is not among its steps. Between two logged
        steps FLOPs are interpolated linearly.
        """
        start = self.spec.starts_from
        if start is None or start.step is None:
            return Flops(executed=0, dense_equivalent=0)
        rows = self.rows("train")
        steps = [0, *(row["step"] for row in rows)]
        executed = np.interp(start.step, steps, [0, *(row["flops_executed"] for row in rows)])
        dense = self.flops.dense_equivalent * start.step / self.spec.recipe.steps
        return Flops(executed=float(executed), dense_equivalent=dense)

    def rows(self, kind: str) -> list[Row]:
        """Rows of the curve: ``train`` or ``validation``."""
        return [row for row in self.curve if row["kind"] == kind]


def read_record(path: Path) -> Record:
    """Read and check a record.

    Raises:
        UserError: If the file holds none; one sentence that names the file and the key.
        OSError: If there is no such file.
    """
    return checked(read_json(path), path)


def checked(value: Mapping[str, Any], place: Path | str) -> Record:
    """Check the JSON form of a record, which lies at a place that the `SpecError` names."""
    try:
        return Record.model_validate(value)
    except ValidationError as error:
        key, problem = first_problem(error)
        raise SpecError(f"{place} is no record: {key or 'it'}: {problem}") from None


def gather(folder: Path) -> None:
    """Write ``record.json`` of a run that was trained and scored in a folder.

    It is ``train.json`` plus ``evaluation``, ``final_loss`` (mean training loss over the last tenth
    of the logged steps, in nats) and ``curve`` (at most 200 rows).

    Raises:
        UserError: If the files are of different runs.
    """
    train, evaluation = (read_json(folder / name) for name in ("train.json", "eval.json"))
    if evaluation.get("run", train["run"]) != train["run"]:
        raise UserError(f"eval.json is of run {evaluation['run']}, train.json of {train['run']}")
    metrics = read_jsonl(folder / "metrics.jsonl")
    rows = [{key: _plain(value) for key, value in row.items()} for row in metrics]
    spec = train["spec"] | {"suite": evaluation["suite"]}  # a study's may have changed since
    measured = {"final_loss": final_loss(rows), "curve": thin_curve(rows)}
    merged = train | {"spec": spec, "evaluation": evaluation} | measured
    write_json(folder / "record.json", merged, sort_keys=True, allow_nan=False)


def _plain(value: Any) -> Any:
    """JSON has no NaN or infinity: a diverged loss is kept as null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def final_loss(rows: Iterable[Row]) -> float | None:
    """Mean training loss over the last tenth of the logged steps: one step's loss is noise."""
    losses = [row["loss"] for row in rows if row["kind"] == "train"]
    tail = losses[-max(1, round(FINAL_SHARE * len(losses))) :]
    return None if not tail or None in tail else float(np.mean(tail))


def _evenly(rows: Sequence[Row], count: int) -> list[Row]:
    """At most ``count`` rows, evenly spaced, first and last always among them."""
    if len(rows) <= count:
        return list(rows)
    kept = np.unique(np.linspace(0, len(rows) - 1, count).round().astype(int))
    return [rows[index] for index in kept]


def thin_curve(rows: Sequence[Row]) -> list[Row]:
    """Keep at most `MAX_CURVE_ROWS` rows of a learning curve.

    A quarter goes to validation rows, up to half to training rows that carry no churn, the rest to
    those that do (where only updates log it, they are sparse in time and would otherwise be lost).
    First and last rows of each kind stay.
    """
    if len(rows) <= MAX_CURVE_ROWS:
        return list(rows)
    quarter = MAX_CURVE_ROWS // 4
    validation = [row for row in rows if row["kind"] == "validation"]
    train = [row for row in rows if row["kind"] == "train"]
    moved = [row for row in train if row.get("churn") is not None]
    still = [row for row in train if row.get("churn") is None]
    kept = _evenly(validation, quarter)
    kept += _evenly(moved, MAX_CURVE_ROWS - len(kept) - min(len(still), 2 * quarter))
    kept += _evenly(still, MAX_CURVE_ROWS - len(kept))
    return sorted(kept, key=lambda row: (row["step"], row["kind"]))
