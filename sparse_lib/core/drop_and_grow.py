"""DropAndGrow: the base of SET, RigL and their kin."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from sparse_lib.core.dynamic import DynamicSparsityAlgorithm
from sparse_lib.masks import shards
from sparse_lib.masks.counts import num_nonzero, num_true
from sparse_lib.masks.makers import (
    make_mask_drop_minimum,
    make_mask_grow_maximum,
    make_mask_topk_sparsity,
    visible_magnitude,
)
from sparse_lib.schedules import Lambda, Level, Updates, make_hyperparameter_schedule


class DropAndGrow(DynamicSparsityAlgorithm):
    """Base of algorithms that drop the smallest weights and grow others: SET, RigL and their kin.

    Subclasses define `grow_score`. After the weight update of an update step ``t``, in a
    tensor of ``n`` weights of which ``m`` are present:

    1. The target is ``k = num_nonzero(sparsity(t), n)``.
    2. Drop: of the present weights the ``min(num_nonzero(drop_fraction(t), m), k)`` largest in
       magnitude stay, so the target is met even where the sparsity rises by more than
       ``drop_fraction`` frees (unless the rules let it lag). A weight that is NaN counts as
       infinite, so that it stays and shows.
    3. Grow: the absent positions with the highest scores are added until there are ``k``. Those
       dropped just now compete too; one that wins keeps its value and optimizer states. All
       others start at 0 (or as ``grown_init`` says), with states of 0. NaN scores never grow; where
       too few others are there, the largest of those dropped stay.

    Of equal values the lower index (row-major) wins. With a ``score_shaper`` all counts are per
    pool.

    Args:
        drop_fraction: Fraction of the present weights dropped in an update, in [0, 1]; a number
            or a schedule, evaluated at every update step.

    Raises:
        ValueError: In a step, if a function given as ``drop_fraction`` gives more than 1.
    """

    def __init__(
        self,
        sparsity: Level | None = None,
        update: Updates | None = None,
        init_method: str | Callable = "random",
        *,
        drop_fraction: Level = 0.3,
        **kwargs: Any,
    ) -> None:
        self.drop_schedule = make_hyperparameter_schedule(
            drop_fraction, key="drop_fraction", compat=kwargs.get("compat")
        )
        super().__init__(sparsity, update, init_method, **kwargs)

    @abstractmethod
    def grow_score(self, p: Tensor) -> Tensor:
        """Scores of the shape of ``p``; absent weights with the highest grow, NaN never."""

    def drop_score(self, p: Tensor) -> Tensor:
        """Scores of the shape of ``p``, at least 0; present weights with the lowest are dropped."""
        return visible_magnitude(p)

    @property
    def drop_fraction(self) -> float:
        """Drop fraction at the current step, in [0, 1]."""
        value = float(self.drop_schedule(self.step, self._updating))
        if value > 1 and isinstance(self.drop_schedule, Lambda):
            raise ValueError(
                f"drop_fraction must be between 0 and 1, and its function gave {value!r} at step "
                f"{self.step}"
            )
        return min(max(value, 0.0), 1.0)

    def checked_score(self, method: str, p: Tensor) -> Tensor:
        """A score by `drop_score` or `grow_score`; ValueError if it cannot rank the weights."""
        score, said = getattr(self, method)(p), f"{type(self).__name__}.{method} must return"
        if not isinstance(score, Tensor) or score.shape != p.shape:
            found = tuple(score.shape) if isinstance(score, Tensor) else type(score).__name__
            raise ValueError(f"{said} a tensor of shape {tuple(p.shape)}, not {found}")
        signed = method == "drop_score" and type(self).drop_score is not DropAndGrow.drop_score
        if signed and bool((shards.local(score) < 0).any()):
            raise ValueError(f"{said} scores of at least 0; weights with the lowest are dropped")
        return score

    def update_mask(self, p: Tensor, mask: Tensor, sparsity: float) -> Tensor:
        """Drop by `drop_score`, then `grow`."""
        options: dict[str, Any] = {"score_shaper": self.score_shaper, "compat": self.rules}
        magnitude = self.checked_score("drop_score", p)
        kept, count = make_mask_drop_minimum(magnitude, mask, self.drop_fraction, **options)
        may_exceed = self.score_shaper is not None or count > num_nonzero(sparsity, p.numel())
        if self.rules.meets_target and may_exceed:
            magnitude = torch.where(kept, magnitude, -1)
            kept &= make_mask_topk_sparsity(magnitude, sparsity, score_shaper=self.score_shaper)
            count = num_true(kept)
        del magnitude
        new = self.grow(p, kept, count, sparsity)
        if num_true(new) < min(num_true(mask), self.rules.count(sparsity, p.numel())):
            score = self.checked_score("drop_score", p)
            score = torch.where(mask & ~new, score, torch.nan)  # NaN grows nowhere
            new = make_mask_grow_maximum(score, new, sparsity, **options)
        return new

    def grow(self, p: Tensor, kept: Tensor, count: int, sparsity: float) -> Tensor:
        """Add those of the best `grow_score` to ``count`` weights of ``kept`` up to a sparsity."""
        options: dict[str, Any] = {"score_shaper": self.score_shaper, "compat": self.rules}
        return make_mask_grow_maximum(
            self.checked_score("grow_score", p), kept, sparsity, count, **options
        )

    def advance_schedules(self, due: bool) -> None:
        super().advance_schedules(due)
        self.drop_schedule.update(due)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"drop_fraction": dict(self.drop_schedule.state_dict())}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(state_dict)
        if "drop_fraction" in state_dict:
            self.drop_schedule.load_state_dict(dict(state_dict["drop_fraction"]))
