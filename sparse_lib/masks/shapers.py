"""Score shapers: which scores compete."""

from __future__ import annotations

import copy
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from sparse_lib.checks import build, check_choice, check_integer, closest
from sparse_lib.layers import Layout
from sparse_lib.rules import Rules, rules_of

Undo = Callable[[Tensor], Tensor]
_REMAINDERS = ("refuse", "dense")


class ScoreShaper(ABC):
    """Decides which scores compete: calling it gives a view whose *last* dimension is one pool.

    Subclasses implement `__call__` for score tensors and for boolean masks of the same
    shape.
    """

    remainder: str = "refuse"
    """``"dense"`` if weights without such pools stay dense, instead of an error."""

    @abstractmethod
    def __call__(self, tensor: Tensor) -> tuple[Tensor, Undo]:
        """Reshape scores, or a boolean mask, of the shape of the weights to pools.

        Returns:
            The reshaped tensor, shape [pool] or [..., pool], and a function which takes a tensor of
            that shape back to the shape of the weights.
        """

    def for_layer(self, layout: Layout | None) -> ScoreShaper:
        """A shaper of the same pools in a layer's weights, wherever its outputs and inputs are.

        ``layout`` is what `sparse_lib.layers.layout_of` says; ValueError if it is needed and
        unknown.
        """
        return self

    def check_shape(self, shape: Sequence[int]) -> None:  # noqa: B027 (most tensors have pools)
        """Raise ValueError where weights of a shape have no such pools; by default all have."""

    def check_mask(self, name: str, mask: Tensor) -> None:  # noqa: B027 (most masks will do)
        """Raise ValueError where a mask that a weight has already is none of these pools."""

    def count(self, sparsity: float, pool: int, *, compat: str | Rules | None = None) -> int:
        """Number kept in each pool of ``pool`` elements."""
        return rules_of(compat).count(sparsity, pool)


class ScoreFlattener(ScoreShaper):
    """One pool for the whole tensor (the default)."""

    def __call__(self, tensor: Tensor) -> tuple[Tensor, Undo]:
        shape = tensor.shape
        return tensor.reshape(-1), lambda result: result.reshape(shape)


class _LayerShaper(ScoreShaper):
    """Base of shapers that tell outputs from inputs; without a layer, outputs come first."""

    layout = Layout()

    def for_layer(self, layout: Layout | None) -> Self:
        if layout is None:
            raise ValueError(
                f"{self!r} needs to know which dimensions are outputs and inputs, and this is no "
                "layer of a known kind; leave it out by param_filter (a module of experts may say "
                "so by is_transposed: False for weights of [experts, outputs, inputs])"
            )
        bound = copy.copy(self)
        bound.layout = layout
        return bound

    def __call__(self, tensor: Tensor) -> tuple[Tensor, Undo]:
        self.check_shape(tensor.shape)
        pools, undo = self._pools(self.layout.matrices(tensor))
        return pools, lambda result: self.layout.restore(undo(result), tensor.shape)

    @abstractmethod
    def _pools(self, matrices: Tensor) -> tuple[Tensor, Undo]:
        """Pools of [experts, groups, outputs, inputs, kernel positions], and the way back."""


class OutputGroupScoreShaper(_LayerShaper):
    """Equal counts in ``num_groups`` equal slices of a layer's outputs (e.g. heads).

    Of experts that are stored together, each has that many slices.

    Args:
        num_groups: Number of slices; None makes each output a slice.
        remainder: ``"refuse"`` or ``"dense"``, see `NMScoreShaper`.
    """

    key = "num_groups"
    """The key of the number of groups in messages."""
    _what = "outputs"

    def __init__(self, num_groups: int | None = None, *, remainder: str = "refuse") -> None:
        self.num_groups = None if num_groups is None else check_integer(num_groups, "num_groups", 1)
        self.remainder = check_choice(remainder, "remainder", _REMAINDERS)

    @classmethod
    def from_setting(cls, num_groups: int, key: str) -> Self:
        """The shaper of a setting that is the number of groups; messages name its key."""
        shaper = cls(check_integer(num_groups, key, 1))
        shaper.key = key
        return shaper

    def _size(self, shape: Sequence[int]) -> int:
        _, groups, outputs, _, _ = self.layout.sizes(tuple(shape))
        return groups * outputs

    def check_shape(self, shape: Sequence[int]) -> None:
        if self.num_groups is not None and (size := self._size(shape)) % self.num_groups:
            raise ValueError(
                f"{self.key}={self.num_groups} does not divide the {size} {self._what} of shape "
                f"{tuple(shape)}"
            )

    def _pools(self, matrices: Tensor) -> tuple[Tensor, Undo]:
        experts, groups, outputs, inputs, positions = matrices.shape
        slices = experts * (self.num_groups or groups * outputs)
        size = matrices.numel() // max(slices, 1)
        return matrices.reshape(slices, size), lambda result: result.reshape(matrices.shape)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(num_groups={self.num_groups})"


