"""Tensors sharded over ranks (DTensors): counts and selections that gather none of them.

A sharded tensor has its rows split over the ranks of one dimension of a device mesh, as
``torch.distributed.fsdp.fully_shard`` leaves parameters. Every function here that counts or
selects is a collective: all ranks of that dimension call it, in the same order. On a tensor that
is not sharded all of them do what a single process does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_DIGIT = 16  # bits decided per round of a selection
_CHUNK = 2**18  # scores whose keys are made at a time, so that a selection takes little memory


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

    Exact: the threshold is found from counts of the scores' leading bits, 16 at a time (radix
    selection), and ties at it go to the earlier tensor, then to the lower index of the whole
    tensor, or as a generator draws. What is sent are histograms of 2**16 counts, and a count of
    ties per rank and tensor.

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
    """The ``keep``-th largest score over all ranks, a scalar; none of the competing ones is NaN."""
    dtype, device = pieces[0][0].dtype, pieces[0][0].device
    bits, found = 8 * dtype.itemsize, 0
    keys: Iterable[Tensor] = _Keys(pieces)
    for shift in range(bits - _DIGIT, -1, -_DIGIT):
        counts = torch.zeros(2**_DIGIT, dtype=torch.int64, device=device)
        for part in keys:
            counts += _digits(part, shift).bincount(minlength=2**_DIGIT)
        counts = total(counts, group)
        from_top = counts.flip(0).cumsum(0)
        place = int((from_top < keep).sum())  # digits above the one that is looked for
        digit = 2**_DIGIT - 1 - place
        keep -= int(from_top[place] - counts[digit])
        keys = [part[_digits(part, shift) == digit] for part in keys]
        found |= digit << shift
    return _score(found, dtype, device)


def _digits(keys: Tensor, shift: int) -> Tensor:
    return (keys >> shift).bitwise_and_(2**_DIGIT - 1)


class _Keys:
    """Keys of the scores that compete, made in chunks whenever they are gone through."""

    def __init__(self, pieces: Sequence[tuple[Tensor, Tensor]]) -> None:
        self.pieces = pieces

    def __iter__(self) -> Iterator[Tensor]:
        for values, among in self.pieces:
            for part, mask in zip(values.split(_CHUNK), among.split(_CHUNK), strict=True):
                yield _keys(part[mask])


def _keys(values: Tensor) -> Tensor:
    """Integers whose bits, read without a sign, order as the scores do."""
    integer = {4: torch.int32, 8: torch.int64}[values.element_size()]
    bits = (values + 0.0).view(integer)  # minus zero becomes zero
    flips = (bits >> (8 * values.element_size() - 1)).bitwise_or_(torch.iinfo(integer).min)
    return bits.bitwise_xor_(flips)


def _score(key: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The inverse of `_keys` for one key."""
    bits = 8 * dtype.itemsize
    top = 1 << (bits - 1)
    raw = key ^ top if key & top else ~key & (2**bits - 1)
    signed = raw - 2**bits if raw & top else raw
    integer = {4: torch.int32, 8: torch.int64}[dtype.itemsize]
    return torch.tensor([signed], dtype=integer).view(dtype).to(device)[0]
