"""RigL: rigging the lottery."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor

from sparse_lib.core.drop_and_grow import DropAndGrow
from sparse_lib.masks.shapers import InputGroupScoreShaper, OutputGroupScoreShaper
from sparse_lib.schedules import Level, Updates


class RigL(DropAndGrow):
    """RigL (Evci et al. 2020, arXiv:1911.11134).

    `DropAndGrow` with the magnitude of the dense gradient as growth score: that of the
    optimizer step just taken, before its weight update, unmasked. With micro-batches it is their
    sum, with data-parallel ranks their mean; loss scaling does not matter. It is kept only in the
    backward pass of a step at which masks are due. The paper's algorithm 1 has the mask update
    *replace* the weight update; that is ``skip_update_on_mask_steps=True``, while by default, as
    in the Cerebras library, weights are updated first.

    Args:
        sparsity: See `SparsityAlgorithm`; with a schedule this is the GraNet of the
            Cerebras blog.
        balance_in_groups: Number of groups of inputs that each keep the same sparsity.
        balance_out_groups: Number of groups of outputs (such as attention heads) likewise; not
            together with ``balance_in_groups``.
    """

    needs_sparsity: ClassVar[bool] = True
    uses_dense_gradient: ClassVar[bool] = True

    def __init__(
        self,
        sparsity: Level | None = None,
        update: Updates | None = None,
        init_method: str | Callable = "random",
        *,
        drop_fraction: Level = 0.3,
        balance_in_groups: int | None = None,
        balance_out_groups: int | None = None,
        **kwargs: Any,
    ) -> None:
        for number, key, shaper in (
            (balance_in_groups, "balance_in_groups", InputGroupScoreShaper),
            (balance_out_groups, "balance_out_groups", OutputGroupScoreShaper),
        ):
            if number is not None:
                if kwargs.get("score_shaper") is not None:
                    raise ValueError(
                        "give one of score_shaper, balance_in_groups and balance_out_groups"
                    )
                kwargs["score_shaper"] = shaper.from_setting(number, key)
        super().__init__(sparsity, update, init_method, drop_fraction=drop_fraction, **kwargs)

    def grow_score(self, p: Tensor) -> Tensor:
        """Magnitude of the dense gradient."""
        # Only the order counts here; a class of a user's may put the score together with others.
        is_ours = type(self).__module__.startswith("sparse_lib.algorithms.")
        return self.dense_gradient(p, scaled=not is_ours).abs()
