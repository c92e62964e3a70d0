"""One run: its model, data and optimizer, one step of it, and its whole state."""

from __future__ import annotations

import math
import shutil
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import torch

from experiments import machine, tasks
from experiments.errors import Diverged, refusals
from experiments.models import _transform
from experiments.specs.run import RunSpec
from experiments.store.paths import MASKS
from experiments.training import weights
from experiments.training.device import resolve
from experiments.training.state import generators, set_generators
from sparse_lib import device as skipping
from sparse_lib import ift
from sparse_lib.checkpoint import masks_of
from sparse_lib.configure import configure
from sparse_lib.core.group import Group

#: The code generator of `torch.compile`.
COMPILE_BACKEND = "inductor"


def say(line: str, log: Path | None) -> None:
    """Print a line and append it to the log.

    Neither a closed terminal nor a full disk may end a training.
    """
    if log is not None:
        try:
            with log.open("a") as stream:
                stream.write(line + "\n")
        except OSError as error:
            line += f"  (the log {log} cannot be written: {error.strerror})"
    with suppress(OSError):
        print(line, flush=True)


@dataclass
class Progress:
    """State of a training outside the model, the optimizer and the sparsity algorithm."""

    step: int = 0
    elapsed_s: float = 0.0
    #: Processor seconds of this process, all threads.
    cpu_s: float = 0.0
    #: Parts of both that validations took.
    validating_s: float = 0.0
    validating_cpu_s: float = 0.0
    loss_sum: Any = 0.0  # on a GPU a tensor, which is read when a row is written
    loss_count: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)
    #: Keys of the machines that it has been on, which an interruption may change.
    machines: list[str] = field(default_factory=list)


class Trainer:
    """One run from its spec to its files.

    Args:
        num_threads: threads of this process; part of what makes a run bit-reproducible.
        precision: of matrix products: ``fp32``, ``bf16`` or ``tf32``; None as the recipe says.
        compile: whether `torch.compile` runs the model; None as the recipe says.
        execution: how masked layers run: ``dense``, ``skip``, or ``auto`` for what is faster.
        first: the ``model`` folder of the run that the spec ``starts_from``, or a file of weights.
    """

    def __init__(
        self,
        spec: RunSpec,
        *,
        data_dir: Path,
        num_threads: int = 1,
        device: str = "cpu",
        precision: str | None = None,
        compile: bool | None = None,
        execution: str = "auto",
        first: Path | None = None,
        log: Path | None = None,
    ) -> None:
        self.log = log
        torch.set_num_threads(num_threads)
        torch.manual_seed(spec.seed)
        self.spec, self.device, self.num_threads = spec, resolve(device), num_threads
        self.precision = precision or spec.recipe.precision
        self.compile = spec.recipe.compile if compile is None else compile
        allow(self.precision)
        self.task = tasks.get(spec.task).Task(spec, data_dir)
        self.batches = tasks.Batches(self.task.batch, device=self.device)
        self.model, masks = self.task.build_model(), None
        self.transform: dict[str, Any] | None = None
        if spec.transform is not None:
            self.dense_config = self.model.config.to_dict()
            arguments = {**spec.transform.to_json(), **self.task.input_size}
            with refusals(f"the transform of {spec.id}"):
                self.model, masks, report = ift.transform(self.model, **arguments)
            self.transform = report.summary()
        self.flops = self.task.flops(self.model)
        self.model = self.model.to(self.device)
        config = spec.mask_config(masks)
        continues = spec.starts_from is not None and spec.starts_from.step is not None
        self.first_weights: str | None = None
        if first is not None and not continues:
            self.first_weights = weights.take_over(self.model, first, spec, self.task)
        self.sparsity: Group | None = None
        if spec.sparsity is not None:
            with refusals(f"the sparsity of {spec.id}"):
                self.sparsity = configure(config)
                assert self.sparsity is not None
                self.sparsity.apply(self.model)
        self.optimizer = self.task.optimizer(self.model)
        if self.sparsity is not None:
            with refusals(f"the sparsity of {spec.id}"):
                self.sparsity.apply(self.optimizer)
        self.progress = Progress()
        #: Seconds of another run's training that this one went on from.
        self.borrowed_s = 0.0
        level = spec.final_sparsity or 0.0
        half = self.precision == "bf16"
        can_skip = self.can_skip()
        self.execute(choose(execution, self.sparsity, level, half=half) if can_skip else "dense")
        if continues:
            assert first is not None
            state, self.first_weights = weights.kept_state(first, spec, self.task.data["hash"])
            self.restore(state)
            self.borrowed_s = self.progress.elapsed_s

    def can_skip(self) -> bool:
        """Whether masked layers can skip their masked work: on a CPU."""
        return self.sparsity is not None and self.device.type == "cpu"

    def execute(self, how: str, costs: tuple[float, ...] | None = None) -> None:
        """Run masked layers this way from now on; see `execution.skipping_runner`."""
        self.execution, self.runner = how, self.model
        self.skip_costs: tuple[float, ...] | None = None
        if how != "dense":
            self.runner, self.skip_costs = skipping_runner(self.model, how, costs)
        if self.compile:
            self.runner = torch.compile(self.runner, backend=COMPILE_BACKEND)

    # State

    def state(self) -> dict[str, Any]:
        """All that the rest of the run depends on, and what it says of the part behind it."""
        self.progress.loss_sum = float(self.progress.loss_sum)
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "sparsity": None if self.sparsity is None else self.sparsity.state_dict(),
            **generators(self.device),
            "execution": self.execution,
            "skip_costs": self.skip_costs,
            "progress": vars(self.progress),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Be where `state` was returned."""
        kept = state["execution"]
        self.execute(kept if self.can_skip() else "dense", state["skip_costs"])
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.sparsity is not None:
            self.sparsity.load_state_dict(state["sparsity"])
        set_generators(state, self.device)
        self.progress = Progress(**state["progress"])

    def machine(self) -> dict[str, Any]:
        """The machine that it runs on, with the keys of others before as ``earlier``."""
        facts = machine.facts(self.num_threads, device=str(self.device))
        earlier = [key for key in self.progress.machines if key != machine.key(facts)]
        return {**facts, "earlier": earlier} if earlier else facts

    # Steps

    def step(self) -> float | torch.Tensor:
        """One optimizer step; returns its loss in nats.

        A GPU's loss stays there, so that nothing waits for it.
        """
        rate = self.task.learning_rate(self.progress.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with autocast(self.device, self.precision):
            loss = self.task.loss(self.runner, self.batches.of(self.progress.step))
        loss.backward()
        clip_norm = getattr(self.spec.recipe, "clip_norm", None)
        if clip_norm:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.progress.step += 1
        return loss.item() if self.device.type == "cpu" else loss.detach()

    def measure(self) -> dict[str, Any]:
        """The library's metrics of masks and of the FLOPs so far; empty for a dense run."""
        return {} if self.sparsity is None else self.sparsity.metrics(self.flops)

    def validate(self, *, full: bool) -> dict[str, float]:
        """The task's scores in evaluation mode."""
        self.model.eval()
        with torch.no_grad(), autocast(self.device, self.precision):
            scores = self.task.validate(self.runner, full=full)
        self.model.train()
        return scores

    def check_loss(self, loss: float) -> None:
        """Raise `Diverged`, one sentence, for a loss that is not finite."""
        if not math.isfinite(loss):
            raise Diverged(
                f"the loss of {self.spec.id} is {loss} at step {self.progress.step}; "
                "lower recipe.learning_rate"
            )

    def say(self, text: str) -> None:
        """Print a line that begins with the run's id, and flush it; a closed pipe is no error."""
        say(f"{self.spec.id}  {text}", self.log)

    def export(self, folder: Path) -> None:
        """Write the model: dense weights, what they were transformed by, and their masks."""
        shutil.rmtree(folder, ignore_errors=True)
        self.task.export(self.model, folder)
        if self.spec.transform is not None:
            _transform.write(folder, self.dense_config, self.spec.transform.to_json())
        masks = {name: mask.cpu() for name, mask in masks_of(self.model).items()}
        if masks:
            from safetensors.torch import save_file

            save_file(masks, folder / MASKS)


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """The context of a forward pass; weights and optimizer states stay float32."""
    if precision == "bf16":
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()


