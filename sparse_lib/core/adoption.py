"""How parameters of a model become sparse parameters of algorithms, and get their first masks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch import nn

from sparse_lib.core.parameter import SparseParameter, attach, candidate

if TYPE_CHECKING:
    from sparse_lib.core.algorithm import SparsityAlgorithm

Found = Iterable[tuple[str, nn.Module, str]]
"""Full names of parameters, the modules that own them, and their names there."""


def sparsify(
    parts: Iterable[tuple[SparsityAlgorithm, Found]],
) -> None:
    """Register parameters with algorithms, and make and attach their first masks.

    Args:
        parts: Each algorithm and what :func:`find_parameters` found for it. If any of them fails,
            neither algorithms nor modules are changed.
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
    for (algorithm, new), first in zip(adopted, masks, strict=True):
        for sparse in new:
            attach(sparse)
        algorithm._claim()
        algorithm._put_first_masks(new, first)


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
