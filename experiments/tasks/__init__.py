"""Training tasks, one file each.

A task's file is imported while Snakemake parses, so it imports torch inside functions only. It
holds

``Data`` and ``Recipe``
    The sections ``data`` and ``recipe`` of a study's grids: subclasses of the ones here.
``Task``
    What the loop in `experiments.training.loop` asks for: a subclass of the one here.
``prepare(data, *, out, offline)``
    Writes ``meta.json`` (with a ``hash``) and what belongs to it into ``out``.
``EVALUATION``
    Module with ``evaluate(model_dir, data_dir, suite, *, out, mirror, cache)``, which writes
    ``eval.json``.

A study's grid names its task by ``task``; without it, the model's file does, by ``TASK``.
"""

from __future__ import annotations

import hashlib
import math
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, cast

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from experiments import data as datasets
from experiments.errors import UserError, added
from experiments.strict import Several, Strict

if TYPE_CHECKING:
    import numpy as np
    import torch

    from experiments.specs.run import RunSpec
    from sparse_lib.flops.model import ModelFlops


class Data(Strict):
    """A registered dataset and how a task cuts it into samples."""

    name: str

    #: What the dataset must hold: ``text`` or ``images``; None allows both.
    KIND: ClassVar[str | None] = None

    @field_validator("name")
    @classmethod
    def is_registered(cls, name: str) -> str:
        """There is a dataset of that name and kind."""
        datasets.get(name, cls.KIND)
        return name

    @property
    def label(self) -> str:
        """Folder name under ``resources/data``; what is prepared alike shares a label."""
        return self.name


class Stable(Strict):
    """Linear warm-up, a constant rate, and a linear decay to the minimum at the end.

    The schedule knows nothing of the run's length before it decays, so runs of other lengths go on
    from states of one long run (a grid's ``continues``) and end as runs by themselves, to the bit.
    """

    warmup_steps: NonNegativeInt = Field(description="optimizer steps")
    decay: float = Field(ge=0, lt=1, description="share of the steps; 0 never decays")
    keep: Several[PositiveInt] = Field(
        (),
        description="steps whose whole state is kept for other runs to continue",
        exclude_if=lambda value: not value,
    )


#: How the matrix products of a training are computed.
Precision = Literal["fp32", "bf16", "tf32"]


class Recipe(Strict, ABC):
    """Optimisation of one run, as far as tasks share it: linear warm-up, then a cosine."""

    batch_size: PositiveInt = Field(description="samples per optimizer step at batch_scale 1")
    learning_rate: PositiveFloat
    min_learning_rate: NonNegativeFloat = 0.0
    warmup: float = Field(0.1, ge=0, lt=1, description="share of the steps")
    weight_decay: NonNegativeFloat = 0.1
    validations: PositiveInt = Field(4, description="validation passes, evenly spaced")
    stable: Stable | None = Field(
        None,
        description="warm-up, constant rate and decay in place of warm-up and cosine",
        exclude_if=lambda value: value is None,
    )
    precision: Precision = Field(
        "fp32", description="of matrix products", exclude_if=lambda value: value == "fp32"
    )
    compile: bool = Field(
        False, description="whether torch.compile runs it", exclude_if=lambda value: not value
    )

    @model_validator(mode="after")
    def in_order(self) -> Self:
        """The minimum rate is at most the peak, and what is kept lies within the run."""
        if self.min_learning_rate > self.learning_rate:
            raise UserError(
                f"min_learning_rate is {self.min_learning_rate}, but must be at most "
                f"learning_rate, {self.learning_rate}"
            )
        if self.stable is None or not self.steps:
            return self
        if late := [step for step in self.stable.keep if step > self.steps]:
            raise UserError(f"stable.keep is {late[0]}, but the run has {self.steps} steps")
        if (warmup := self.stable.warmup_steps) > self.decay_start:
            raise UserError(
                f"stable.warmup_steps is {warmup}, but the rate decays after {self.decay_start} of "
                f"{self.steps} steps"
            )
        return self

    name: str = Field("", description="the study's variant of the recipe; set by the plan")
    steps: NonNegativeInt = Field(0, description="optimizer steps of the run; set by the plan")

    #: The key that says how much a run trains.
    BUDGET: ClassVar[str]
    #: Keys that no file may set.
    PLANNED: ClassVar[tuple[str, ...]] = ("name", "steps")

    @property
    def decay_start(self) -> int:
        """Optimizer steps before the rate of ``stable`` decays; all of them without one."""
        share = 0.0 if self.stable is None else self.stable.decay
        return self.steps - math.ceil(share * self.steps)

    @abstractmethod
    def num_steps(self, data: Any, batch_size: int) -> int:
        """Optimizer steps of a run whose variant of the recipe has this batch size.

        Raises:
            ValueError: if the recipe ends before the first step.
        """