class InputGroupScoreShaper(OutputGroupScoreShaper):
    """Equal counts in ``num_groups`` equal slices of a layer's inputs, kernels included.

    Arguments as of `OutputGroupScoreShaper`. A convolution with groups, whose inputs are
    divided already, takes None alone: each input of each group.
    """

    _what = "inputs"

    def _size(self, shape: Sequence[int]) -> int:
        if len(shape) < 2:
            raise ValueError(f"{self!r} needs at least 2 dimensions, not shape {tuple(shape)}")
        if self.layout.groups > 1:
            raise ValueError(f"{self!r} takes no convolution with groups={self.layout.groups}")
        return self.layout.sizes(tuple(shape))[3]

    def _pools(self, matrices: Tensor) -> tuple[Tensor, Undo]:
        inputs_first = matrices.transpose(2, 3)
        pools, undo = super()._pools(inputs_first)
        return pools, lambda result: undo(result).transpose(2, 3)


class NMScoreShaper(_LayerShaper):
    """N:M sparsity: at most ``n`` of each ``m`` consecutive inputs of an output.

    Each group keeps ``min(n, num_nonzero(sparsity, m))``: a sparsity below ``1 - n / m`` is raised
    to it, a higher one keeps fewer. In a convolution the groups run along the input channels, as
    hardware needs it. (Zhou et al., "Learning N:M fine-grained structured sparse neural networks
    from scratch", 2021.)

    Args:
        n: Largest number of non-zeros per group, from 1 to ``m``.
        m: Size of a group.
        remainder: What becomes of layers whose inputs ``m`` does not divide: ``"refuse"`` is an
            error, ``"dense"`` leaves them dense, and a warning names them.
    """

    def __init__(self, n: int = 2, m: int = 4, *, remainder: str = "refuse") -> None:
        self.n, self.m = check_integer(n, "n", 1), check_integer(m, "m", 1)
        self.remainder = check_choice(remainder, "remainder", _REMAINDERS)
        if n > m:
            raise ValueError(f"{n}:{m} sparsity keeps more than there are; n must be at most m")

    def check_shape(self, shape: Sequence[int]) -> None:
        inputs = self.layout.sizes(tuple(shape))[3]
        if len(shape) < 2 or inputs % self.m:
            raise ValueError(
                f"{self.n}:{self.m} sparsity needs inputs divisible by {self.m}, but shape "
                f"{tuple(shape)} has {inputs} of each output; leave the layer out, or give "
                f'score_shaper={{"type": "{self.n}:{self.m}", "remainder": "dense"}}'
            )

    def _pools(self, matrices: Tensor) -> tuple[Tensor, Undo]:
        inputs_last = matrices.transpose(3, 4)
        return (
            inputs_last.reshape(-1, self.m),
            lambda result: result.reshape(inputs_last.shape).transpose(3, 4),
        )

    def count(self, sparsity: float, pool: int, *, compat: str | Rules | None = None) -> int:
        return min(self.n, super().count(sparsity, pool, compat=compat))

    def check_mask(self, name: str, mask: Tensor) -> None:
        self.check_shape(mask.shape)
        if bool((self(mask)[0].sum(-1) > self.n).any()):
            raise ValueError(
                f"{name!r} has a mask already, which is not {self.n}:{self.m}; to keep its zeros, "
                "call sparse_lib.finalize(model) and give init_method='from_zeros'"
            )

    def __repr__(self) -> str:
        return f"NMScoreShaper(n={self.n}, m={self.m})"


