"""Training in which the largest weights stay after each optimizer step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from sparse_lib.checks import check_finite, check_integer
from sparse_lib.core.dynamic import DynamicSparsityAlgorithm
from sparse_lib.core.optimizers import gradient_scale, parameters
from sparse_lib.core.parameter import SparseParameter, warn
from sparse_lib.masks import shards
from sparse_lib.masks.makers import make_mask_topk_sparsity, visible_magnitude
from sparse_lib.masks.shapers import InputGroupScoreShaper, OutputGroupScoreShaper
from sparse_lib.schedules import Level, Updates


class TopK(DynamicSparsityAlgorithm):
    """Weight-sparse training (Gao et al. 2025, arXiv:2511.13653, appendix A.2).

    The optimizer gets dense gradients and keeps dense states. After its step, at update steps
    (by default each), the ``num_nonzero(sparsity(t), n)`` largest magnitudes of the weights that it
    wrote stay, all others become zero; so a masked weight returns as soon as one step makes it
    large enough. Between update steps the mask stays.

    The paper anneals the number of weights linearly over the first half of training
    (``sparsity={"type": "polynomial", "init": 0.0, "final": 0.99, "start": 0, "stop": T // 2,
    "power": 1}``), keeps at least 4 weights of each neuron and attention channel, and clips the
    root mean square of the gradient to 1. The authors' script divides by it always.

    Args:
        init_method: See `SparsityAlgorithm`; the largest weights by default.
        min_per_output: At least so many weights of each output stay, its largest. Where there is
            no room for all of them, the largest of these stay.
        min_per_input: The same for each input.
        gradient_rms: Scale all gradients of the optimizer so that their root mean square, over all
            of their elements, is at most this; None leaves them alone.
    """

    masks_gradients: ClassVar[bool] = False
    masks_states: ClassVar[bool] = False
    needs_sparsity: ClassVar[bool] = True

    def __init__(
        self,
        sparsity: Level | None = None,
        update: Updates | None = None,
        init_method: str | Callable = "topk",
        *,
        min_per_output: int = 0,
        min_per_input: int = 0,
        gradient_rms: float | None = None,
        **kwargs: Any,
    ) -> None:
        self.min_per_output = check_integer(min_per_output, "min_per_output", 0)
        self.min_per_input = check_integer(min_per_input, "min_per_input", 0)
        self.gradient_rms = gradient_rms
        if gradient_rms is not None:
            self.gradient_rms = check_finite(gradient_rms, "gradient_rms", above=0)
        super().__init__(sparsity, update, init_method, **kwargs)

    def check_shape(self, sparse: SparseParameter) -> None:
        super().check_shape(sparse)
        if sparse.param.dim() < 2 or not (self.min_per_output or self.min_per_input):
            return
        if shards.is_sharded(sparse.param):
            raise ValueError(
                f"{sparse.name!r} is sharded, and min_per_output and min_per_input are of whole "
                "tensors; train it without fully_shard, or leave them at 0"
            )
        sizes = sparse.required_layout.sizes(sparse.param.shape)
        for key, room in (
            ("min_per_output", sizes[3] * sizes[4]),
            ("min_per_input", sizes[2] * sizes[4]),
        ):
            if getattr(self, key) > room:
                warn(
                    f"{key} is {getattr(self, key)}, but {sparse.name!r} has {room} weights in "
                    "each; all of them count"
                )

    def prepare(self, optimizer: Optimizer) -> None:
        """Clip the root mean square of the gradients."""
        if self.gradient_rms is None:
            return
        gradients = [p.grad for p in parameters(optimizer) if p.grad is not None]
        if not gradients:
            return
        norms = torch.stack([gradient.float().norm() for gradient in gradients])
        size = sum(gradient.numel() for gradient in gradients)
        rms = norms.norm() / size**0.5
        if (scale := gradient_scale(optimizer)) is not None:
            rms = rms / scale
        factor = (self.gradient_rms / rms).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factor.to(gradient.device))

    def update_mask(self, p: Tensor, mask: Tensor, sparsity: float) -> Tensor:
        """The largest magnitudes, those of each output and input first."""
        score = visible_magnitude(p)
        if p.dim() > 1 and (self.min_per_output or self.min_per_input):
            due = self._due(p, score)
            score = score.double()  # in which magnitudes that differ do so after a sum, too
            score = torch.where(due, score + score.max() + 1, score)
        return self.keep_best(score, sparsity)

    def initial_mask(self, sparse: SparseParameter, sparsity: float) -> Tensor:
        if self.init_method != "topk":
            return super().initial_mask(sparse, sparsity)
        weight = sparse.param
        return self.update_mask(weight, torch.ones_like(weight, dtype=torch.bool), sparsity)

    def _due(self, p: Tensor, score: Tensor) -> Tensor:
        """Bool, of the shape of ``p``: the largest weights of each output and each input."""
        due = torch.zeros(p.shape, dtype=torch.bool, device=p.device)
        for shaper, count in (
            (OutputGroupScoreShaper(), self.min_per_output),
            (InputGroupScoreShaper(), self.min_per_input),
        ):
            bound = shaper.for_layer(self.sparse_param(p).required_layout)
            size = bound(score)[0].shape[-1]
            if count:
                share = 1 - min(count, size) / size
                due |= make_mask_topk_sparsity(score, share, bound)
        return due