class Task(ABC):
    """The task of one run. Everything is a function of the spec and the step.

    Batches must not depend on what ran before, so that a resumed run sees what an uninterrupted
    one sees.

    Attributes:
        unit: what training counts: ``tokens``, ``images``.
        units_per_step: units of one optimizer step.
        data: facts for the record: ``name``, ``hash`` and what else is known of the data.
        input_size: ``sequence_length`` or ``image_size``, for counting FLOPs.
    """

    unit: ClassVar[str]
    recipe: Recipe
    units_per_step: int
    data: dict[str, Any]
    input_size: dict[str, int]

    def __init__(self, spec: RunSpec, data_dir: Path) -> None:
        self.spec, self.recipe = spec, spec.recipe
        self.batch_size = spec.recipe.batch_size

    @abstractmethod
    def build_model(self) -> torch.nn.Module:
        """The dense model with fresh weights from torch's global generator."""

    def flops(self, model: torch.nn.Module) -> ModelFlops:
        """FLOPs of one optimizer step's batch."""
        from sparse_lib.flops.model import count

        return count(model, batch_size=self.batch_size, **self.input_size)

    @abstractmethod
    def batch(self, step: int) -> Any:
        """Samples of optimizer step ``step`` (from 0): a tensor or a tuple of tensors."""

    @abstractmethod
    def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        """Loss of a batch in nats, a scalar."""

    @abstractmethod
    def validate(self, model: torch.nn.Module, *, full: bool) -> dict[str, float]:
        """``loss`` (nats) and the task's scores on validation data, in evaluation mode.

        The mode is left as it was. ``full`` is true after the last step and takes the whole
        split; on the way a fixed part of it is enough.
        """

    @abstractmethod
    def export(self, model: torch.nn.Module, folder: Path) -> None:
        """Write what the task's evaluation loads, ``model.safetensors`` without masks included."""

    def check_start(self, folder: Path) -> None:  # noqa: B027 (a task may have nothing to check)
        """Raise ``ValueError`` if an exported model of another run reads other data than this one.

        Weights of the right shapes may still mean something else, such as other tokens.
        """

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """The optimizer that the recipe names, by default AdamW."""
        import torch

        recipe: Any = self.recipe  # each task's has fields of its own
        matrices = [p for p in model.parameters() if p.dim() > 1]
        vectors = [p for p in model.parameters() if p.dim() <= 1]  # norms and biases do not decay
        decays = ((matrices, recipe.weight_decay), (vectors, 0.0))
        groups = [{"params": own, "weight_decay": decay} for own, decay in decays if own]
        rate = recipe.learning_rate
        if getattr(recipe, "optimizer", "adamw") == "sgd":
            nesterov = getattr(recipe, "nesterov", False)
            return torch.optim.SGD(groups, lr=rate, momentum=recipe.momentum, nesterov=nesterov)
        return torch.optim.AdamW(groups, lr=rate, betas=recipe.betas, eps=recipe.eps, fused=True)

    def learning_rate(self, step: int) -> float:
        """Rate of optimizer step ``step`` (from 0)."""
        if self.recipe.stable is not None:
            return warmup_stable_decay(step, self.recipe)
        return warmup_cosine(step, self.recipe)


