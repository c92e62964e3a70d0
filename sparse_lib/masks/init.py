"""Mask initialisation: from a weight tensor and a sparsity to a first mask."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sparse_lib.checks import closest, positional
from sparse_lib.masks import shards
from sparse_lib.masks.makers import make_mask_topk_sparsity, random_score, visible_magnitude
from sparse_lib.masks.shapers import OutputGroupScoreShaper, ScoreShaper
from sparse_lib.rules import Rules, rules_of

InitMethod = Callable[..., Tensor]
"""``f(param, sparsity, score_shaper=None, generator=None) -> mask``."""


@dataclass(frozen=True)
class BestScores:
    """First masks that keep the weights with the highest scores, in the exact number.

    ``method`` is ``"random"``, ``"topk"`` (magnitudes), ``"balanced-topk"`` (equally many of the
    largest weights in each output) or ``"snip"`` (saliencies).
    """

    method: str
    compat: str | Rules | None = None

    @property
    def default_shaper(self) -> ScoreShaper | None:
        """Which weights compete where the caller names no shaper; None means all."""
        return OutputGroupScoreShaper() if self.method == "balanced-topk" else None

    def __call__(
        self,
        param: Tensor,
        sparsity: float,
        score_shaper: ScoreShaper | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Make a mask, in pools of the shaper, at a fraction of zeros in [0, 1].

        Random scores come from the generator and are float32 whatever the dtype of ``param``.
        """
        if self.method == "random":
            score = random_score(param, generator)
        elif self.method == "snip":
            score = saliency(param)
        else:
            score = visible_magnitude(param)
        shaper = score_shaper or self.default_shaper
        return make_mask_topk_sparsity(score, sparsity, shaper, compat=self.compat)