def allow(precision: str) -> None:
    """Let this process use TensorFloat-32 for float32 where it is asked for, and nowhere else.

    By default torch uses it for convolutions, though not for matrix products.
    """
    asked = precision == "tf32"
    torch.set_float32_matmul_precision("high" if asked else "highest")
    torch.backends.cudnn.allow_tf32 = asked


def choose(execution: str, sparsity: Group | None, level: float, *, half: bool = False) -> str:
    """The execution of a run, given the requested one.

    Args:
        level: sparsity at its end, in [0, 1).
        half: whether it multiplies in bfloat16.

    Returns:
        ``execution``; ``dense`` for ``auto`` where no layer is worth skipping.
    """
    if execution != "auto" or sparsity is None:
        return execution
    for param in sparsity.sparse_params.values():
        rows = param.mask.shape[0]
        with refusals("execution is 'auto'"):
            columns = param.mask.numel() // rows
            sizes, is_linear = (rows, columns, max(param.sparsity, level)), param.mask.dim() == 2
            if skipping.worth_skipping(*sizes, half=half, multiplies_half=is_linear):
                return "auto"
    return "dense"


def skipping_runner(
    model: torch.nn.Module, execution: str, costs: tuple[float, ...] | None
) -> tuple[torch.nn.Module, tuple[float, ...]]:
    """A model whose masked layers skip: all of them, or with ``auto`` those that gain.

    Args:
        model: shares its weights with the result.
        costs: by which a layer gains, of the machine that chose; those of this one if None.
    """
    with refusals(f"execution is {execution!r}"):
        own = skipping.Costs(*costs) if costs else skipping.default_costs()
        crossover = 0.0 if execution == "skip" else None
        name = "skip" if execution == "auto" else execution
        backend = skipping.backend(name, crossover=crossover, costs=own)
        return skipping.compile(model, backend), astuple(own)
