"""Targets and changes that masks do not reach in a run of so many steps."""

from __future__ import annotations

from sparse_lib.core.algorithm import SparsityAlgorithm
from sparse_lib.core.dynamic import DynamicSparsityAlgorithm
from sparse_lib.core.group import Group
from sparse_lib.core.parameter import warn
from sparse_lib.schedules import LONG, Constant, Cosine, Cubic, Cycling, Polynomial

#: Schedules that end at a value and stay there.
_ENDING = Constant | Cosine | Cubic | Polynomial


def unreached(algorithm: SparsityAlgorithm | Group, num_steps: int) -> list[str]:
    """Sentences on what the masks of an algorithm do not reach in a run of so many optimizer steps.

    That is a change, or the ends of its schedules. The algorithm need not have been applied.
    """
    if isinstance(algorithm, Group):
        return [note for member in algorithm.algorithms for note in unreached(member, num_steps)]
    name, last = type(algorithm).__name__, num_steps
    place = f"after {num_steps} steps"
    if isinstance(algorithm, DynamicSparsityAlgorithm):
        last = algorithm.update_schedule.last_update(num_steps)
        place = f"after its last mask update, at step {last} of {num_steps}"
        if not last:
            return [
                f"{name} changes no mask in {num_steps} steps; its update is "
                f"{algorithm.update_schedule!r}"
            ]
        if algorithm.is_dense_after(0):
            count = sum(map(algorithm.is_update_step, range(1, num_steps + 1)))
            if algorithm.is_dense_after(count):
                return [
                    f"{name} ends dense, since {count} mask updates are due in {num_steps} steps"
                ]
    elif not algorithm.updates_masks:
        last, place = 0, "and never changes masks"
    notes = []
    for schedule in algorithm.sparsity.schedules:
        if isinstance(schedule, Cycling) and not schedule.repeat:
            used = sum(map(algorithm.is_update_step, range(num_steps + 1)))
            ends = schedule.values[: max(used, 1)][-1], schedule.values[-1]
        elif isinstance(schedule, _ENDING) and not getattr(schedule, "returns", False):
            ends = schedule(last), schedule(LONG)
        else:
            continue
        reached, end = (min(max(level, 0.0), 1.0) for level in ends)
        if abs(end - reached) >= 0.01:
            notes.append(
                f"{name} is at a sparsity of {reached:.2f} {place}, and its schedule goes on to "
                f"{end:.2f}: {schedule!r}"
            )
    return notes


def warn_of_unreached(algorithm: SparsityAlgorithm | Group, num_steps: int) -> None:
    """Warn where masks do not reach their targets in a training of so many optimizer steps."""
    if num_steps > 0 and (notes := unreached(algorithm, num_steps)):
        warn(
            f"{'; '.join(notes)}; schedules count optimizer steps, of which gradient accumulation "
            "makes fewer than batches"
        )
