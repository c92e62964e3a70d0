"""``transform`` and ``solve_sparsity``: one call for every family."""

from __future__ import annotations

import copy
import glob
import numbers
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import nn

from sparse_lib.checks import closest
from sparse_lib.flops.model import ModelFlops, count
from sparse_lib.flops.trace import without_memory
from sparse_lib.ift import families, wide
from sparse_lib.ift.replacement import Replacement, replace_layers, transformable
from sparse_lib.ift.report import Report, make_report
from sparse_lib.ift.sizes import check_sparsity
from sparse_lib.layers import describe

_LAYERS: dict[str, type[Replacement]] = {
    "parallel": families.ParallelLayer,
    "factorized": families.FactorizedLayer,
    "doped": families.DopedLayer,
    "sltrain": families.SLTrainLayer,
}
FAMILIES: dict[str, Callable[..., tuple[nn.Module, list[str]]]] = {
    "wide": wide.apply,
    **{name: partial(replace_layers, family=name, make=make) for name, make in _LAYERS.items()},
}
"""Name to ``apply(model, sparsity, layers) -> (new model, names of its sparse weights)``."""

TOLERANCE = 1e-3
"""How far the FLOPs of a model may be from a budget that was asked for."""


def transform(
    model: nn.Module,
    family: str,
    sparsity: float,
    *,
    budget: str | int = "layer",
    layers: str | Sequence[str] | None = None,
    sequence_length: int | None = None,
    image_size: int | tuple[int, int] | None = None,
) -> tuple[nn.Module, dict[str, Any], Report]:
    """Make a larger model that, once sparse, costs the FLOPs of the given one; ``"sltrain"`` less.

    Stem, embeddings, norms, output heads, attention products, grouped (depthwise) convolutions and
    what carries ``requires_dense`` get no masks. New sizes are rounded to the nearest legal size,
    halves up; `sparse_lib.ift.families` says how far FLOPs differ by that, and the report measures
    it. At sparsity 0 the model comes back as it was, as a copy.

    Args:
        model: Any module for a family that replaces layers, which are Linear, transformers'
            ``Conv1D`` or ``Conv2d``; for ``"wide"`` a model of a known architecture
            (``sparse_lib.ift.adapters``). It is not changed.
        family: A key of ``FAMILIES``.
        sparsity: In [0, 1): sets the new sizes.
        budget: Which sparsity the masks get. ``"layer"``: the same, so that every transformed layer
            costs what it did. ``"dense"``: the one at which the whole model costs what it did, for
            widened models the higher one. A number: forward FLOPs of one sample.
        layers: A glob on module names, or several, to transform only some layers (not for
            ``"wide"``).
        sequence_length: Tokens per sample, for FLOPs; default the config's
            ``max_position_embeddings``.
        image_size: Pixels per side, for FLOPs; default the config's ``image_size``.

    Returns:
        The new model, with weights drawn from torch's global generator where layers are new: for
        ``"wide"`` all are, as its class draws them, whatever was set after the model was built;
        the ``param_filter`` and ``sparsity`` for ``sparse_lib.configure``, to which an algorithm
        and its options are added as ``config | {"algorithm": "rigl", ...}``; and the report.

    Raises:
        TypeError: If an argument has a wrong type.
        ValueError: If the family is unknown or cannot apply to the model or a layer, a sparsity is
            outside [0, 1), widths are not legal, or the budget cannot be met.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {model!r}")
    if not isinstance(family, str):
        raise TypeError(f"family must be one of {', '.join(FAMILIES)}, not {family!r}")
    if family not in FAMILIES:
        raise ValueError(f"family {family!r} is unknown; {closest(family, FAMILIES)}")
    if check_sparsity(sparsity) == 0:
        new, names = copy.deepcopy(model), [d.weight_name for d in transformable(model, layers)]
    else:
        new, names = FAMILIES[family](model, sparsity, layers)
    size = _input_size(model, sequence_length, image_size)
    before, after = _count(model, size), _count_new(new, size)
    masks = float(sparsity) if budget == "layer" else _solve(before, after, names, budget)
    config = {"param_filter": [*map(glob.escape, names)], "sparsity": masks}
    targets = dict.fromkeys(names, masks)
    report = make_report(model, new, before, after, family, sparsity, targets, size or {})
    return new, config, report


def solve_sparsity(
    model: nn.Module,
    family: str,
    sparsity: float = 0.5,
    *,
    budget: str | int = "dense",
    layers: str | Sequence[str] | None = None,
    sequence_length: int | None = None,
    image_size: int | tuple[int, int] | None = None,
) -> float:
    """The sparsity of the masks at which the whole transformed model meets a budget, within 0.1%.

    Growing a model by the layers' own identity makes the rest of it more expensive: stem, heads and
    attention grow with the width. As in the authors' code, the sizes stay those of ``sparsity`` and
    the masks make up for the rest. Nothing is built: tensors are on the meta device. Arguments and
    errors are those of `transform`; a ``sparsity`` of 0.5 is where the source's language models
    gain.

    Returns:
        The sparsity, in [0, 1).
    """
    if isinstance(model, nn.Module):
        model = without_memory(model)
    options: dict[str, Any] = {"sequence_length": sequence_length, "image_size": image_size}
    return transform(model, family, sparsity, budget=budget, layers=layers, **options)[1][
        "sparsity"
    ]


def _count_new(model: nn.Module, size: dict[str, Any] | None) -> ModelFlops | None:
    """FLOPs of a transformed model; ValueError if its own code needs a layer as it was before."""
    try:
        return _count(model, size)
    except (AttributeError, ValueError) as error:
        # count_flops raises a ValueError from what a made-up input led to.
        cause = error.__cause__ if isinstance(error, ValueError) else error
        if not isinstance(cause, AttributeError):
            raise
        name = getattr(cause.obj, "replaces", None)
        which = "a replaced layer" if name is None else f"the replaced layer {name!r}"
        raise ValueError(
            f"the model's code reads what {which} does not have ({cause}), so that layer "
            "cannot be replaced; name the others by layers="
        ) from cause


def _input_size(
    model: nn.Module, sequence_length: int | None, image_size: int | tuple[int, int] | None
) -> dict[str, Any] | None:
    """Arguments of ``count``; None where neither an argument nor the config has an input size."""
    if sequence_length is not None or image_size is not None:
        return {"sequence_length": sequence_length, "image_size": image_size}
    config = getattr(model, "config", None)
    for key, name in (("sequence_length", "max_position_embeddings"), ("image_size", "image_size")):
        if (value := getattr(config, name, None)) is not None:
            return {key: tuple(value) if isinstance(value, list) else value}
    kinds = {layer.kind for layer in describe(model)}
    return {} if kinds <= {"linear", "conv1d", "norm"} else None


def _count(model: nn.Module, size: dict[str, Any] | None) -> ModelFlops | None:
    return None if size is None else count(model, batch_size=1, **size)


def _solve(
    before: ModelFlops | None, after: ModelFlops | None, names: list[str], budget: str | int
) -> float:
    """The sparsity at which the model meets a budget; FLOPs are linear in it, up to rounding."""
    if not isinstance(budget, str | numbers.Real):
        raise TypeError(f"budget must be 'layer', 'dense' or a number of FLOPs, not {budget!r}")
    if before is None or after is None:
        raise ValueError(f"budget {budget!r} needs sequence_length or image_size to count FLOPs")
    if isinstance(budget, str) and budget != "dense":
        raise ValueError(f"budget is {budget!r}, but must be 'layer', 'dense' or a number of FLOPs")
    target = before.forward() if isinstance(budget, str) else budget
    full, least = after.forward(), after.forward(dict.fromkeys(names, 1.0))
    sparsity = 1 - (target - least) / (full - least)
    if sparsity < 0 and full >= target * (1 - TOLERANCE):
        return 0.0
    if not 0 <= sparsity < 1:
        raise ValueError(
            f"budget of {target:,} FLOPs cannot be met: the transformed model costs {least:,} "
            f"without its sparse weights and {full:,} with all of them"
        )
    got = after.forward(dict.fromkeys(names, sparsity))
    if abs(got - target) > TOLERANCE * target:
        raise ValueError(
            f"budget of {target:,} FLOPs cannot be met within {TOLERANCE:.1%}: whole weights make "
            f"{got:,} of it"
        )
    return sparsity