def over(batch: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    """Apply a function to a batch, a tensor or a tuple of them."""
    return tuple(map(function, batch)) if isinstance(batch, tuple) else function(batch)


class Batches:
    """The samples that a run trains on, step by step.

    Args:
        make: ``make(step)`` is the batch, samples first.

    Attributes:
        ahead: Whether a thread prepares the next step's batch.
    """

    def __init__(self, make: Callable[[int], Any], *, device: torch.device) -> None:
        self.make, self.device, self.ahead = make, device, device.type != "cpu"
        self._thread: ThreadPoolExecutor | None = None
        self._next: tuple[int, Future[Any]] | None = None

    def prepared(self, step: int) -> Any:
        """The samples of a step, in pinned memory if a GPU is to read them."""
        batch = self.make(step)
        is_read_by_gpu = self.device.type == "cuda"
        return over(batch, lambda part: part.pin_memory()) if is_read_by_gpu else batch

    def of(self, step: int) -> Any:
        """The batch of a step, on the device."""
        if not self.ahead:
            batch = self.prepared(step)
        else:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
            known = self._next
            future = (
                known[1]
                if known is not None and known[0] == step
                else self._thread.submit(self.prepared, step)
            )
            batch = future.result()
            self._next = step + 1, self._thread.submit(self.prepared, step + 1)
        return over(batch, lambda part: part.to(self.device, non_blocking=True))

    def close(self) -> None:
        """Stop preparing."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
            self._thread = self._next = None


def save_pretrained(model: torch.nn.Module, folder: Path) -> None:
    """Write a model of transformers without its masks."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    buffers = {name for name, _ in model.named_buffers() if name.endswith("_mask")}
    weights = {k: v for k, v in model.state_dict().items() if k not in buffers}
    model.save_pretrained(folder, state_dict=weights)  # type: ignore[operator]


def warmup_cosine(step: int, recipe: Recipe) -> float:
    """Linear warm-up over a share of the steps, then a cosine to the minimum."""
    steps, warmup = recipe.steps, math.ceil(recipe.warmup * recipe.steps)
    if step < warmup:
        return recipe.learning_rate * (step + 1) / warmup
    share = (step - warmup) / max(1, steps - warmup)
    low, high = recipe.min_learning_rate, recipe.learning_rate
    return low + 0.5 * (high - low) * (1 + math.cos(math.pi * share))


def warmup_stable_decay(step: int, recipe: Recipe) -> float:
    """The rate that `Stable` describes (Hu et al. 2024, MiniCPM, section 4, decaying linearly)."""
    assert recipe.stable is not None
    low, high, start = recipe.min_learning_rate, recipe.learning_rate, recipe.decay_start
    if step < min(recipe.stable.warmup_steps, start):
        return high * (step + 1) / recipe.stable.warmup_steps
    if step < start:
        return high
    return low + (high - low) * (recipe.steps - step) / (recipe.steps - start + 1)


class EpochOrder:
    """Samples in an order that is drawn for each epoch, by position in the whole run."""

    def __init__(self, num_samples: int, *, seed: int) -> None:
        self.num_samples, self.seed = num_samples, seed
        self._epoch, self._order = -1, cast("np.ndarray", None)

    def __getitem__(self, index: int) -> int:
        epoch, position = divmod(index, self.num_samples)
        if epoch != self._epoch:
            import numpy as np

            key = hashlib.sha256(f"order:{self.seed}:{epoch}".encode()).digest()
            rng = np.random.default_rng(int.from_bytes(key[:8], "big"))
            self._epoch, self._order = epoch, rng.permutation(self.num_samples)
        return int(self._order[position])


def ensure(task: str, data: Data, folder: Path) -> Path:
    """The folder, which is prepared offline where it holds no data yet."""
    if not (folder / "meta.json").is_file():
        get(task).prepare(data, out=folder, offline=True)
    return folder


def names() -> list[str]:
    """Names of the tasks on disk."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def units() -> list[str]:
    """Units that the sound tasks on disk count, each once."""
    found: dict[str, None] = {}
    for name in names():
        with suppress(UserError):
            found[get(name).Task.unit] = None
    return list(found)


def get(name: str) -> ModuleType:
    """The module of the task ``name`` (``lm``, ...); raises `UserError` where it is broken."""
    return added(f"{__name__}.{name}", "Data", "Recipe", "Task", "prepare", "EVALUATION")
