"""CHTs: dynamic sparse training by the Cannistraci-Hebb soft rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from sparse_lib.core.drop_and_grow import DropAndGrow
from sparse_lib.core.parameter import SparseParameter
from sparse_lib.masks import shards
from sparse_lib.masks.makers import make_mask_grow_maximum, random_score, visible_magnitude
from sparse_lib.rules import rules_of
from sparse_lib.schedules import Level, Updates, make_hyperparameter_schedule

REMOVALS = ("magnitude", "relative")
GROWTHS = ("sample", "top")


class CHTs(DropAndGrow):
    """Cannistraci-Hebb training, soft rule (Zhang et al. 2025, arXiv:2501.19107).

    `DropAndGrow` without gradients: weights that stay are drawn by their strength, and
    weights that grow by how the present ones link the two neurons, `ch2_l3n`.

    1. Drop: of the present weights, those that stay are drawn without replacement with
       probabilities in proportion to ``s**(delta / (1 - delta))``, ``s`` being the magnitude or
       the relative importance `relative_importance`. ``delta = 1`` is the largest ``s``.
    2. Grow: absent positions are drawn without replacement in proportion to their
       Cannistraci-Hebb score in the mask that is left; positions that score 0 come after all
       others, at random. ``growth="top"`` takes the highest scores, as the authors' code does.

    With a sparsity of type ``sigmoid`` it is the paper's CHTss. In a convolution each weight of a
    kernel links to an input of its own; vectors grow at random.

    What the paper has beside these is left out: the first topology (bipartite receptive fields;
    here ``init_method``), the removal of neurons that have no link on one side, and heads of
    attention as networks of their own (a ``score_shaper`` keeps counts equal, not scores apart).

    Args:
        sparsity: See `SparsityAlgorithm`.
        update: See `DynamicSparsityAlgorithm`.
        init_method: See `SparsityAlgorithm`.
        delta: Number in [0, 1] or a schedule; the authors' script raises the exponent from 1 to 9,
            ``delta`` from 0.5 to 0.9.
        removal: ``"magnitude"`` or ``"relative"``.
        growth: ``"sample"`` or ``"top"``.
        **kwargs: See `DropAndGrow`.
    """

    needs_sparsity: ClassVar[bool] = True

    def __init__(
        self,
        sparsity: Level | None = None,
        update: Updates | None = None,
        init_method: str | Callable = "random",
        *,
        delta: Level = 0.5,
        removal: str = "magnitude",
        growth: str = "sample",
        **kwargs: Any,
    ) -> None:
        for key, value, allowed in (
            ("removal", removal, REMOVALS),
            ("growth", growth, GROWTHS),
        ):
            if value not in allowed:
                raise ValueError(
                    f"{key} must be one of {', '.join(map(str, allowed))}, not {value!r}"
                )
        rules = rules_of(kwargs.get("compat"))
        self.delta_schedule = make_hyperparameter_schedule(delta, key="delta", compat=rules)
        self.removal, self.growth = removal, growth
        super().__init__(sparsity, update, init_method, **kwargs)

    @property
    def delta(self) -> float:
        """How strictly the strongest weights stay at the current step, in [0, 1]."""
        return min(max(float(self.delta_schedule(self.step, self._updating)), 0.0), 1.0)

    def drop_score(self, p: Tensor) -> Tensor:
        """A key of each weight, in [0, 1]; the present weights with the highest stay."""
        strength = visible_magnitude(p)
        if self.removal == "relative" and p.dim() > 1:
            strength = self._by_matrix(p, strength, relative_importance)
        if (delta := self.delta) == 1:
            return strength
        if delta == 0:  # all weights alike, also those that are 0
            return self._race(p, "dropped", shards.by_shard(lambda s: s.double() * 0, strength))
        exponent = delta / (1 - delta)
        return self._race(p, "dropped", shards.by_shard(lambda s: exponent * _log(s), strength))

    def grow_score(self, p: Tensor) -> Tensor:
        """The Cannistraci-Hebb score of each position in the present mask."""
        return self._links(p, self.sparse_param(p).mask)

    def grow(self, p: Tensor, kept: Tensor, count: int, sparsity: float) -> Tensor:
        """Draw by the score in the mask that the drop left."""
        score = self._links(p, kept)
        positive = shards.by_shard(_log, score)
        if self.growth == "sample":
            key = self._race(p, "grown by score", positive)
        else:
            key = shards.by_shard(_squashed, positive)
        rest = random_score(p, self._draw(p, "grown at random"))
        key = shards.as_shard(
            torch.where(
                shards.local(score) > 0, 1 + shards.local(key), shards.local(rest).double()
            ),
            p.detach(),
        )
        options: dict[str, Any] = {"score_shaper": self.score_shaper, "compat": self.rules}
        return make_mask_grow_maximum(key, kept, sparsity, count, **options)

    def _links(self, p: Tensor, mask: Tensor) -> Tensor:
        if p.dim() < 2:
            return shards.by_shard(lambda rows: torch.zeros_like(rows, dtype=torch.float64), mask)
        return self._by_matrix(p, mask, ch2_l3n)

    def _by_matrix(self, p: Tensor, tensor: Tensor, function: Callable) -> Tensor:
        """Apply a function of (layers, outputs, inputs) to a tensor of a parameter's shape."""
        layout, whole = self.sparse_param(p).required_layout, shards.whole(tensor)
        matrices = layout.matrices(whole)
        result = function(matrices.flatten(3).flatten(0, 1))
        return shards.fitted(layout.restore(result.reshape(matrices.shape), whole.shape), tensor)

    def check_shape(self, sparse: SparseParameter) -> None:
        """See `SparsityAlgorithm.check_shape`."""
        super().check_shape(sparse)
        assert sparse.required_layout

    def _race(self, p: Tensor, what: str, log_weight: Tensor) -> Tensor:
        """Keys whose largest are a draw without replacement: ``log(weight) + Gumbel noise``."""
        uniform = shards.local(random_score(p, self._draw(p, what))).double().clamp(min=2.0**-26)
        noise = -torch.log(-torch.log1p(-uniform.clamp(max=1 - 2.0**-26)))
        return shards.as_shard(_squashed(shards.local(log_weight) + noise), p.detach())

    def _draw(self, p: Tensor, what: str) -> torch.Generator:
        return self.generator(f"{self.sparse_param(p).name}/{what}")

    def advance_schedules(self, due: bool) -> None:
        """See `SparsityAlgorithm.advance_schedules`."""
        super().advance_schedules(due)
        self.delta_schedule.update(due)

    def state_dict(self) -> dict[str, Any]:
        """See `DropAndGrow.state_dict`; also the state of the schedule of ``delta``."""
        return super().state_dict() | {"delta": dict(self.delta_schedule.state_dict())}

    def load_state_dict(self, state_dict: Any) -> None:
        """Restore `state_dict`.

        Raises:
            ValueError: If the state does not fit this algorithm.
        """
        super().load_state_dict(state_dict)
        if "delta" in state_dict:
            self.delta_schedule.load_state_dict(state_dict["delta"])


