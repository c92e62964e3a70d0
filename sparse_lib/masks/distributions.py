"""Distributions: how one sparsity is shared among tensors, before training.

Each function takes weights by name and returns a sparsity by name. Except for ``uniform`` (and
``map``), the total of the counts matches the wanted sparsity over all tensors given.
"""

from __future__ import annotations

import fnmatch
import functools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from sparse_lib.checks import check_arguments, check_finite, check_fraction, closest
from sparse_lib.masks.counts import allot, num_nonzero, num_true
from sparse_lib.masks.init import saliency
from sparse_lib.masks.makers import make_masks_global_topk, visible_magnitude
from sparse_lib.rules import Rules, rules_of

Shapes = Mapping[str, Sequence[int]]
_NOT_SET = ("shapes", "weights", "sparsity", "experts", "kernels", "scores")  # by a config


def uniform(
    shapes: Shapes, sparsity: float, *, first: float | None = None, last: float | None = None
) -> dict[str, float]:
    """The same sparsity everywhere.

    Args:
        shapes: Name to weight shape, from input to output.
        sparsity: In [0, 1].
        first: Sparsity of the first tensor instead (0 in Evci et al. 2020 for ImageNet), or None.
        last: Sparsity of the last tensor instead, or None.

    Returns:
        Name to sparsity. The other tensors do not make up for ``first`` and ``last``.
    """
    check_fraction(sparsity, "sparsity")
    fixed = _fixed(shapes, first, last)
    return {name: fixed.get(name, float(sparsity)) for name in shapes}


def er(
    shapes: Shapes,
    sparsity: float,
    *,
    power_scale: float = 1.0,
    first: float | None = None,
    last: float | None = None,
    experts: Collection[str] = (),
    kernels: bool = False,
) -> dict[str, float]:
    """Erdős-Rényi: density proportional to ``((n_in + n_out) / (n_in * n_out))**power_scale``.

    ``n_in`` and ``n_out`` are the first two dimensions (Mocanu et al. 2018). With ``kernels`` it is
    Erdős-Rényi-kernel, `erk`, where all dimensions are summed and multiplied, kernel sizes included
    (Evci et al., "Rigging the lottery", 2020, section 3). A tensor whose density would pass 1 is
    dense, and the rest are solved again, so that the total stays exact.

    Args:
        shapes: Name to weight shape, from input to output.
        sparsity: Over all tensors together, in [0, 1].
        power_scale: Exponent, at least 0; 0 is uniform.
        first: Fixed sparsity of the first tensor, or None; the rest make up for it.
        last: Fixed sparsity of the last tensor, or None; the rest make up for it.
        experts: Names of tensors whose first dimension counts experts, each a layer of its own.
        kernels: Whether kernel sizes count, as in `erk`.

    Returns:
        Name to sparsity.

    Raises:
        ValueError: If ``first`` and ``last`` leave no solution.

    >>> erk({"conv": (4, 4, 1, 1), "fc": (4, 100)}, 0.5)["conv"]
    0.0
    """
    check_fraction(sparsity, "sparsity")
    check_finite(power_scale, "distribution.power_scale", least=0)
    numel = {name: math.prod(shape) for name, shape in shapes.items()}
    strength = {}
    for name, shape in shapes.items():
        sizes = tuple(shape)[name in experts :][: None if kernels else 2] or (1,)
        strength[name] = (sum(sizes) / max(1, math.prod(sizes))) ** power_scale
    fixed = _fixed(shapes, first, last)
    budget = num_nonzero(sparsity, sum(numel.values()))
    budget -= sum(num_nonzero(value, numel[name]) for name, value in fixed.items())
    room = {name: size for name, size in numel.items() if size and name not in fixed}
    if not 0 <= budget <= sum(room.values()):
        raise ValueError(
            f"sparsity {sparsity!r} cannot be met: 'first' and 'last' leave {budget} non-zeros "
            f"for {sum(room.values())} other weights"
        )
    counts = allot(budget, strength, room, room, least=1)
    found = fixed | {name: 1.0 - count / numel[name] for name, count in counts.items()}
    return {name: found.get(name, float(sparsity)) for name in shapes}


erk = functools.partial(er, kernels=True)


def global_(
    weights: Mapping[str, Tensor],
    sparsity: float,
    *,
    score: Callable[[Tensor], Tensor] = visible_magnitude,
) -> dict[str, float]:
    """Sparsities from pruning all tensors together by a score: each keeps one weight at least.

    An algorithm's ``distribution="global"`` ranks by magnitude whatever its own criterion is.
    """
    check_fraction(sparsity, "sparsity")
    masks = make_masks_global_topk({n: score(weight) for n, weight in weights.items()}, sparsity)
    return {
        name: 1.0 - num_true(mask) / mask.numel() if mask.numel() else float(sparsity)
        for name, mask in masks.items()
    }


