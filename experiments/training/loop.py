"""One training loop for all tasks: exact resume, one lock per run."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import torch

from experiments import data, machine, tasks
from experiments.errors import CannotWrite, Diverged, UserError, reason, refusals, variable
from experiments.memory import keep_memory
from experiments.models import _transform
from experiments.specs.run import RunSpec
from experiments.store.io import read_cache, write_whole
from experiments.store.machine import key as machine_key
from experiments.training import exports, ranking, starts, summary
from experiments.training.batches import Batches
from experiments.training.console import say
from experiments.training.device import allow, autocast
from experiments.training.interruption import Interrupted, locked, stop_signals
from experiments.training.ranks import Ranks, ranks
from experiments.training.state import Saved, generators, set_generators
from sparse_lib import device as skipping
from sparse_lib.checkpoint import load_checkpoint, masks_of
from sparse_lib.configure import configure
from sparse_lib.core.algorithm import SparsityAlgorithm
from sparse_lib.masks.init import SCORED

#: Seconds between two saved states; the variable is for steps of unusual length, and for tests.
SAVE_EVERY_S = variable("SPARSE_SAVE_EVERY_S", 15.0)
#: A state that takes long to save is saved less often: saving takes at most this share of the time.
SAVE_SHARE = 0.05
STATUS_EVERY_S = 5.0
NUM_LOG_ROWS = 120
#: What `torch.compile` generates code with.
COMPILE_BACKEND = "inductor"


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Say which folder has no room, where safetensors says only what failed."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        raise CannotWrite(f"{folder} cannot be written: {reason(error)}") from error


@dataclass
class Progress:
    """What is not in the model, the optimizer or the sparsity algorithm."""

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
        spec: the run's spec.
        data_dir: prepared data.
        state_dir: what the run goes on from after an interruption.
        code_hash: of the code that trains; a state of other code is not resumed.
        num_threads: threads of this process; part of what makes a run bit-reproducible.
        device: what `experiments.training.device.resolve` takes.
        precision: of matrix products: ``fp32``, ``bf16`` or ``tf32``; None as the recipe says.
        compile: whether `torch.compile` runs the model; None as the recipe says.
        micro_batches: parts of a step's share of samples, one forward each; None as the recipe
            says.
        group: the processes that train the run together; None is this one alone.
        execution: how masked layers run: ``dense``, ``skip``, or ``auto`` for what is faster.
        first: the ``model`` folder of the run that the spec ``starts_from``, or a file of weights.
        log: a file that gets the status lines too.
    """

    def __init__(
        self,
        spec: RunSpec,
        *,
        data_dir: Path,
        state_dir: Path,
        code_hash: str = "",
        num_threads: int = 1,
        device: str = "cpu",
        precision: str | None = None,
        compile: bool | None = None,
        micro_batches: int | None = None,
        group: Ranks | None = None,
        execution: str = "auto",
        first: Path | None = None,
        log: Path | None = None,
    ) -> None:
        self.log = log
        self.watch: Any = None
        torch.set_num_threads(num_threads)
        torch.manual_seed(spec.seed)
        self.ranks = group or Ranks(device=device)
        self.spec, self.device, self.num_threads = spec, self.ranks.device, num_threads
        self.precision = precision or spec.recipe.precision
        self.compile = spec.recipe.compile if compile is None else compile
        allow(self.precision)
        self.task = tasks.get(spec.task).Task(spec, data_dir)
        self.batches = Batches(
            self.task.batch,
            size=spec.recipe.batch_size,
            device=self.device,
            rank=self.ranks.rank,
            num_ranks=self.ranks.size,
            num_parts=micro_batches or spec.recipe.micro_batches,
        )
        self.transform: dict[str, Any] | None = None
        self.model, masks = self.build_model()
        self.flops = self.task.flops(self.model)
        self.model = self.model.to(self.device)
        continues = spec.starts_from is not None and spec.starts_from.step is not None
        self.first_weights: str | None = None
        if first is not None and not continues:
            self.first_weights = starts.take_over(self.model, first, spec, self.task)
        self.model = self.ranks.shard(self.model)
        self.sparsity: SparsityAlgorithm | None = None
        if spec.sparsity is not None:
            with refusals(f"the sparsity of {spec.id}"):
                config = spec.mask_config(masks)
                if isinstance(config, dict) and config.get("init_method") in SCORED:
                    self.check_whole(config["init_method"])
                    ranking.rank_weights(self.model, config, self.task, self.device)
                self.sparsity = configure(config)
                self.sparsity.apply(self.model)
        self.optimizer = self.task.optimizer(self.model)
        if self.sparsity is not None:
            with refusals(f"the sparsity of {spec.id}"):
                self.sparsity.apply(self.optimizer)
        self.progress = Progress()
        #: Seconds of another run's training that this one went on from.
        self.borrowed_s = 0.0
        origin = {"code": code_hash, "data": self.task.data["hash"]}
        self.kept = state_dir / exports.STATES
        self.execute(self.choose(execution))
        if continues:
            assert first is not None
            state, self.first_weights = starts.kept_state(first, spec, origin["data"])
            self.restore(state)
            self.borrowed_s = self.progress.elapsed_s
        self.saved = Saved(state_dir, {**origin, "first_weights": self.first_weights}, self.say)

    # Start

    def build_model(self) -> tuple[torch.nn.Module, dict[str, Any] | None]:
        """The model with fresh weights, and what its transformation says of masks."""
        model, masks, transform = self.task.build_model(), None, self.spec.transform
        if transform is not None:
            self.dense_config = model.config.to_dict()
            dense_step = self.task.flops(model).training_step()
            arguments = {**transform.to_json(), **self.task.input_size}
            with refusals(f"the transform of {self.spec.id}"):
                model, masks, totals = _transform.apply(model, arguments)
            self.transform = {**totals, "dense_step": dense_step}
        return model, masks

    def check_whole(self, method: str) -> None:
        """Raise `UserError`, one sentence, where this process has a part of the weights alone."""
        if self.ranks.sharded:
            raise UserError(
                f"sparsity.init_method is {method!r}, which needs the whole model "
                "in one process; take the strategy ddp"
            )

    def can_skip(self) -> bool:
        """Whether masked layers can skip their masked work: one process, on a CPU."""
        on_cpu = self.device.type == "cpu"
        return self.sparsity is not None and self.ranks.size == 1 and on_cpu

    def choose(self, execution: str) -> str:
        """``dense`` where the run has no masked layer that is worth skipping."""
        if not self.can_skip():
            return "dense"
        assert self.sparsity is not None
        if execution != "auto":
            return execution
        for param in self.sparsity.sparse_params.values():
            rows = param.mask.shape[0]
            level = max(param.sparsity, self.spec.final_sparsity or 0.0)
            with refusals("execution is 'auto'"):
                if skipping.worth_skipping(rows, param.mask.numel() // rows, level):
                    return "auto"
        return "dense"

    def execute(self, execution: str, costs: tuple[float, ...] | None = None) -> None:
        """Run masked layers this way from now on: all dense, all skipping, or each as it pays.

        Args:
            execution: as returned by `choose`.
            costs: by which it pays, of the machine that chose; those of this one if None.
        """
        self.execution, self.runner = execution, self.ranks.parallel(self.model)
        self.skip_costs: tuple[float, ...] | None = None
        if execution != "dense":
            crossover = 0.0 if execution == "skip" else None
            with refusals(f"execution is {execution!r}"):
                own = skipping.Costs(*costs) if costs else skipping.default_costs()
                self.skip_costs = astuple(own)
                name = "skip" if execution == "auto" else execution
                backend = skipping.backend(name, crossover=crossover, costs=own)
                self.runner = skipping.compile(self.model, backend)
        if self.compile:
            self.runner = torch.compile(self.runner, backend=COMPILE_BACKEND)  # type: ignore

    # State

    def save(self, *, later: bool = False) -> None:
        """Save what `resume` goes on from; raises `OSError` where that is impossible.

        Args:
            later: Whether the file may be written while the training goes on.
        """
        state = self.state()
        if self.ranks.first:
            self.saved.save(self.progress.step, state, later=later)

    def state(self) -> dict[str, Any]:
        """All that the rest of the run depends on, and what it says of the part behind it.

        Of several ranks all call it, and the first one's is complete.
        """
        whole = self.ranks.whole(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "sparsity": None if self.sparsity is None else self.sparsity.state_dict(),
            }
        )
        self.progress.loss_sum = float(self.progress.loss_sum)
        own, *others = self.ranks.gather(generators(self.device))
        return {
            **whole,
            **own,
            **({"other_ranks": others} if others else {}),
            "execution": self.execution,
            "skip_costs": self.skip_costs,
            "progress": vars(self.progress),
        }

    def keep(self) -> None:
        """Write the state of this step for other runs to continue; `export` hands it out."""
        state = {"origin": self.saved.origin, **self.state()}
        if not self.ranks.first:
            return
        self.kept.mkdir(parents=True, exist_ok=True)
        write_whole(
            self.kept / f"{self.progress.step}.pt", lambda stream: torch.save(state, stream)
        )

    def try_to_save(self, *, later: bool = False) -> None:
        """Save, or print why that failed; the training continues without a new state."""
        try:
            self.save(later=later)
        except OSError as error:
            self.say(f"{error}; the training goes on")

    def resume(self) -> bool:
        """Load the last state that is whole and began with the same code, data and weights."""
        path = self.ranks.from_first(self.saved.newest() if self.ranks.first else None)
        if path is None:
            return False
        state = self.saved.read(path)
        if state is None:
            return False
        self.restore(state)
        return True

    def restore(self, state: dict[str, Any]) -> None:
        """Be where `state` was returned."""
        kept = state["execution"]
        self.execute(kept if self.can_skip() else "dense", state.get("skip_costs"))
        self.ranks.load(self.model, state["model"])
        self.ranks.load_optimizer(self.optimizer, state["optimizer"])
        if self.sparsity is not None:
            self.sparsity.load_state_dict(state["sparsity"])
        drawn = [state, *state.get("other_ranks", [])]
        # With another number of ranks, those that had no part keep the run's seed.
        if self.ranks.rank < len(drawn):
            set_generators(drawn[self.ranks.rank], self.device)
        self.progress = Progress(**state["progress"])

    def machine(self) -> dict[str, Any]:
        """The machine that it runs on, with the keys of others before as ``earlier``."""
        facts = machine.facts(self.num_threads, device=str(self.device))
        earlier = [key for key in self.progress.machines if key != machine_key(facts)]
        return {**facts, "earlier": earlier} if earlier else facts

    # Steps

    def step(self) -> float | torch.Tensor:
        """One optimizer step; returns the loss of this process's samples in nats.

        A GPU's loss stays there, so that nothing waits for it.
        """
        rate = self.task.learning_rate(self.progress.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        parts = self.batches.parts(self.progress.step)
        losses = []
        for number, part in enumerate(parts, 1):
            with self.ranks.micro_batch(last=number == len(parts)):
                with autocast(self.device, self.precision):
                    loss = self.task.loss(self.runner, part)
                loss = loss / len(parts) if len(parts) > 1 else loss
                loss.backward()
            losses.append(loss.detach())
        clip_norm = getattr(self.spec.recipe, "clip_norm", None)
        if clip_norm:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.progress.step += 1
        if self.device.type == "cpu":
            return sum(part.item() for part in losses)
        return torch.stack(losses).sum()

    def measure(self) -> dict[str, Any]:
        """What the library says of the masks and of the FLOPs so far; empty for a dense run."""
        return {} if self.sparsity is None else self.sparsity.metrics(self.flops)

    def validate(self, *, full: bool) -> dict[str, float]:
        """The task's scores in evaluation mode; rank 0's, unless all ranks are needed for them."""
        if not (self.ranks.first or self.ranks.sharded):
            return {}
        self.model.eval()
        with torch.no_grad(), autocast(self.device, self.precision):
            # A rank alone cannot call the wrapper that averages gradients.
            runner = self.runner if self.ranks.size == 1 else self.model
            scores = self.task.validate(runner, full=full)
        self.ranks.settle(self.model)
        self.model.train()
        return scores

    def run(self, received: list[int]) -> None:
        """Train to the last step; saves and raises `Interrupted` after a signal."""
        recipe, progress = self.spec.recipe, self.progress
        here = machine_key(machine.facts(self.num_threads, device=str(self.device)))
        progress.machines = [*(key for key in progress.machines if key != here), here]
        steps = recipe.steps
        log_every = max(1, steps // NUM_LOG_ROWS)
        validate_every = max(1, steps // recipe.validations)
        before, saved, told = progress.elapsed_s, time.monotonic(), time.monotonic()
        start, pause = time.monotonic(), SAVE_EVERY_S
        cpu_before, cpu_start = progress.cpu_s, time.process_time()
        first = progress.step
        self.model.train()
        while progress.step < steps:
            loss = self.step()
            progress.elapsed_s = before + time.monotonic() - start
            progress.cpu_s = cpu_before + time.process_time() - cpu_start
            if isinstance(loss, float) and self.ranks.size == 1:
                self.check_loss(loss)
            progress.loss_sum += loss
            progress.loss_count += 1
            if self.watch is not None:
                self.watch.step(progress.step, loss)
            if progress.step % log_every == 0 or progress.step == steps:
                mean = self.ranks.mean(float(progress.loss_sum) / progress.loss_count)
                self.check_loss(mean)
                self.record(summary.train_row(self, mean))
                progress.loss_sum, progress.loss_count = 0.0, 0
            # Full validation is done once, after the last step.
            left = steps - progress.step
            if left == 0 or (progress.step % validate_every == 0 and left >= validate_every):
                began, cpu_began = time.monotonic(), time.process_time()
                scores = self.validate(full=left == 0)
                self.record(summary.validation_row(self, scores))
                progress.validating_s += time.monotonic() - began
                progress.validating_cpu_s += time.process_time() - cpu_began
            if recipe.stable is not None and progress.step in recipe.stable.keep:
                self.keep()
            now = time.monotonic()
            # Rank 0's clock decides for all; a signal to any rank stops all.
            number, save, tell = self.ranks.any(
                received[0] if received else 0,
                self.ranks.first and now - saved >= pause,
                self.ranks.first and now - told >= STATUS_EVERY_S,
            )
            if number:
                self.save()
                self.say(f"stopped by signal {number} at step {progress.step}; state saved")
                raise Interrupted(128 + number)
            if save:
                self.try_to_save(later=True)
                saved = time.monotonic()
                pause = max(SAVE_EVERY_S, (saved - now) / SAVE_SHARE)
            if tell and not (self.watch is not None and self.watch.has_bar):
                self.status(float(loss), first, now - start)
                told = now
        self.try_to_save()

    def record(self, row: dict[str, Any]) -> None:
        """Add a row to the curve."""
        self.progress.rows.append(row)
        if self.watch is not None and (problem := self.watch.row(row)):
            self.say(problem)

    def check_loss(self, loss: float) -> None:
        """Raise `Diverged`, one sentence, for a loss that is not finite."""
        if not math.isfinite(loss):
            raise Diverged(
                f"the loss of {self.spec.id} is {loss} at step {self.progress.step}; "
                "lower recipe.learning_rate"
            )

    def status(self, loss: float, first: int, seconds: float) -> None:
        """Progress in one line: step, loss, speed and time left."""
        done, steps = self.progress.step, self.spec.recipe.steps
        speed = (done - first) / max(seconds, 1e-9)
        level = self.measure().get("sparsity", 0.0)
        self.say(
            f"step {done}/{steps}  loss {loss:.3f}  "
            f"{speed * self.task.units_per_step:,.0f} {self.task.unit}/s  "
            f"ETA {(steps - done) / max(speed, 1e-9):.0f} s  sparsity {level:.2f}"
        )

    def say(self, text: str) -> None:
        """Print a line that begins with the run's id, and flush it; a closed pipe is no error."""
        if self.ranks.first:
            say(f"{self.spec.id}  {text}", self.log)

    def export(self, folder: Path) -> None:
        """Write the model: dense weights, what they were transformed by, and their masks."""
        model = self.model
        if self.ranks.sharded:
            state = self.ranks.whole(model.state_dict())
            if self.ranks.first:
                model, _ = self.build_model()
                load_checkpoint(model, state)
        if not self.ranks.first:
            return
        shutil.rmtree(folder, ignore_errors=True)
        self.task.export(model, folder)
        if self.spec.transform is not None:
            _transform.write(folder, self.dense_config, self.spec.transform.to_json())
        masks = {name: mask.cpu() for name, mask in masks_of(model).items()}
        if masks:
            from safetensors.torch import save_file

            save_file(masks, folder / exports.MASKS)
        if self.kept.is_dir():
            shutil.copytree(self.kept, folder / exports.STATES)


def train(
    spec: RunSpec,
    *,
    code_hash: str,
    command: str,
    data_dir: Path,
    out: Path,
    state_dir: Path,
    num_threads: int = 1,
    device: str = "cpu",
    precision: str | None = None,
    compile: bool | None = None,
    micro_batches: int | None = None,
    strategy: str | None = None,
    execution: str = "auto",
    first: Path | None = None,
    log: Path | None = None,
    keep_states: bool = False,
    watch: Any = None,
) -> None:
    """Train one run into ``out``: ``metrics.jsonl``, ``model/`` and, last, ``train.json``.

    A second trainer of the same run waits for the first one's lock, and then finds its result. The
    processes that torchrun starts train it together. ``keep_states`` leaves the states to the
    caller, who still works on the result: killed meanwhile, the run goes on from its last one.
    ``watch`` is an `experiments.training.watch.Watch` that is shown rows and steps, or None.

    Raises:
        Interrupted: after SIGINT or SIGTERM to any of the processes, with the state saved.
        Diverged: when the loss is not finite.
        UserError: when the prepared data are not as they were prepared, or there is no such
            device.
        OSError: when a file cannot be written.
    """
    if strategy is None:
        strategy = spec.recipe.launch.strategy if spec.recipe.launch else "ddp"
    keep_memory()
    with stop_signals() as received, ranks(strategy, device) as group, ExitStack() as held:
        if group.first:
            done = not locked(spec.id, state_dir, received, log, held) and finished(out, spec)
            if not done:
                data.verify(data_dir)
        if group.from_first(done if group.first else None):
            return
        trainer = Trainer(
            spec,
            data_dir=data_dir,
            state_dir=state_dir,
            code_hash=code_hash,
            num_threads=num_threads,
            precision=precision,
            compile=compile,
            micro_batches=micro_batches,
            group=group,
            execution=execution,
            first=first,
            log=log,
        )
        held.callback(trainer.batches.close)
        if trainer.resume():
            trainer.say(f"resumes at step {trainer.progress.step}")
        if watch is not None and group.first:
            trainer.watch = watch
            held.callback(watch.close)
            watch.begin(spec.id, spec.to_json(), trainer.progress.step, spec.recipe.steps)
        trainer.run(received)
        with writing(out):
            summary.write(trainer, out, code_hash=code_hash, command=command)
        if not group.first:
            return
        if keep_states:
            trainer.saved.finish()
        else:
            trainer.saved.remove()
        final = trainer.progress.rows[-1]
        trainer.say(
            f"done: {trainer.progress.step} steps in {trainer.progress.elapsed_s:.0f} s, "
            f"validation loss {final['loss']:.4f}"
        )


def finished(out: Path, spec: RunSpec) -> bool:
    """Whether a run with this spec has written all of its files."""
    return read_cache(out / "train.json").get("spec_hash") == spec.hash
