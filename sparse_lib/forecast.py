"""The work of a training by its schedules, before it runs: nothing is drawn and nothing trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from sparse_lib.configure import configure
from sparse_lib.core.dynamic import DynamicSparsityAlgorithm
from sparse_lib.core.group import Group
from sparse_lib.core.history import Work
from sparse_lib.preview import counts_follow_from_shapes, num_kept, without_memory


@dataclass(frozen=True)
class Forecast:
    """What a training will compute, by full name of each masked weight.

    Attributes:
        work: What `sparse_lib.core.metrics.training_flops` takes.
        kept: Weights that the last masks keep.
        num_updates: Mask updates.
    """

    work: dict[str, Work]
    kept: dict[str, int]
    num_updates: dict[str, int]


def forecast(model: nn.Module, config: Any, num_steps: int) -> Forecast:
    """What ``num_steps`` optimizer steps will compute with each masked weight.

    Present weights are those of each step's target, and dense weight gradients those of the steps
    for which the algorithm asks for them: exact where an algorithm meets its targets at each
    update.

    Args:
        model: The model, also on the meta device; it is not changed.
        config: What ``configure`` takes.
        num_steps: Optimizer steps of the run.

    Raises:
        TypeError: If a value of the config has a wrong type.
        ValueError: If the config is wrong, or the number of weights that its masks keep depends
            on values of the weights.
    """
    algorithm = configure(config)
    found = Forecast({}, {}, {})
    if algorithm is None:
        return found
    if not counts_follow_from_shapes(algorithm, model):
        raise ValueError("how many weights the masks keep depends on the values of the weights")
    algorithm.apply(without_memory(model, algorithm))
    members = algorithm.algorithms if isinstance(algorithm, Group) else [algorithm]
    for member in members:
        work, kept, num_updates = _run(member, num_steps)
        found.work.update(work)
        found.kept.update(kept)
        found.num_updates.update(dict.fromkeys(kept, num_updates))
    return found


def _run(algorithm: Any, num_steps: int) -> tuple[dict[str, Work], dict[str, int], int]:
    """The same of one algorithm, which is used up."""
    params = algorithm.sparse_params
    shapes = {name: tuple(sparse.param.shape) for name, sparse in params.items()}
    moves = isinstance(algorithm, DynamicSparsityAlgorithm)
    work = {name: Work() for name in params}

    def counts(targets: dict[str, float]) -> dict[str, int]:
        return {name: num_kept(algorithm, shapes[name], targets[name]) for name in params}

    kept, since = counts({name: float(sparse.target) for name, sparse in params.items()}), 0
    num_updates = 0
    for step in range(1, num_steps + 1):
        algorithm.step = step - 1
        if algorithm.needs_dense_gradient:
            for name, done in work.items():
                done.dense_steps += 1
                done.dense_present += kept[name]
        due = moves and algorithm.is_update_step(step)
        if due:
            num_updates += 1
            for name, done in work.items():
                done.present += (step - since) * kept[name]
            targets = algorithm.sparsity.targets(step, is_update_step=True)
            if algorithm.is_dense_after(num_updates):
                targets = dict.fromkeys(params, 0.0)
            kept, since = counts(targets), step
        algorithm.sparsity.advance(due)
    for name, done in work.items():
        done.present += (num_steps - since) * kept[name]
        done.until = num_steps
    return work, kept, num_updates
