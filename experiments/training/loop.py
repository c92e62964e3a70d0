"""One training loop for all tasks: exact resume, one lock per run, small records.

Everything that a run needs to go on lies in ``state/<run>-<spec hash>/``. It is written now and
then and on SIGINT or SIGTERM, read at the start, and removed on success.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import platform
import shutil
import signal
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from filelock import FileLock, Timeout

from experiments import tasks
from experiments.memory import keep_memory
from sparse_lib.checkpoint import densify, load_checkpoint, masks_of, read_safetensors
from sparse_lib.configure import configure
from sparse_lib.core.algorithm import SparsityAlgorithm

#: Seconds between two saved states; the variable is for steps of unusual length, and for tests.
SAVE_EVERY_S = float(os.environ.get("SPARSE_SAVE_EVERY_S", 15.0))
STATUS_EVERY_S = 5.0
NUM_LOG_ROWS = 120
#: Beside the exported weights: the masks that they were trained with.
MASKS = "masks.safetensors"


def _as_buffers(masks: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"{name}_mask": mask for name, mask in masks.items()}


def _transforms() -> ModuleType:
    """Imported by name, so that runs without a transformation do not depend on its code."""
    return importlib.import_module("experiments.models._transform")


def _device() -> ModuleType:
    """Imported by name: how a layer is executed changes no result but by rounding."""
    return importlib.import_module("sparse_lib.device")


class Interrupted(SystemExit):
    """Raised between two steps after a signal; the state has been saved."""


@dataclass
class Progress:
    """What is not in the model, the optimizer or the sparsity algorithm."""

    step: int = 0
    elapsed_s: float = 0.0
    flops_executed: float = 0.0
    loss_sum: float = 0.0
    loss_count: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)


def processor() -> str:
    """Model name of the processor, without anything that names the host."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Versions that can change a result."""
    names = ("torch", "transformers", "numpy")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def write_json(path: Path, value: Any) -> None:
    """Write a file so that a reader sees all of it or none."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(value, indent=1) + "\n")
    os.replace(part, path)


def say(line: str, log: Path | None) -> None:
    """Print a line and append it to the log; a closed terminal must not end a training."""
    if log is not None:
        with log.open("a") as stream:
            stream.write(line + "\n")
    with suppress(OSError):
        print(line, flush=True)


@contextmanager
def stop_signals():
    """Collect SIGINT and SIGTERM in a list instead of dying in the middle of a step."""
    received: list[int] = []
    old = {
        number: signal.signal(number, lambda number, _frame: received.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield received
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


class Trainer:
    """One run from its spec to its files.

    Args:
        spec: the run's spec.
        spec_hash: names the state folder, so a changed spec never resumes an older state.
        data_dir: prepared data.
        state_root: folder of all states.
        num_threads: threads of this process; part of what makes a run bit-reproducible.
        device: a torch device.
        execution: how masked layers run: ``dense``, ``skip``, or ``auto`` for what is faster.
        first: where the weights come from if the spec ``starts_from`` others; see `start_from`.
        log: a file that gets the status lines too.
    """

    def __init__(
        self,
        spec: dict[str, Any],
        *,
        spec_hash: str,
        data_dir: Path,
        state_root: Path,
        num_threads: int = 1,
        device: str = "cpu",
        execution: str = "auto",
        first: Path | None = None,
        log: Path | None = None,
    ) -> None:
        self.log = log
        torch.set_num_threads(num_threads)
        torch.manual_seed(spec["seed"])
        self.spec, self.recipe, self.device = spec, spec["recipe"], torch.device(device)
        self.num_threads = num_threads
        self.state_dir = state_root / f"{spec['id']}-{spec_hash[:12]}"
        self.task = tasks.get(spec["task"]).Task(spec, data_dir)
        model, options = self.task.build_model(), spec["sparsity"]
        self.transform: dict[str, Any] | None = None
        if "transform" in spec:
            self.dense_config = model.config.to_dict()
            dense_step = self.task.flops(model).training_step()
            arguments = {**spec["transform"], **self.task.input_size}
            model, options, totals = _transforms().apply(model, arguments, options)
            self.transform = {**totals, "dense_step": dense_step}
        self.model = model.to(self.device)
        self.flops = self.task.flops(self.model)
        self.first_weights = None if first is None else self.start_from(first)
        self.optimizer = self.task.optimizer(self.model)
        self.sparsity: SparsityAlgorithm | None = None
        if options is not None:
            self.sparsity = configure(options)
            self.sparsity.apply(self.model)
            self.sparsity.apply(self.optimizer)
        self.progress = Progress()
        self._masks_version: int | None = None
        self._levels: dict[str, float] = {}
        self._dense_step_flops = self.flops.training_step()
        self.execute(self.choose(execution))

    # Start

    def start_from(self, path: Path) -> str:
        """Take over weights and masks; returns the hash of the file.

        Args:
            path: the ``model`` folder of a finished run, or a safetensors file of any layout of
                `sparse_lib.checkpoint`.

        Raises:
            ValueError: if they do not fit the model.
        """
        start = self.spec["starts_from"]
        if path.is_dir():
            self.task.check_start(path)
        try:
            if path.is_dir():
                self.load_export(path)
                path /= "model.safetensors"
            else:
                weights, masks = read_safetensors(path)
                load_checkpoint(self.model, {**weights, **_as_buffers(masks)})
        except (OSError, RuntimeError, ValueError) as error:
            raise ValueError(
                f"the weights of {start['run']} do not fit the model of {self.spec['id']}: "
                f"{' '.join(str(error).split())}"
            ) from None
        if start["densify"]:
            densify(self.model)
        return hashlib.sha256(path.read_bytes()).hexdigest()

    def load_export(self, folder: Path) -> None:
        """Load what `export` wrote, masks included."""
        from safetensors.torch import load_file, load_model

        load_model(self.model, folder / "model.safetensors")
        if (folder / MASKS).is_file():
            masks = _as_buffers(load_file(folder / MASKS))
            load_checkpoint(self.model, {**self.model.state_dict(), **masks})

    def choose(self, execution: str) -> str:
        """``dense`` where the run has no masked layer that is worth skipping."""
        if self.sparsity is None or self.device.type != "cpu":
            return "dense"
        if execution != "auto":
            return execution
        levels, final = self.levels() or {}, self.spec.get("final_sparsity", 0.0)
        for name, param in self.sparsity.sparse_params.items():
            rows = param.mask.shape[0]
            level = max(levels[name], final)
            if _device().worth_skipping(rows, param.mask.numel() // rows, level):
                return "auto"
        return "dense"

    def execute(self, execution: str) -> None:
        """Run masked layers this way from now on: all dense, all skipping, or each as it pays."""
        self.execution, self.runner = execution, self.model
        if execution != "dense":
            crossover = 0.0 if execution == "skip" else None
            backend = _device().backend("skip", crossover=crossover)
            self.runner = _device().compile(self.model, backend)

    # State

    def save(self) -> None:
        """Replace the saved state atomically."""
        self.state_dir.mkdir(parents=True, exist_ok=True)
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "sparsity": None if self.sparsity is None else self.sparsity.state_dict(),
            "rng": torch.get_rng_state(),
            "execution": self.execution,
            "first_weights": self.first_weights,
            "progress": vars(self.progress),
        }
        part = self.state_dir / "state.pt.part"
        torch.save(state, part)
        os.replace(part, self.state_dir / "state.pt")

    def resume(self) -> bool:
        """Load the saved state if there is one, and if it began with the same weights."""
        path = self.state_dir / "state.pt"
        if not path.is_file():
            return False
        state = torch.load(path, map_location=self.device, weights_only=True)
        if state["first_weights"] != self.first_weights:
            self.say("the first phase was trained again, so this one begins anew")
            return False
        self.execute(state["execution"])
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.sparsity is not None:
            self.sparsity.load_state_dict(state["sparsity"])
        torch.set_rng_state(state["rng"].cpu())
        self.progress = Progress(**state["progress"])
        return True

    # Steps

    def step(self) -> float:
        """One optimizer step; returns its loss in nats."""
        rate = self.task.learning_rate(self.progress.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        batch = self.to_device(self.task.batch(self.progress.step))
        dense_gradient = self.sparsity is not None and self.sparsity.needs_dense_gradient
        loss = self.task.loss(self.runner, batch)
        loss.backward()
        if self.recipe.get("clip_norm"):
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe["clip_norm"])
        self.progress.flops_executed += self.flops.training_step(
            self.levels(), dense_weight_grad=dense_gradient
        )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.progress.step += 1
        return loss.item()

    def to_device(self, batch: Any) -> Any:
        """A batch, a tensor or a tuple of them, on the run's device."""
        if isinstance(batch, tuple):
            return tuple(part.to(self.device) for part in batch)
        return batch.to(self.device)

    def levels(self) -> dict[str, float] | None:
        """Actual sparsity by weight name; counted again only after masks have changed."""
        if self.sparsity is None:
            return None
        masks = {name: p.mask for name, p in self.sparsity.sparse_params.items()}
        version = sum(mask._version for mask in masks.values())
        if version != self._masks_version:
            self._masks_version = version
            self._levels = {
                name: 1.0 - mask.count_nonzero().item() / mask.numel()
                for name, mask in masks.items()
            }
        return self._levels

    def log_row(self) -> dict[str, Any]:
        """A training row since the last one."""
        progress = self.progress
        summary = {} if self.sparsity is None else self.sparsity.metrics()
        units = progress.step * self.task.units_per_step
        row = {
            "kind": "train",
            "step": progress.step,
            self.task.unit: units,
            "loss": progress.loss_sum / max(1, progress.loss_count),
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            "sparsity": summary.get("sparsity", 0.0),
            "drop_fraction": summary.get("drop_fraction"),
            "churn": summary.get("churn"),
            "itop": summary.get("itop"),
            "flops_executed": progress.flops_executed,
            "flops_dense": progress.step * self._dense_step_flops,
            "elapsed_s": round(progress.elapsed_s, 3),
            f"{self.task.unit}_per_s": round(units / max(progress.elapsed_s, 1e-9), 1),
        }
        progress.loss_sum, progress.loss_count = 0.0, 0
        return row

    def validate(self, *, full: bool) -> dict[str, float]:
        """The task's scores in evaluation mode."""
        self.model.eval()
        with torch.no_grad():
            scores = self.task.validate(self.runner, full=full)
        self.model.train()
        return scores

    def validation_row(self) -> dict[str, Any]:
        """A validation row; the last one covers the whole split."""
        step = self.progress.step
        scores = self.validate(full=step == self.recipe["steps"])
        units = step * self.task.units_per_step
        return {"kind": "validation", "step": step, self.task.unit: units, **scores}

    def run(self, received: list[int]) -> None:
        """Train to the last step; saves and raises `Interrupted` after a signal."""
        steps, progress = self.recipe["steps"], self.progress
        log_every = max(1, steps // NUM_LOG_ROWS)
        validate_every = max(1, steps // self.recipe["validations"])
        before, saved, told = progress.elapsed_s, time.monotonic(), time.monotonic()
        start = time.monotonic()
        first = progress.step
        self.model.train()
        while progress.step < steps:
            loss = self.step()
            progress.elapsed_s = before + time.monotonic() - start
            if not math.isfinite(loss):
                raise FloatingPointError(
                    f"the loss of {self.spec['id']} is {loss} at step {progress.step}; "
                    "lower recipe.learning_rate"
                )
            progress.loss_sum += loss
            progress.loss_count += 1
            if progress.step % log_every == 0 or progress.step == steps:
                progress.rows.append(self.log_row())
            # The last validation waits for the last step, so there is exactly one full pass.
            left = steps - progress.step
            if left == 0 or (progress.step % validate_every == 0 and left >= validate_every):
                progress.rows.append(self.validation_row())
            now = time.monotonic()
            if received:
                self.save()
                self.say(f"stopped by signal {received[0]} at step {progress.step}; state saved")
                raise Interrupted(128 + received[0])
            if now - saved >= SAVE_EVERY_S:
                self.save()
                saved = now
            if now - told >= STATUS_EVERY_S:
                self.status(loss, first, now - start)
                told = now
        self.save()

    def status(self, loss: float, first: int, seconds: float) -> None:
        """One line for a person who waits."""
        done, steps = self.progress.step, self.recipe["steps"]
        speed = (done - first) / max(seconds, 1e-9)
        levels = self.levels() or {}
        level = sum(levels.values()) / len(levels) if levels else 0.0
        self.say(
            f"step {done}/{steps}  loss {loss:.3f}  "
            f"{speed * self.task.units_per_step:,.0f} {self.task.unit}/s  "
            f"ETA {(steps - done) / max(speed, 1e-9):.0f} s  sparsity {level:.2f}"
        )

    def say(self, text: str) -> None:
        """Print under the run's id, at once even into a pipe that nobody reads any more."""
        say(f"{self.spec['id']}  {text}", self.log)

    def export(self, folder: Path) -> None:
        """Write the model: dense weights, what they were transformed by, and their masks."""
        shutil.rmtree(folder, ignore_errors=True)
        self.task.export(self.model, folder)
        if self.transform is not None:
            _transforms().write(folder, self.dense_config, self.spec["transform"])
        masks = {name: mask.cpu() for name, mask in masks_of(self.model).items()}
        if masks:
            from safetensors.torch import save_file

            save_file(masks, folder / MASKS)

    def summary(self) -> dict[str, Any]:
        """The run's facts, without paths or host names."""
        progress, unit = self.progress, self.task.unit
        last = {row["kind"]: row for row in progress.rows}
        final_train = last["train"]
        scores = {k: v for k, v in last["validation"].items() if k not in ("kind", "step", unit)}
        tensors = {} if self.sparsity is None else self.sparsity.metrics()["tensors"]
        num_masked = 0
        if self.sparsity is not None:
            num_masked = sum(
                p.mask.numel() - int(p.mask.count_nonzero())
                for p in self.sparsity.sparse_params.values()
            )
        num_parameters = sum(p.numel() for p in self.model.parameters())
        origin: dict[str, Any] = {}
        if self.transform is not None:
            origin["transform"] = self.transform
        if self.first_weights is not None:
            origin["first_weights"] = self.first_weights
        return {
            **origin,
            "data": self.task.data,
            "versions": versions(),
            "cpu": processor(),
            "device": str(self.device),
            "execution": self.execution,
            "num_threads": self.num_threads,
            "wall_s": round(progress.elapsed_s, 2),
            "num_parameters": num_parameters,
            "num_nonzero": num_parameters - num_masked,
            "final": {
                "train_loss": final_train["loss"],
                **{f"validation_{name}": value for name, value in scores.items()},
                "steps": final_train["step"],
                **{name: final_train[name] for name in (unit, f"{unit}_per_s", "sparsity", "itop")},
            },
            "flops": {
                "executed": progress.flops_executed,
                "dense_equivalent": progress.step * self._dense_step_flops,
                "dense_step": self._dense_step_flops,
            },
            "layers": [{"name": name, **values} for name, values in tensors.items()],
        }


def train(
    spec: dict[str, Any],
    *,
    spec_hash: str,
    code_hash: str,
    command: str,
    data_dir: Path,
    out: Path,
    state_root: Path,
    num_threads: int = 1,
    device: str = "cpu",
    execution: str = "auto",
    first: Path | None = None,
    log: Path | None = None,
) -> None:
    """Train one run into ``out``: ``metrics.jsonl``, ``model/`` and, last, ``train.json``.

    A second trainer of the same run waits for the first one's lock, and then finds its result.

    Raises:
        Interrupted: after SIGINT or SIGTERM, with the state saved.
        FloatingPointError: when the loss is not finite.
    """
    state_root.mkdir(parents=True, exist_ok=True)
    lock = FileLock(state_root / f"{spec['id']}-{spec_hash[:12]}.lock")
    waited = False
    keep_memory()
    with stop_signals() as received:
        while True:
            try:
                lock.acquire(timeout=0.5)
                break
            except Timeout:
                if received:
                    raise Interrupted(128 + received[0]) from None
                if not waited:
                    say(f"{spec['id']}  another trainer has this run; waiting for it", log)
                waited = True
        try:
            if waited and finished(out, spec_hash):
                return
            trainer = Trainer(
                spec,
                spec_hash=spec_hash,
                data_dir=data_dir,
                state_root=state_root,
                num_threads=num_threads,
                device=device,
                execution=execution,
                first=first,
                log=log,
            )
            if trainer.resume():
                trainer.say(f"resumes at step {trainer.progress.step}")
            trainer.run(received)
            _write(trainer, out, spec_hash=spec_hash, code_hash=code_hash, command=command)
            shutil.rmtree(trainer.state_dir, ignore_errors=True)
            final = trainer.progress.rows[-1]
            trainer.say(
                f"done: {trainer.progress.step} steps in {trainer.progress.elapsed_s:.0f} s, "
                f"validation loss {final['loss']:.4f}"
            )
        finally:
            lock.release()


def finished(out: Path, spec_hash: str) -> bool:
    """Whether a run with this spec has written all of its files."""
    path = out / "train.json"
    return path.is_file() and json.loads(path.read_text())["spec_hash"] == spec_hash


def _write(trainer: Trainer, out: Path, *, spec_hash: str, code_hash: str, command: str) -> None:
    """The files of a finished run; ``train.json`` last, since it says that the rest is there."""
    out.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(row) for row in trainer.progress.rows]
    (out / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    trainer.export(out / "model")
    write_json(
        out / "train.json",
        {
            "run": trainer.spec["id"],
            "spec": trainer.spec,
            "spec_hash": spec_hash,
            "code_hash": code_hash,
            **trainer.summary(),
            "command": command,
        },
    )
