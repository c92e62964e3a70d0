"""AC/DC: alternating compressed and decompressed training."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from sparse_lib.core.dynamic import DynamicSparsityAlgorithm
from sparse_lib.core.parameter import SparseParameter
from sparse_lib.masks.makers import visible_magnitude


class ACDC(DynamicSparsityAlgorithm):
    """AC/DC (Peste et al. 2021, arXiv:2106.12379).

    Training begins dense. Update steps alternate: the first compresses (of each tensor the
    ``num_nonzero(sparsity(t), n)`` largest magnitudes stay), the second decompresses (all weights
    may be trained again, those that were masked from zero), and so on. So
    ``update={"freq": f, "start": warm_up, "stop": T}`` has phases of ``f`` steps; an odd number of
    updates ends sparse. The paper compresses by the magnitudes of all tensors together, which is
    ``distribution="global"``, and ends with a longer compressed phase. Optimizer states of weights
    that come back start at zero, as the paper's reset of momentum has it.

    Args:
        sparsity: See `SparsityAlgorithm`; of the compressed phases.
        update: See `DynamicSparsityAlgorithm`; the changes of phase.
        init_method: Of no effect but for masks that are there already (``"from_zeros"``).
    """

    needs_sparsity: ClassVar[bool] = True

    @property
    def compressed(self) -> bool:
        """True in a compressed phase, of which the first begins with the first update."""
        return not self.is_dense_after(self.num_updates)

    def is_dense_after(self, num_updates: int) -> bool:
        """After none, and after each second one."""
        return num_updates % 2 == 0

    def update_mask(self, p: Tensor, mask: Tensor, sparsity: float) -> Tensor:
        """The largest magnitudes, or all."""
        if not self.compressed:
            return torch.ones_like(mask)
        return self.keep_best(visible_magnitude(p), sparsity)

    def targets_at(self, step: int) -> dict[str, float]:
        """The schedule's targets in compressed phases, else 0."""
        if self.compressed:
            return super().targets_at(step)
        return dict.fromkeys(self.sparse_params, 0.0)

    def initial_mask(self, sparse: SparseParameter, sparsity: float) -> Tensor:
        """All weights, or those that are there already."""
        if self.init_method == "from_zeros":
            return super().initial_mask(sparse, sparsity)
        return torch.ones_like(sparse.param, dtype=torch.bool)