class BlockScoreShaper(_LayerShaper):
    """Blocks of weights stay or go together; the sparsity is the fraction of absent blocks.

    Outputs and inputs are tiled (kernel positions belong to the block). Where a dimension is not
    divisible, its last blocks are smaller; an average is over real weights only.

    Args:
        block: Outputs and inputs of a block, e.g. ``(4, 4)``; one integer means a square.
        pooling: A block's score: ``"avg"`` or ``"max"`` of its scores.
    """

    def __init__(self, block: int | Sequence[int] = (4, 4), *, pooling: str = "avg") -> None:
        sizes = tuple(block) if isinstance(block, (list, tuple)) else (block, block)
        if len(sizes) != 2:
            raise ValueError(f"block must be one or two positive integers, not {block!r}")
        self.block = (check_integer(sizes[0], "block", 1), check_integer(sizes[1], "block", 1))
        self.pooling = check_choice(pooling, "pooling", ("avg", "max"))

    def check_shape(self, shape: Sequence[int]) -> None:
        if len(shape) < 2:
            raise ValueError(
                f"BlockScoreShaper needs at least 2 dimensions, not shape {tuple(shape)}"
            )

    def _pools(self, matrices: Tensor) -> tuple[Tensor, Undo]:
        height, width = self.block
        pooled = self._pool(matrices, -1)
        pooled = self._pool_blocks(self._pool_blocks(pooled, 2, height), 3, width)

        def undo(result: Tensor) -> Tensor:
            full = result.reshape(pooled.shape)
            full = full.repeat_interleave(height, 2)[:, :, : matrices.shape[2]]
            full = full.repeat_interleave(width, 3)[..., : matrices.shape[3]]
            return full.unsqueeze(-1).expand(matrices.shape).contiguous()

        return pooled.reshape(-1), undo

    def _pool(self, values: Tensor, dim: int) -> Tensor:
        is_mean = self.pooling == "avg" and values.dtype != torch.bool
        return values.mean(dim) if is_mean else values.amax(dim)

    def _pool_blocks(self, values: Tensor, dim: int, size: int) -> Tensor:
        return torch.stack([self._pool(part, dim) for part in values.split(size, dim)], dim)

    def __repr__(self) -> str:
        return f"BlockScoreShaper(block={self.block}, pooling={self.pooling!r})"


SHAPERS: dict[str, type[ScoreShaper]] = {
    "flat": ScoreFlattener,
    "output_groups": OutputGroupScoreShaper,
    "input_groups": InputGroupScoreShaper,
    "n:m": NMScoreShaper,
    "block": BlockScoreShaper,
}


def make_score_shaper(spec: Any) -> ScoreShaper | None:
    """A score shaper from what a config may hold.

    Args:
        spec: None; a name of ``SHAPERS`` or ``"N:M"`` with two numbers; a dict with ``type``, one
            of these names, and the arguments of that class; a shaper, returned as it is.

    Raises:
        TypeError: If ``spec`` is none of these.
        ValueError: If the name or an argument is not allowed.

    >>> make_score_shaper("2:4"), make_score_shaper({"type": "block", "block": [4, 1]})
    (NMScoreShaper(n=2, m=4), BlockScoreShaper(block=(4, 1), pooling='avg'))
    """
    if spec is None or isinstance(spec, ScoreShaper):
        return spec
    if not isinstance(spec, (str, Mapping)):
        raise TypeError(
            f"score_shaper must be a name, a dict with 'type' or a ScoreShaper, not {spec!r}"
        )
    arguments: dict[str, Any] = {"type": spec} if isinstance(spec, str) else dict(spec)
    name = str(arguments.pop("type", None)).lower()
    n_m = re.fullmatch(r"(\d+):(\d+)", name)
    if n_m:
        name, arguments = "n:m", {"n": int(n_m[1]), "m": int(n_m[2]), **arguments}
    if name not in SHAPERS and ":" in name:
        raise ValueError(f"score_shaper {name!r} must be n:m with two integers, such as '2:4'")
    if name not in SHAPERS:
        raise ValueError(f"score_shaper {name!r} is unknown; {closest(name, SHAPERS)}")
    return build(SHAPERS[name], arguments, "score_shaper")