def from_map(
    shapes: Iterable[str], sparsity: float | None, sparsity_map: Mapping[str, float]
) -> dict[str, float]:
    """A sparsity per tensor, by glob of its name; the first match wins.

    Args:
        shapes: Names.
        sparsity: For names without a match; None makes those an error.
        sparsity_map: Glob to sparsity in [0, 1].

    Raises:
        ValueError: If a name has no sparsity, or a glob matches no name; or, as TypeError, if the
            map holds something else.
    """
    names = list(shapes)
    _check_map(sparsity_map)
    for glob in sparsity_map:
        if not any(fnmatch.fnmatchcase(name, glob) for name in names):
            raise ValueError(f"{glob!r} matches no parameter; {closest(glob, names)}")
    result = {}
    for name in names:
        values = (v for glob, v in sparsity_map.items() if fnmatch.fnmatchcase(name, glob))
        chosen: float | None = next(values, sparsity)
        if chosen is None:
            raise ValueError(f"the map gives no sparsity for {name!r}")
        result[name] = float(chosen)
    return result


def _check_map(sparsity_map: Any) -> None:
    if not isinstance(sparsity_map, Mapping):
        raise TypeError(f"distribution.sparsity_map must be a dict, not {sparsity_map!r}")
    for glob, value in sparsity_map.items():
        if not isinstance(glob, str):
            raise TypeError(f"distribution must have globs of names as keys, not {glob!r}")
        check_fraction(value, f"distribution: sparsity of {glob!r}")


def _fixed(shapes: Shapes, first: float | None, last: float | None) -> dict[str, float]:
    names = list(shapes)
    fixed = {}
    if names and first is not None:
        fixed[names[0]] = check_fraction(first, "distribution.first")
    if names and last is not None:
        fixed[names[-1]] = check_fraction(last, "distribution.last")
    return fixed


DISTRIBUTIONS: dict[str, Callable[..., dict[str, float]]] = {
    "uniform": uniform,
    "er": er,
    "erk": erk,
    "global": global_,
    "snip": functools.partial(global_, score=saliency),
    "map": from_map,
}


def distribute(
    spec: str | Mapping[str, Any],
    weights: Mapping[str, Tensor],
    sparsity: float,
    *,
    compat: str | Rules | None = None,
    experts: Collection[str] = (),
) -> dict[str, float]:
    """Sparsity per tensor, in [0, 1], by the name of a distribution.

    Args:
        spec: A key of ``DISTRIBUTIONS``; a dict with ``type`` and that function's arguments; or a
            map of globs to sparsities.
        weights: Name to weights, from input to output.
        sparsity: Wanted sparsity, in [0, 1].
        compat: Which distributions there are.
        experts: Names of weights whose first dimension counts experts.

    Raises:
        ValueError: If the name or an argument is unknown, or a value is not allowed; TypeError if
            ``spec`` is neither a name nor a dict, or a map has a value that is no number.
    """
    name, arguments = parse(spec, compat=compat)
    given: Any = weights
    if name in ("er", "erk"):
        arguments["experts"] = experts
        given = {key: tuple(weight.shape) for key, weight in weights.items()}
    try:
        return DISTRIBUTIONS[name](given, sparsity, **arguments)
    except TypeError as error:
        raise ValueError(f"distribution {name!r}: {error}") from error


def parse(
    spec: str | Mapping[str, Any], *, compat: str | Rules | None = None
) -> tuple[str, dict[str, Any]]:
    """Name and arguments of a distribution, checked as far as they can be without weights.

    Arguments and errors are those of `distribute`.
    """
    rules = rules_of(compat)
    if not isinstance(spec, (str, Mapping)):
        raise TypeError(f"distribution must be a name or a dict, not {spec!r}")
    arguments: dict[str, Any] = {"type": spec} if isinstance(spec, str) else dict(spec)
    if "type" not in arguments:
        arguments = {"type": "map", "sparsity_map": arguments}
    name = str(arguments.pop("type")).lower()
    if name not in DISTRIBUTIONS:
        raise ValueError(f"distribution {name!r} is unknown; {closest(name, DISTRIBUTIONS)}")
    if rules.distributions is not None and name not in rules.distributions:
        raise ValueError(f"distribution {name!r} is not known to compat={rules.name!r}")
    check_arguments(DISTRIBUTIONS[name], arguments, f"distribution {name!r}", _NOT_SET)
    _fixed({"first": (), "last": ()}, arguments.get("first"), arguments.get("last"))
    check_finite(arguments.get("power_scale", 1.0), "distribution.power_scale", least=0)
    if name == "map":
        _check_map(arguments["sparsity_map"])
    return name, arguments
