"""Tensors sharded over ranks (DTensors): counts and selections that gather none of them.

A sharded tensor has its rows split over the ranks of one dimension of a device mesh, as
``torch.distributed.fsdp.fully_shard`` leaves parameters. Every function here that counts or
selects is a collective: all ranks of that dimension call it, in the same order. On a tensor that
is not sharded all of them do what a single process does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}


def is_sharded(tensor: Any) -> bool:
    """Whether a tensor is a DTensor."""
    return hasattr(tensor, "device_mesh")


def check(name: str, tensor: Any) -> None:
    """Raise ValueError if a DTensor is not split by rows over one mesh dimension."""
    if is_sharded(tensor):
        _, number, others = _split(tensor)
        if number > 1 or others:
            raise ValueError(
                f"{name!r} is a DTensor with placements {tuple(tensor.placements)}; masks need "
                "Shard(0) in one dimension of the mesh, as fully_shard makes it, and Replicate "
                "in the others"
            )


def _split(tensor: Any) -> tuple[int | None, int, list[Any]]:
    """The mesh dimension that splits rows, how many do, and placements of other kinds."""
    from torch.distributed.tensor import Replicate, Shard

    rows = [i for i, place in enumerate(tensor.placements) if place == Shard(0)]
    others = [p for p in tensor.placements if p != Shard(0) and not isinstance(p, Replicate)]
    return (rows[0] if rows else None), len(rows), others


def group_of(tensor: Tensor) -> Any:
    """The process group over which a tensor's rows are split; None where they are not."""
    if not is_sharded(tensor):
        return None
    dim, _, _ = _split(tensor)
    return None if dim is None else tensor.device_mesh.get_group(dim)  # type: ignore[attr-defined]


def local(tensor: Any) -> Tensor:
    """This rank's rows, sharing memory; the tensor itself if it is not sharded."""
    return tensor._local_tensor if is_sharded(tensor) else tensor


def as_shard(rows: Tensor, like: Tensor) -> Tensor:
    """The tensor of ``like``'s shape and layout that has these rows on this rank."""
    if not is_sharded(like):
        return rows
    from torch.distributed.tensor import DTensor

    mesh, places = like.device_mesh, like.placements  # type: ignore[attr-defined]
    stride = [1]
    for size in reversed(like.shape[1:]):
        stride.insert(0, stride[0] * size)
    return DTensor.from_local(
        rows, mesh, places, run_check=False, shape=like.shape, stride=tuple(stride[: like.dim()])
    )


