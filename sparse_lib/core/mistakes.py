"""Warnings of what a script most likely did not mean."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.utils.parametrize import ParametrizationList
from torch.optim import Optimizer

from sparse_lib.core.guard import guards
from sparse_lib.core.parameter import FirstMask, SparseParameter, some, warn
from sparse_lib.masks import shards
from sparse_lib.masks.counts import num_true
from sparse_lib.schedules import LONG, Constant, Cosine, Cubic, Cycling, Polynomial

if TYPE_CHECKING:
    from sparse_lib.core.algorithm import SparsityAlgorithm
    from sparse_lib.core.applied import Applied

#: Schedules that end at a value and stay there.
_ENDING = Constant | Cosine | Cubic | Polynomial


def warn_of_lost_state(member: SparsityAlgorithm, optimizer: Optimizer, was_loaded: bool) -> None:
    """Warn if masks and optimizer are those of a checkpoint, and the algorithm is new."""
    if member.state_was_loaded or member.step or not member.updates_masks:
        return
    loaded = [sparse for sparse in member.sparse_params.values() if sparse.guard.was_loaded]
    if loaded and (was_loaded or any(optimizer.state.get(sparse.param) for sparse in loaded)):
        warn(
            f"masks and optimizer were loaded from a checkpoint, but the state of "
            f"{type(member).__name__} was not, so its schedules begin again at step 0; save "
            "sparsity.state_dict() beside them, and call sparsity.load_state_dict"
        )


def warn_of_missed_update(member: SparsityAlgorithm, count: int) -> bool:
    """Warn if an algorithm would have updated masks at the ``count``-th step that it missed."""
    last, step = member.step, member.step + count
    moves = member.updates_masks and member.autoupdate and (last or member.num_updates == 0)
    if not (moves and member.is_update_step(step)):
        return False
    what = "it was applied to no optimizer, so they never change; call sparsity.apply(optimizer)"
    if last:
        what = (
            f"its optimizer has taken no step since step {last}; if another one trains the model "
            "now, call sparsity.detach(first_optimizer), then sparsity.apply(optimizer)"
        )
    name = type(member).__name__
    warn(f"{name} would have updated its masks after optimizer step {step}, but {what}")
    return True


def warn_of_zeros(first: Sequence[FirstMask]) -> None:
    """Warn where first masks let zeros of weights that were pruned before train again.

    Weights of which less than a tenth is zero were not, and those that are all zero are new.
    """
    freed = {}
    for sparse, _, mask in first:
        if mask is None or sparse.param.device.type == "meta":
            continue
        zero = shards.local(sparse.param.detach()) == 0
        share = zero.float().mean().item()
        if 0.1 <= share < 1 and (count := int((zero & shards.local(mask)).sum())):
            freed[sparse.name] = f"{count} of {int(zero.sum())}"
    if freed:
        warn(
            f"{some([*freed])} came with zeros, of which the new mask lets "
            f"{next(iter(freed.values()))} train again; init_method='from_zeros' masks them all"
        )


def warn_of_frozen(model: nn.Module, first: Sequence[FirstMask]) -> None:
    """Warn where first masks cut frozen weights of a model that trains others, as LoRA does."""
    cut = [
        sparse.name
        for sparse, _, mask in first
        if mask is not None and not sparse.param.requires_grad and not sparse.param.is_meta
        if bool(shards.local(sparse.param.detach())[shards.local(mask) == 0].any())
    ]
    if cut and any(param.requires_grad for param in model.parameters()):
        warn(
            f"{some(cut)} is frozen: what the mask drops there is lost, and no training makes up "
            "for it; leave it out by param_filter, or, for adapters of a pruned base, call "
            "sparse_lib.integrations.peft.keep_zeros"
        )


def has_adapter(module: nn.Module) -> bool:
    """Whether a module is a layer of peft's, around one of the model's."""
    peft = sys.modules.get("peft.tuners.tuners_utils")
    return peft is not None and isinstance(module, peft.BaseTunerLayer)


def warn_of_adapters(models: Sequence[nn.Module]) -> None:
    """Warn of adapters of masked weights that are not masked, as peft's keep_zeros would."""
    free = {
        name: module
        for model in models
        for name, module in model.named_modules()
        if has_adapter(module) and "_unmasked_delta" not in vars(module)
        if guards(module.get_base_layer())
    }
    if free:
        warn(
            f"the adapters of {some([*free])} are dense and the weights under them masked, so what "
            "is merged would be cut by the masks; call sparse_lib.integrations.peft.keep_zeros "
            "after get_peft_model"
        )


@torch.no_grad()
def warn_of_filled_zeros(params: Sequence[SparseParameter]) -> None:
    """Warn where a parametrization, as ``orthogonal``, makes a dense weight of a masked one."""
    for sparse in params:
        module, was_training = sparse.module, sparse.module.training
        is_here = not sparse.param.is_meta and not shards.is_sharded(sparse.param)
        if not (is_here and isinstance(module, ParametrizationList)):
            continue
        weight = module.eval()()  # spectral_norm changes its vectors in training
        module.train(was_training)
        if weight.shape == sparse.mask.shape and bool(weight[~sparse.mask].any()):
            warn(
                f"{type(module[0]).__name__} fills masked zeros of {sparse.name!r}, so the weight "
                "of its layer is not as sparse as the mask; leave it out by param_filter"
            )


def warn_of_missed_sparsity(member: SparsityAlgorithm, first: Sequence[FirstMask]) -> None:
    """Warn where blocks, groups or masks that were there leave another sparsity than asked for."""
    shaper, schedules = member.score_shaper, member.sparsity.schedules
    is_constant = all(isinstance(schedule, Constant) for schedule in schedules)
    is_constant &= member.init_method != "from_zeros"
    off = [
        (sparse, target)
        for sparse, target, mask in first
        if target and is_constant and not sparse.mask.is_meta and (shaper or mask is None)
    ]
    total = sum(sparse.mask.numel() for sparse, _ in off)
    asked = sum(sparse.mask.numel() * target for sparse, target in off)
    got = total - sum(num_true(sparse.mask) for sparse, _ in off)
    if abs(got - asked) > 0.01 * total + len(off):
        why = f"{shaper!r} keeps whole parts" if shaper else "masks that are there are kept"
        names = some([sparse.name for sparse, _ in off])
        warn(f"the sparsity of {names} is {got / total:.2f}, not {asked / total:.2f}, since {why}")


def unreached(algorithm: Applied, num_steps: int) -> list[str]:
    """Sentences on what the masks of an algorithm do not reach in a run of so many optimizer steps.

    That is a change, or the ends of its schedules. The algorithm need not have been applied.
    """
    return [note for member in algorithm.algorithms for note in _unreached_by(member, num_steps)]


def _unreached_by(algorithm: SparsityAlgorithm, num_steps: int) -> list[str]:
    name, last = type(algorithm).__name__, num_steps
    place = f"after {num_steps} steps"
    if (due := getattr(algorithm, "update_schedule", None)) is not None:
        last = due.last_update(num_steps)
        place = f"after its last mask update, at step {last} of {num_steps}"
        if not last:
            return [f"{name} changes no mask in {num_steps} steps; its update is {due!r}"]
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


def warn_of_unreached(algorithm: Applied, num_steps: int) -> None:
    """Warn where masks do not reach their targets in a training of so many optimizer steps."""
    if num_steps > 0 and (notes := unreached(algorithm, num_steps)):
        warn(
            f"{'; '.join(notes)}; schedules count optimizer steps, of which gradient accumulation "
            "makes fewer than batches"
        )