def _log(score: Tensor) -> Tensor:
    return score.double().log()


def _squashed(key: Tensor) -> Tensor:
    """A key of any size within [0, 1], in the same order."""
    key = key.nan_to_num(nan=1e6, posinf=1e6, neginf=-1e6)
    return (1 + key / (1 + key.abs())) / 2


def relative_importance(magnitude: Tensor) -> Tensor:
    """``|w_ij| / sum_i |w_ij| + |w_ij| / sum_j |w_ij|``; 0 where a whole sum is 0.

    Args:
        magnitude: Non-negative, (..., outputs, inputs).

    Returns:
        float64 of the same shape.
    """
    values = magnitude.double()
    by_input, by_output = values.sum(-2, keepdim=True), values.sum(-1, keepdim=True)
    shares = (values / by_input).nan_to_num(nan=0.0) + (values / by_output).nan_to_num(nan=0.0)
    return torch.where(values.isinf(), torch.inf, shares)


def ch2_l3n(mask: Tensor) -> Tensor:
    """The node-based Cannistraci-Hebb score of paths of length 3 in a bipartite network.

    For an output ``u`` and an input ``v``, every other output ``z`` that is linked to ``v`` and
    shares an input with ``u`` adds ``(1 + i_z) / (1 + e_z)``: ``i_z`` counts the inputs that ``z``
    shares with ``u``, and ``e_z`` its other inputs without ``v``. Inputs that are linked to ``u``
    and share an output with ``v`` add the same.

    Args:
        mask: Bool, (..., outputs, inputs); True where there is a link.

    Returns:
        float64 of the same shape. At present links the values mean nothing.

    >>> ch2_l3n(torch.tensor([[True, True, False], [True, True, True]]))[0, 2].item()
    7.0
    """
    links = mask.double()
    return _one_side(links) + _one_side(links.mT).mT


def _one_side(links: Tensor) -> Tensor:
    common = links @ links.mT  # (outputs u, outputs z)
    others = (links.sum(-1).unsqueeze(-2) - common - 1).clamp(min=0)
    share = torch.where(common > 0, (1 + common) / (1 + others), 0.0)
    return share @ links