def first_row(like: Tensor) -> int:
    """Index of this rank's first row in the whole tensor."""
    if group_of(like) is None:
        return 0
    dim, _, _ = _split(like)
    mesh: Any = like.device_mesh  # type: ignore[attr-defined]
    chunk = -(-like.shape[0] // mesh.size(dim))  # as torch.chunk splits rows
    return min(mesh.get_local_rank(dim) * chunk, like.shape[0])


def rows_of(whole: Tensor, like: Tensor) -> Tensor:
    """This rank's rows of a whole tensor, a view."""
    if not is_sharded(like):
        return whole
    start = first_row(like)
    return whole[start : start + local(like).shape[0]]


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor on every rank; a collective."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def fitted(tensor: Tensor, like: Tensor) -> Tensor:
    """A tensor in the layout of another one of its shape: split, gathered or as it is."""
    if is_sharded(tensor) == is_sharded(like):
        return tensor
    if is_sharded(tensor):
        return whole(tensor)
    if tensor.shape != like.shape:
        return tensor  # whoever asked reports it
    return as_shard(rows_of(tensor, like).to(local(like).device, copy=True), like)


def by_shard(function: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    """Apply an element-wise function to this rank's rows."""
    return as_shard(function(local(tensor)), tensor)


def total(value: Tensor | int, group: Any) -> Any:
    """The sum over the ranks of a group: a tensor for a tensor, an int for an int."""
    if group is None:
        return value
    if isinstance(value, Tensor):
        value = value.clone()
        dist.all_reduce(value, group=group)
        return value
    box = torch.tensor([value], device=device_of(group))
    dist.all_reduce(box, group=group)
    return int(box)


def before(count: int, group: Any) -> int:
    """The sum of the counts of the ranks before this one."""
    if group is None:
        return 0
    box = torch.tensor([count], device=device_of(group))
    everyone = [torch.empty_like(box) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyone, box, group=group)
    return sum(map(int, everyone[: dist.get_rank(group)]))


def device_of(group: Any = None) -> torch.device:
    """Where the collectives of a group, or of all ranks, take tensors from."""
    accelerated = dist.get_backend(group) == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if accelerated else torch.device("cpu")


def random_rows(like: Tensor, generator: torch.Generator) -> Tensor:
    """This rank's rows of ``torch.rand(like.shape, generator=generator)``, on the CPU.

    What belongs to other ranks is drawn in small pieces and thrown away.
    """
    row = math.prod(like.shape[1:])
    before = first_row(like) * row
    mine = local(like).numel()
    _skip(before, generator)
    drawn = torch.rand(mine, generator=generator, dtype=torch.float32)
    _skip(like.numel() - before - mine, generator)
    return drawn.view(local(like).shape)


def _skip(count: int, generator: torch.Generator) -> None:
    piece = 2**20
    for start in range(0, count, piece):
        torch.rand(min(piece, count - start), generator=generator, dtype=torch.float32)


def select(
    pieces: Sequence[tuple[Tensor, Tensor | None]],
    keep: int,
    group: Any,
    generator: torch.Generator | None = None,
) -> list[Tensor]:
    """The ``keep`` highest scores over all ranks of a group and over several tensors.

    Exact: the threshold is found by bisection from counts of the scores above it, and ties at it go
    to the earlier tensor, then to the lower index of the whole tensor, or as a generator draws.
    What is sent are these counts, and one of ties per rank and tensor.

    Args:
        pieces: For each tensor this rank's scores, flat, float32 or float64, and which of them
            compete (None: all). NaN is never chosen. Ranks hold consecutive parts of each tensor.
        keep: How many to choose.
        group: Process group.
        generator: What decides between equal scores; None takes the lower index.

    Returns:
        Bool masks of the pieces' shapes.
    """
    usable = []
    for values, among in pieces:
        numbers = values.isnan().logical_not_()
        usable.append(numbers if among is None else numbers.logical_and_(among))
    candidates = total(sum(int(mask.count_nonzero()) for mask in usable), group)
    if keep <= 0 or candidates == 0:
        return [torch.zeros_like(mask) for mask in usable]
    if keep >= candidates:
        return usable
    competing = [(values, mask) for (values, _), mask in zip(pieces, usable, strict=True)]
    threshold = _kth_largest(competing, keep, group)
    chosen = [
        (values >= threshold).logical_and_(mask)
        for (values, _), mask in zip(pieces, usable, strict=True)
    ]
    surplus = total(sum(int(mask.count_nonzero()) for mask in chosen), group) - keep
    if surplus > 0:
        ties = [
            (values == threshold).logical_and_(mask).nonzero().squeeze(1)
            for (values, _), mask in zip(pieces, chosen, strict=True)
        ]
        _drop_last(chosen, ties, surplus, group, generator)
    return chosen


def order_of_ties(
    shape: tuple[int, ...], device: torch.device, generator: torch.Generator | None
) -> Tensor | None:
    """A random permutation of the last dimension, earlier preferred; None for that of positions."""
    if generator is None:
        return None
    draw = torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64)
    return draw.argsort(-1).to(device)


def _drop_last(
    chosen: list[Tensor],
    ties: list[Tensor],
    surplus: int,
    group: Any,
    generator: torch.Generator | None,
) -> None:
    """Take the last ``surplus`` ties out of masks, in place."""
    device = ties[0].device
    counts = torch.tensor([part.numel() for part in ties], device=device_of(group))
    everyone = [torch.empty_like(counts) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyone, counts, group=group)
    table = torch.stack(everyone, 1).cpu()  # (tensors, ranks)
    starts = (table.flatten().cumsum(0) - table.flatten()).view_as(table)
    number = int(table.sum())
    order = order_of_ties((number,), device, generator)
    dropped = torch.zeros(number, dtype=torch.bool, device=device)
    dropped[torch.arange(number - surplus, number) if order is None else order[-surplus:]] = True
    for index, part in enumerate(ties):
        start = int(starts[index, dist.get_rank(group)])
        chosen[index][part[dropped[start : start + part.numel()]]] = False


def _kth_largest(pieces: Sequence[tuple[Tensor, Tensor]], keep: int, group: Any) -> Tensor:
    """The ``keep``-th largest score over all ranks, a scalar; none of the competing ones is NaN.

    It is searched by bisection among all numbers of the scores' type, in their order.
    """
    dtype = pieces[0][0].dtype
    high = int(torch.tensor(math.inf, dtype=dtype).view(_INTEGERS[dtype]))
    low = -high
    while low < high:
        middle = (low + high + 1) // 2
        threshold = _number(middle, dtype)
        counts = [(part >= threshold).logical_and_(own).count_nonzero() for part, own in pieces]
        if int(total(torch.stack(counts).sum(), group)) >= keep:
            low = middle
        else:
            high = middle - 1
    return _number(low, dtype)


def _number(place: int, dtype: torch.dtype) -> Tensor:
    """The number at a place in the order of all numbers of a type, where 0 is at 0."""
    number = torch.tensor(abs(place), dtype=_INTEGERS[dtype]).view(dtype)
    return number if place >= 0 else -number
