"""How parameters of a model become sparse parameters of algorithms, and get their first masks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from sparse_lib.core.doubts import frozen_losses, told_of_frozen, told_of_parametrizations
from sparse_lib.core.parameter import SparseParameter, attach, candidate

if TYPE_CHECKING:
    from sparse_lib.core.algorithm import SparsityAlgorithm

#: Elements of all tensors above which first masks are made by several threads.
LARGE = 2**22

Found = Iterable[tuple[str, nn.Module, str]]
"""Full names of parameters, the modules that own them, and their names there."""


def sparsify(
    model: nn.Module,
    parts: Iterable[tuple[SparsityAlgorithm, Found]],
) -> list[str]:
    """Register parameters with algorithms, and make and attach their first masks.

    Args:
        model: What the algorithms are applied to.
        parts: Each algorithm and what :func:`find_parameters` found for it. If any of them fails,
            neither algorithms nor modules are changed.

    Returns:
        Sentences about masks that are likely not to do what they were made for.
    """
    adopted: list[tuple[SparsityAlgorithm, list[SparseParameter]]] = []
    try:
        for algorithm, found in parts:
            adopted.append((algorithm, _adopt(algorithm, found)))
        masks = [algorithm._first_masks(new) for algorithm, new in adopted]
    except BaseException:
        for algorithm, new in adopted:
            for sparse in new:
                del algorithm.sparse_params[sparse.name]
        raise
    all_new = [sparse for _, new in adopted for sparse in new]
    made = [mask for first in masks for _, mask in first]
    cut = frozen_losses(model, zip(all_new, made, strict=True))
    for (algorithm, new), first in zip(adopted, masks, strict=True):
        for sparse in new:
            attach(sparse)
        algorithm._claim()
        algorithm._put_first_masks(new, first)
    changes = ((sparse, algorithm.updates_masks) for algorithm, new in adopted for sparse in new)
    return told_of_frozen(cut) + told_of_parametrizations(changes)


def _adopt(algorithm: SparsityAlgorithm, found: Found) -> list[SparseParameter]:
    """Register new parameters and return them; their modules are not changed.

    Raises:
        ValueError: If a name is known from another model, or a parameter cannot have a mask.
    """
    new = []
    for name, module, param_name in found:
        known = algorithm.sparse_params.get(name)
        if known is not None and known.module is module:
            continue
        if known is not None:
            raise ValueError(
                f"this algorithm already sparsifies a parameter {name!r} of another model; "
                "make a second algorithm for it"
            )
        new.append(candidate(algorithm._clock, module, param_name, name))
    algorithm.sparse_params |= {sparse.name: sparse for sparse in new}
    algorithm._levels.params = algorithm.sparse_params
    return new


def each(
    make: Callable[[SparseParameter], Tensor], params: list[SparseParameter], *, threads: bool
) -> dict[str, Tensor]:
    """A mask of each parameter by its name.

    Args:
        make: Makes one; gradients are off.
        params: Whose masks to make.
        threads: Whether several may be made at a time, as is worth it for large models.
    """
    off = torch.no_grad()(make)  # a property of the thread
    workers = min(torch.get_num_threads(), len(params))
    if threads and workers > 1 and sum(sparse.param.numel() for sparse in params) > LARGE:
        with ThreadPoolExecutor(workers) as pool:
            return dict(zip((s.name for s in params), pool.map(off, params), strict=True))
    return {sparse.name: off(sparse) for sparse in params}
