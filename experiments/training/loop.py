"""The training loop of all tasks: when it logs, validates and saves; its signals and its lock."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from experiments import data, machine
from experiments.errors import CannotWrite, reason
from experiments.specs.run import RunSpec
from experiments.store.io import read_cache
from experiments.training import summary
from experiments.training.state import Saved
from experiments.training.trainer import Trainer, say

#: Seconds between two saved states; the variable is for tests.
SAVE_EVERY_S = float(os.environ.get("SPARSE_SAVE_EVERY_S") or 15)
#: A state that takes long to save is saved less often: saving takes at most this share of the time.
SAVE_SHARE = 0.05
STATUS_EVERY_S = 5.0
NUM_LOG_ROWS = 120


class Interrupted(SystemExit):
    """Raised between two steps after a signal; the state has been saved."""


@contextmanager
def stop_signals() -> Iterator[list[int]]:
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


def locked(
    name: str, state_dir: Path, received: list[int], log: Path | None, held: ExitStack
) -> bool:
    """Take the lock of a run until ``held`` closes; whether it was free at once.

    Args:
        received: signals, of which any ends the wait.
        held: what the lock is released with.

    Raises:
        Interrupted: after a signal.
    """
    try:
        state_dir.parent.mkdir(parents=True, exist_ok=True)
        state_dir.with_name(f"{state_dir.name}.lock").touch()
    except OSError as error:
        raise CannotWrite(f"{state_dir.parent} cannot be written: {error.strerror}") from None
    lock = FileLock(state_dir.with_name(f"{state_dir.name}.lock"))
    waited = False
    while True:
        try:
            lock.acquire(timeout=0.5)
            break
        except Timeout:
            if received:
                raise Interrupted(128 + received[0]) from None
            if not waited:
                say(f"{name}  another trainer has this run; waiting for it", log)
            waited = True
    held.callback(lock.release)
    return not waited


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Say which folder has no room, where safetensors says only what failed."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        raise CannotWrite(f"{folder} cannot be written: {reason(error)}") from error


def run(trainer: Trainer, saved: Saved, received: list[int]) -> None:
    """Train to the last step; saves and raises `Interrupted` after a signal."""
    recipe, progress = trainer.spec.recipe, trainer.progress
    here = machine.key(machine.facts(trainer.num_threads, device=str(trainer.device)))
    progress.machines = [*(key for key in progress.machines if key != here), here]
    steps = recipe.steps
    log_every = max(1, steps // NUM_LOG_ROWS)
    validate_every = max(1, steps // recipe.validations)
    before, last_save, told = progress.elapsed_s, time.monotonic(), time.monotonic()
    start, pause = time.monotonic(), SAVE_EVERY_S
    cpu_before, cpu_start = progress.cpu_s, time.process_time()
    first = progress.step
    trainer.model.train()
    while progress.step < steps:
        loss = trainer.step()
        progress.elapsed_s = before + time.monotonic() - start
        progress.cpu_s = cpu_before + time.process_time() - cpu_start
        if isinstance(loss, float):
            trainer.check_loss(loss)
        progress.loss_sum += loss
        progress.loss_count += 1
        if progress.step % log_every == 0 or progress.step == steps:
            mean = float(progress.loss_sum) / progress.loss_count
            trainer.check_loss(mean)
            progress.rows.append(summary.train_row(trainer, mean))
            progress.loss_sum, progress.loss_count = 0.0, 0
        # Full validation is done once, after the last step.
        left = steps - progress.step
        if left == 0 or (progress.step % validate_every == 0 and left >= validate_every):
            began, cpu_began = time.monotonic(), time.process_time()
            scores = trainer.validate(full=left == 0)
            progress.rows.append(summary.validation_row(trainer, scores))
            progress.validating_s += time.monotonic() - began
            progress.validating_cpu_s += time.process_time() - cpu_began
        if recipe.stable is not None and progress.step in recipe.stable.keep:
            saved.keep(progress.step, trainer.state())
        now = time.monotonic()
        if received:
            saved.save(progress.step, trainer.state())
            trainer.say(f"stopped by signal {received[0]} at step {progress.step}; state saved")
            raise Interrupted(128 + received[0])
        if now - last_save >= pause:
            try_to_save(trainer, saved)
            last_save = time.monotonic()
            pause = max(SAVE_EVERY_S, (last_save - now) / SAVE_SHARE)
        if now - told >= STATUS_EVERY_S:
            status(trainer, float(loss), first, now - start)
            told = now
    try_to_save(trainer, saved)


def try_to_save(trainer: Trainer, saved: Saved) -> None:
    """Save the state, or print why that failed; the training continues without a new one."""
    try:
        saved.save(trainer.progress.step, trainer.state())
    except OSError as error:
        trainer.say(f"{error}; the training goes on")


def status(trainer: Trainer, loss: float, first: int, seconds: float) -> None:
    """Progress in one line: step, loss, speed and time left."""
    done, steps = trainer.progress.step, trainer.spec.recipe.steps
    speed = (done - first) / max(seconds, 1e-9)
    level = trainer.measure().get("sparsity", 0.0)
    trainer.say(
        f"step {done}/{steps}  loss {loss:.3f}  "
        f"{speed * trainer.task.units_per_step:,.0f} {trainer.task.unit}/s  "
        f"ETA {(steps - done) / max(speed, 1e-9):.0f} s  sparsity {level:.2f}"
    )


def train(
    spec: RunSpec,
    *,
    code_hash: str,
    command: str,
    data_dir: Path,
    out: Path,
    state_dir: Path,
    log: Path | None = None,
    keep_states: bool = False,
    **options: Any,
) -> None:
    """Train one run into ``out``: ``metrics.jsonl``, ``model/`` and, last, ``train.json``.

    Further ``options`` are those of `Trainer`. A second trainer of the same run waits for the first
    one's lock, and then finds its result. ``keep_states`` leaves the states to the caller, who
    still works on the result: killed meanwhile, the run goes on from its last one.

    Raises:
        Interrupted: after SIGINT or SIGTERM with the state saved.
        Diverged: when the loss is not finite.
        UserError: when the prepared data are not as they were prepared, or there is no such
            device.
        OSError: when a file cannot be written.
    """
    machine.keep_memory()
    with stop_signals() as received, ExitStack() as held:
        if not locked(spec.id, state_dir, received, log, held) and finished(out, spec):
            return
        data.verify(data_dir)
        trainer = Trainer(spec, data_dir=data_dir, log=log, **options)
        held.callback(trainer.batches.close)
        origin = {"code": code_hash, "data": trainer.task.data["hash"]}
        origin["first_weights"] = trainer.first_weights
        origin["computing"] = f"{trainer.precision} {trainer.compile}"
        saved = Saved(state_dir, origin, trainer.say)
        if (state := saved.newest()) is not None:
            trainer.restore(state)
            trainer.say(f"resumes at step {trainer.progress.step}")
        run(trainer, saved, received)
        with writing(out):
            summary.write(trainer, out, saved.kept, code_hash=code_hash, command=command)
        if not keep_states:
            saved.remove()
        final = trainer.progress.rows[-1]
        trainer.say(
            f"done: {trainer.progress.step} steps in {trainer.progress.elapsed_s:.0f} s, "
            f"validation loss {final['loss']:.4f}"
        )


def finished(out: Path, spec: RunSpec) -> bool:
    """Whether a run with this spec has written all of its files."""
    return read_cache(out / "train.json").get("spec_hash") == spec.hash
