"""How parameters of a model become sparse parameters of algorithms, and get their first masks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from torch import nn

from sparse_lib.core.parameter import SparseParameter, attach, candidate, warn
from sparse_lib.layers import Layout, layouts

if TYPE_CHECKING:
    from sparse_lib.core.algorithm import SparsityAlgorithm

Found = Iterable[tuple[str, nn.Module, str]]
"""Full names of parameters, the modules that own them, and their names there."""


def sparsify(model: nn.Module, parts: Iterable[tuple[SparsityAlgorithm, Found]]) -> None:
    """Register parameters with algorithms, and make and attach their first masks.

    Args:
        model: What the algorithms are applied to.
        parts: Each algorithm and what :func:`find_parameters` found for it. If any of them fails,
            neither algorithms nor modules are changed.
    """
    adopted: list[tuple[SparsityAlgorithm, list[SparseParameter]]] = []
    known, left_dense = layouts(model), []
    try:
        for algorithm, found in parts:
            new, unfit = _adopt(algorithm, found, known)
            adopted.append((algorithm, new))
            left_dense += unfit
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
    for told in left_dense:
        warn(told)


def _adopt(
    algorithm: SparsityAlgorithm, found: Found, known: Mapping[int, Layout | None]
) -> tuple[list[SparseParameter], list[str]]:
    """Register new parameters; their modules are not changed.

    Returns:
        The new parameters, and a sentence for each that stays dense since no pools fit it.

    Raises:
        ValueError: If a name is known from another model, or a parameter cannot have a mask.
    """
    new, unfit = [], []
    for name, module, param_name in found:
        old = algorithm.sparse_params.get(name)
        if old is not None and old.module is module:
            continue
        if old is not None:
            raise ValueError(
                f"this algorithm already sparsifies a parameter {name!r} of another model; "
                "make a second algorithm for it"
            )
        layout = known.get(id(module._parameters[param_name]))
        sparse = candidate(algorithm._clock, module, param_name, name, layout)
        try:
            if not sparse.initialized:
                algorithm._check_shape(sparse)
        except ValueError as error:
            if algorithm._score_shaper is None or algorithm._score_shaper.remainder != "dense":
                raise
            unfit.append(f"{error}; it stays dense")
            continue
        new.append(sparse)
    algorithm.sparse_params |= {sparse.name: sparse for sparse in new}
    algorithm._levels.params = algorithm.sparse_params
    return new, unfit