def from_zeros(
    param: Tensor,
    sparsity: float | None = None,
    score_shaper: ScoreShaper | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Keep what is neither zero nor NaN (a sideband checkpoint's absent weights are NaN).

    The sparsity is what the weights have; the configured one is ignored. Of a pool in which a
    shaper allows fewer (``"2:4"``), the largest stay. Arguments as in `BestScores`.
    """
    weight = param.detach()
    mask = (weight != 0).logical_and_(~weight.isnan())
    if score_shaper is not None:
        mask &= make_mask_topk_sparsity(weight.abs(), 0.0, score_shaper)
    return mask


def checkerboard(
    param: Tensor,
    sparsity: float,
    score_shaper: ScoreShaper | None = None,
    generator: torch.Generator | None = None,
    *,
    compat: str | Rules | None = None,
) -> Tensor:
    """Keep evenly spread weights: the mask depends on shape and sparsity only.

    Row ``r`` of dimension 0 (of each pool, with a shaper) gets its even share of the total; the
    ``c`` weights kept of its ``n`` are those where ``floor(c * (i + 1) / n)`` grows, moved on by
    ``r`` places. At 50% this is a checkerboard. Arguments as in `BestScores`.
    """
    rules = rules_of(compat)
    if shards.is_sharded(param):
        stand_in = torch.empty(param.shape, device=shards.local(param).device)
        mask = checkerboard(stand_in, sparsity, score_shaper, compat=rules)
        return shards.fitted(mask, param)
    if score_shaper is not None:
        pools, undo = score_shaper(param.detach())
        keep = score_shaper.count(sparsity, pools.shape[-1], compat=rules)
        rows = pools.reshape(-1, pools.shape[-1])
        counts = torch.full((rows.shape[0],), keep)
        return undo(_spread(counts, rows.shape[1], param.device).reshape(pools.shape))
    num_rows = param.shape[0] if param.dim() > 1 else 1
    keep = rules.count(sparsity, param.numel())
    places = torch.arange(num_rows + 1, device="cpu") * keep // max(1, num_rows)
    num_columns = param.numel() // max(1, num_rows)
    return _spread(places.diff(), num_columns, param.device).reshape(param.shape)


def _spread(counts: Tensor, num_columns: int, device: torch.device) -> Tensor:
    row = torch.arange(counts.numel(), device=device).unsqueeze(1)
    column = (torch.arange(num_columns, device=device) - row) % max(1, num_columns)
    share = counts.to(device).unsqueeze(1)
    return (column + 1) * share // max(1, num_columns) > column * share // max(1, num_columns)


def saliency(param: Tensor) -> Tensor:
    """``abs(weight * gradient)``, how much the loss changes when a weight is removed.

    Equation 5, without its scale, of Lee et al., "SNIP: single-shot network pruning based on
    connection sensitivity", 2019. ValueError without a gradient, of a first batch of the dense
    model.
    """
    if param.grad is None:
        raise ValueError(
            "init_method or distribution 'snip' needs gradients: call loss.backward() on a dense "
            "model before the masks are made"
        )
    return (param.detach() * param.grad.detach()).abs()


_BY_SCORE = ("random", "topk", "balanced-topk", "snip")
INIT_METHODS: dict[str, InitMethod] = {name: BestScores(name) for name in _BY_SCORE}
INIT_METHODS |= {"from_zeros": from_zeros, "checkerboard": checkerboard}


def make_init_method(spec: str | InitMethod, *, compat: str | Rules | None = None) -> InitMethod:
    """An init method from its name or from a user's function.

    A function returns a mask of the shape of the weights, and may take two to four arguments, with
    or without annotations: the weights, the sparsity, the score shaper (or None), and either the
    device of the weights (if that argument is called ``device`` or annotated ``torch.device``) or a
    private ``torch.Generator``. An argument with a default is given only if its name says shaper,
    device or generator.

    Args:
        spec: A key of ``INIT_METHODS``, or a function.
        compat: How many weights stay at a sparsity.

    Returns:
        ``f(param, sparsity, score_shaper=None, generator=None)``, which returns a boolean mask.

    Raises:
        ValueError: If the name is unknown, or a function takes too few or too many arguments;
            TypeError if ``spec`` is neither.
    """
    rules = rules_of(compat)
    if isinstance(spec, str):
        name = spec.lower().replace("_", "-")
        known = {known_name.replace("_", "-"): known_name for known_name in INIT_METHODS}
        if name not in known:
            raise ValueError(f"init_method {spec!r} is unknown; {closest(spec, INIT_METHODS)}")
        method = INIT_METHODS[known[name]]
        if isinstance(method, BestScores):
            return replace(method, compat=rules)
        return method if method is from_zeros else functools.partial(method, compat=rules)
    if not callable(spec):
        raise TypeError(f"init_method must be a name or a function, not {spec!r:.80}")
    is_ours = getattr(spec, "func", spec) in (from_zeros, checkerboard)
    if is_ours or isinstance(spec, _Custom | BestScores):
        return spec
    return _Custom(spec)


class _Custom:
    """A user's function under the full signature, with its result checked."""

    def __init__(self, method: InitMethod) -> None:
        self.method = method
        self.num_arguments, self.wants_device, self.keywords = _signature(method)

    def __call__(
        self,
        param: Tensor,
        sparsity: float,
        score_shaper: ScoreShaper | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        if shards.is_sharded(param):
            stand_in = shards.whole(param.detach())
            return shards.fitted(self(stand_in, sparsity, score_shaper, generator), param)
        last = param.device if self.wants_device else generator
        arguments = (param, sparsity, score_shaper, last)[: self.num_arguments]
        given = {"shaper": score_shaper, "generator": generator, "device": param.device}
        keywords = {name: given[kind] for name, kind in self.keywords.items()}
        with torch.no_grad():
            mask = self.method(*arguments, **keywords)
        return self._checked(mask, param)

    def _checked(self, mask: Any, param: Tensor) -> Tensor:
        name = getattr(self.method, "__name__", type(self.method).__name__)
        if not isinstance(mask, Tensor) or mask.shape != param.shape:
            got = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
            raise ValueError(
                f"init_method {name} must return a mask of shape {tuple(param.shape)}, not {got}"
            )
        as_bool = mask.detach().to(param.device, torch.bool)
        given = mask.detach().to(param.device)
        if mask.dtype != torch.bool and not torch.equal(as_bool.to(mask.dtype), given):
            raise ValueError(f"init_method {name} must return a mask of zeros and ones only")
        return as_bool


def _signature(method: InitMethod) -> tuple[int, bool, dict[str, str]]:
    """Number of positional arguments, whether the fourth is a device, and arguments by name."""
    if (by_position := positional(method)) is None:  # some builtins have no signature
        return 2, False, {}
    if any(p.kind is p.VAR_POSITIONAL for p in by_position):
        return 4, False, {}
    parameters = inspect.signature(method).parameters.values()
    required = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    if len(by_position) < 2 or len(required) > 4 or any(p not in by_position for p in required):
        raise ValueError(
            f"init_method {method!r} must take 2 to 4 arguments: param, sparsity, score_shaper, "
            "and device or generator"
        )

    def kind(parameter: inspect.Parameter) -> str | None:
        """A parameter's role by its name or annotation; None where neither tells."""
        if parameter.annotation in (torch.device, "torch.device", "device"):
            return "device"
        return next((k for k in ("shaper", "generator", "device") if k in parameter.name), None)

    count = max(2, len(required))
    optional = [p for p in parameters if p not in by_position[:count]]
    known = {p.name: role for p in optional if (role := kind(p)) is not None}
    return count, count > 3 and kind(by_position[3]) == "device", known
