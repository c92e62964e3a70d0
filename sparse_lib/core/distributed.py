"""Data-parallel training: same seed, same gradients, same masks on every rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from sparse_lib.masks import shards


def world_size() -> int:
    """Number of data-parallel processes; 1 without ``torch.distributed``."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def shared_seed(seed: int) -> int:
    """The seed of rank 0, on every rank."""
    if world_size() == 1:
        return seed
    box = [seed]
    dist.broadcast_object_list(box, 0)
    return box[0]


def any_rank(flags: Sequence[bool]) -> list[bool]:
    """Flags that are true where those of any rank are; a collective."""
    box = torch.tensor(flags, dtype=torch.int32, device=shards.device_of())
    dist.all_reduce(box, dist.ReduceOp.MAX)
    return box.bool().tolist()


def average_(tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by its mean over the ranks, in place, as DDP does with gradients."""
    num_ranks = world_size()
    if num_ranks == 1:
        return
    for tensor in tensors:
        tensor.div_(num_ranks)  # DDP divides first, too
        dist.all_reduce(tensor)


def checksum(mask: Tensor) -> Tensor:
    """An int64 scalar that differs between masks, but for a chance of about 2**-64."""
    octets = mask.contiguous().view(torch.uint8).flatten()
    padded = torch.nn.functional.pad(octets, (0, -octets.numel() % 8)).view(torch.int64)
    index = torch.arange(1, padded.numel() + 1, device=mask.device)
    packed = (padded * 0x0102040810204080) >> 56 & 0xFF  # eight bytes of 0 or 1 to eight bits
    weight = (index * 0x9E3779B97F4A7C1 ^ (index >> 7)) * 0x2545F4914F6CDD1D | 1
    return (packed * weight).sum()


def check_equal(masks: Mapping[str, Tensor]) -> None:
    """Raise RuntimeError if a mask differs between ranks. Every rank must call this."""
    if world_size() == 1 or not masks:
        return
    sums = torch.stack([checksum(mask) for mask in masks.values()])
    low, high = sums.clone(), sums.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    different = (low != high).nonzero().flatten().tolist()
    if different:
        names = list(masks)
        raise RuntimeError(
            f"the masks of {[names[i] for i in different]} differ between ranks; apply the "
            "algorithm with the same seed and the same weights on every rank"
        )
