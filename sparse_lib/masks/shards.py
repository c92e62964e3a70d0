"""Tensors sharded over ranks (DTensors).

A sharded tensor has its rows split over the ranks of one dimension of a device mesh, as
``torch.distributed.fsdp.fully_shard`` leaves parameters. What is element-wise works on the rows of
a rank (`local`, `as_shard`); what compares weights gathers one tensor on every rank, as its layer's
forward pass does, and keeps the rank's rows of the result (`whole`, `fitted`). Sums and gathers are
collectives: all ranks of that dimension call them, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


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
    stride = torch.empty(like.shape, device="meta").stride()
    return DTensor.from_local(rows, mesh, places, run_check=False, shape=like.shape, stride=stride)


def rows_of(whole: Tensor, like: Tensor) -> Tensor:
    """This rank's rows of a whole tensor, a view."""
    if group_of(like) is None:
        return whole
    mesh: Any = like.device_mesh  # type: ignore[attr-defined]
    dim, _, _ = _split(like)
    chunk = -(-like.shape[0] // mesh.size(dim))  # as torch.chunk splits rows
    start = min(mesh.get_local_rank(dim) * chunk, like.shape[0])
    return whole[start : start + local(like).shape[0]]


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor on every rank; a collective."""
    if not is_sharded(tensor):
        return tensor
    rows = local(tensor)
    # Weights that are offloaded to the CPU are on other devices than what gathers them.
    there = as_shard(rows.to(device_of(group_of(tensor))), tensor)
    return there.full_tensor().to(rows.device)  # type: ignore[attr-defined]


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


def device_of(group: Any = None) -> torch.device:
    """The device of the tensors that the collectives of a group, or of all ranks, take."""
    accelerated = dist.get_backend(group) == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if accelerated else torch.device("cpu")
