"""Which scores compete (score shapers) and which of equal scores wins (tie breakers)."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from sparse_lib.checks import build, check_integer, closest
from sparse_lib.rules import EXACT, Rules

Undo = Callable[[Tensor], Tensor]


class ScoreShaper(ABC):
    """Decides which scores compete: calling it gives a view whose *last* dimension is one pool.

    Subclasses implement :meth:`__call__` for score tensors and for boolean masks of the same
    shape.
    """

    @abstractmethod
    def __call__(self, tensor: Tensor) -> tuple[Tensor, Undo]:
        """Reshape a tensor to pools.

        Args:
            tensor: Scores or a boolean mask, of the shape of the weights.

        Returns:
            The reshaped tensor, shape [pool] or [..., pool], and a function which takes a tensor
            of that shape back to the shape of the weights.
        """

    def check_shape(self, shape: Sequence[int]) -> None:  # noqa: B027 (most tensors have pools)
        """Raise ValueError where weights of a shape have no such pools; by default all have."""

    def count(self, sparsity: float, pool: int, *, rules: Rules = EXACT) -> int:
        """Number kept in each pool of ``pool`` elements."""
        return rules.count(sparsity, pool)


class ScoreFlattener(ScoreShaper):
    """One pool for the whole tensor (the default)."""

    def __call__(self, tensor: Tensor) -> tuple[Tensor, Undo]:
        shape = tensor.shape
        return tensor.reshape(-1), lambda result: result.reshape(shape)


class _GroupShaper(ScoreShaper):
    dim = 0
    key = "num_groups"
    """What messages call the number of groups."""

    def __init__(self, num_groups: int) -> None:
        self.num_groups = check_integer(num_groups, "num_groups", 1)

    @classmethod
    def from_setting(cls, num_groups: int, key: str) -> Self:
        """The shaper of a setting that is the number of groups; messages name its key."""
        shaper = cls(check_integer(num_groups, key, 1))
        shaper.key = key
        return shaper

    def check_shape(self, shape: Sequence[int]) -> None:
        if len(shape) <= self.dim:
            raise ValueError(
                f"{self.key}={self.num_groups} needs a tensor of at least {self.dim + 1} "
                f"dimensions, not shape {tuple(shape)}"
            )
        if shape[self.dim] % self.num_groups:
            raise ValueError(
                f"{self.key}={self.num_groups} does not divide dimension {self.dim} of shape "
                f"{tuple(shape)}"
            )

    def __call__(self, tensor: Tensor) -> tuple[Tensor, Undo]:
        self.check_shape(tensor.shape)
        moved = tensor.movedim(self.dim, 0)
        shape = moved.shape
        return (
            moved.reshape(self.num_groups, -1),
            lambda result: result.reshape(shape).movedim(0, self.dim),
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(num_groups={self.num_groups})"


class OutputGroupScoreShaper(_GroupShaper):
    """Equal counts in ``num_groups`` equal slices of dimension 0 (outputs, e.g. heads)."""

    dim = 0


class InputGroupScoreShaper(_GroupShaper):
    """Equal counts in ``num_groups`` equal slices of dimension 1 (inputs); any kernel size."""

    dim = 1


class NMScoreShaper(ScoreShaper):
    """N:M sparsity: at most ``n`` of each ``m`` consecutive weights along one dimension.

    Each group keeps ``min(n, num_nonzero(sparsity, m))``: a sparsity below ``1 - n / m`` is raised
    to it, a higher one keeps fewer. (Zhou et al., "Learning N:M fine-grained structured sparse
    neural networks from scratch", 2021.)

    Args:
        n: Largest number of non-zeros per group, from 1 to ``m``.
        m: Size of a group.
        dim: Dimension along which groups run: 1 for the inputs of ``Linear`` and ``Conv2d``,
            0 for a transposed ``Conv1D`` of transformers.
    """

    def __init__(self, n: int = 2, m: int = 4, *, dim: int = 1) -> None:
        self.n, self.m = check_integer(n, "n", 1), check_integer(m, "m", 1)
        self.dim = check_integer(dim, "dim", 0)
        if n > m:
            raise ValueError(f"{n}:{m} sparsity keeps more than there are; n must be at most m")

    def check_shape(self, shape: Sequence[int]) -> None:
        if len(shape) <= self.dim or shape[self.dim] % self.m:
            raise ValueError(
                f"{self.n}:{self.m} sparsity needs dimension {self.dim} to be divisible by "
                f"{self.m}, but the shape is {tuple(shape)}"
            )

    def __call__(self, tensor: Tensor) -> tuple[Tensor, Undo]:
        self.check_shape(tensor.shape)
        moved = tensor.movedim(self.dim, -1)
        shape = moved.shape
        return (
            moved.reshape(-1, self.m),
            lambda result: result.reshape(shape).movedim(-1, self.dim),
        )

    def count(self, sparsity: float, pool: int, *, rules: Rules = EXACT) -> int:
        return min(self.n, rules.count(sparsity, pool))

    def __repr__(self) -> str:
        return f"NMScoreShaper(n={self.n}, m={self.m}, dim={self.dim})"


class BlockScoreShaper(ScoreShaper):
    """Blocks of weights stay or go together; the sparsity is the fraction of absent blocks.

    The first two dimensions of the weights are tiled (further ones belong to the block). Where a
    dimension is not divisible, its last blocks are smaller; an average is over real weights only.

    Args:
        block: Rows and columns of a block, e.g. ``(4, 4)``; one integer means a square.
        pooling: A block's score: ``"avg"`` or ``"max"`` of its scores.
    """

    def __init__(self, block: int | Sequence[int] = (4, 4), *, pooling: str = "avg") -> None:
        sizes = tuple(block) if isinstance(block, (list, tuple)) else (block, block)
        if len(sizes) != 2:
            raise ValueError(f"block must be one or two positive integers, not {block!r}")
        if pooling not in ("avg", "max"):
            raise ValueError(f"pooling must be 'avg' or 'max', not {pooling!r}")
        self.block = (check_integer(sizes[0], "block", 1), check_integer(sizes[1], "block", 1))
        self.pooling = pooling

    def check_shape(self, shape: Sequence[int]) -> None:
        if len(shape) < 2:
            raise ValueError(
                f"BlockScoreShaper needs at least 2 dimensions, not shape {tuple(shape)}"
            )

    def __call__(self, tensor: Tensor) -> tuple[Tensor, Undo]:
        self.check_shape(tensor.shape)
        shape, (height, width) = tensor.shape, self.block
        rows, columns = -(-shape[0] // height), -(-shape[1] // width)
        pooled = tensor.reshape(*shape[:2], -1)
        pooled = pooled.any(-1) if tensor.dtype == torch.bool else self._pool(pooled, -1)
        pooled = self._pool_blocks(self._pool_blocks(pooled, 0, height), 1, width)

        def undo(result: Tensor) -> Tensor:
            grid = result.reshape(rows, columns)
            full = grid.repeat_interleave(height, 0).repeat_interleave(width, 1)
            full = full[: shape[0], : shape[1]]
            return full.reshape(*full.shape, *[1] * (len(shape) - 2)).expand(shape).contiguous()

        return pooled.reshape(-1), undo

    def _pool(self, values: Tensor, dim: int) -> Tensor:
        return values.mean(dim) if self.pooling == "avg" else values.amax(dim)

    def _pool_blocks(self, values: Tensor, dim: int, size: int) -> Tensor:
        parts = values.split(size, dim)
        if values.dtype == torch.bool:
            return torch.stack([part.any(dim) for part in parts], dim)
        return torch.stack([self._pool(part, dim) for part in parts], dim)

    def __repr__(self) -> str:
        return f"BlockScoreShaper(block={self.block}, pooling={self.pooling!r})"


SHAPERS: dict[str, type[ScoreShaper]] = {
    "flat": ScoreFlattener,
    "output_groups": OutputGroupScoreShaper,
    "input_groups": InputGroupScoreShaper,
    "n:m": NMScoreShaper,
    "block": BlockScoreShaper,
}


def make_score_shaper(spec: Any, *, key: str = "score_shaper") -> ScoreShaper | None:
    """A score shaper from what a config may hold.

    Args:
        spec: None; a name of ``SHAPERS`` or ``"N:M"`` with two numbers; a dict with ``type``, one
            of these names, and the arguments of that class; a shaper, returned as it is.
        key: Name of the setting, for messages.

    Raises:
        TypeError: If ``spec`` is none of these.
        ValueError: If the name or an argument is not allowed.

    >>> make_score_shaper("2:4"), make_score_shaper({"type": "block", "block": [4, 1]})
    (NMScoreShaper(n=2, m=4, dim=1), BlockScoreShaper(block=(4, 1), pooling='avg'))
    """
    if spec is None or isinstance(spec, ScoreShaper):
        return spec
    if not isinstance(spec, (str, Mapping)):
        raise TypeError(f"{key} must be a name, a dict with 'type' or a ScoreShaper, not {spec!r}")
    arguments: dict[str, Any] = {"type": spec} if isinstance(spec, str) else dict(spec)
    name = str(arguments.pop("type", None)).lower()
    n_m = re.fullmatch(r"(\d+):(\d+)", name)
    if n_m:
        name, arguments = "n:m", {"n": int(n_m[1]), "m": int(n_m[2]), **arguments}
    if name not in SHAPERS and ":" in name:
        raise ValueError(f"{key} {name!r} must be n:m with two integers, such as '2:4'")
    if name not in SHAPERS:
        raise ValueError(f"{key} {name!r} is unknown; {closest(name, SHAPERS)}")
    return build(SHAPERS[name], arguments, key)


class ScoreTieBreaker(ABC):
    """Decides which of several equal scores is taken, so that counts stay exact."""

    @abstractmethod
    def order(self, shape: tuple[int, ...], device: torch.device) -> Tensor | None:
        """Permutation of the last dimension, shape ``shape``, int64: earlier is preferred.

        None keeps the order of positions.
        """


class FirstTieBreaker(ScoreTieBreaker):
    """Equal scores: the lower position wins (the default)."""

    def order(self, shape: tuple[int, ...], device: torch.device) -> Tensor | None:
        return None


class RandomTieBreaker(ScoreTieBreaker):
    """Equal scores: every position is as likely, reproducibly.

    Args:
        generator: Private generator, see :func:`generator`.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def order(self, shape: tuple[int, ...], device: torch.device) -> Tensor | None:
        draw = torch.rand(
            shape, generator=self.generator, device=self.generator.device, dtype=torch.float64
        )
        return draw.argsort(-1).to(device)


def make_tie_breaker(
    spec: str | ScoreTieBreaker | None, generator: torch.Generator | None = None
) -> ScoreTieBreaker:
    """A tie breaker from None or ``"first"``, ``"random"`` (needs a generator), or itself.

    Raises:
        ValueError: If the name is unknown or ``"random"`` comes without a generator.
    """
    if isinstance(spec, ScoreTieBreaker):
        return spec
    if spec is None or spec == "first":
        return FirstTieBreaker()
    if spec == "random":
        if generator is None:
            raise ValueError("tie_breaker 'random' needs a generator, so that it is reproducible")
        return RandomTieBreaker(generator)
    raise ValueError(f"tie_breaker must be None, 'first' or 'random', not {spec!r}")
