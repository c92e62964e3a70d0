"""Recipes of SparseML as algorithms."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from sparse_lib.algorithms.gmp import GMP
from sparse_lib.algorithms.static import Static
from sparse_lib.core.group import Group
from sparse_lib.layers import default_filter, layer_kind

_ALL = ("__ALL__", "__ALL_PRUNABLE__")
_POWERS = {"linear": 1.0, "cubic": 3.0, "inverse_cubic": 1 / 3}
_GRADUAL: dict[str, dict[str, Any]] = {
    "GMPruningModifier": {},
    "MagnitudePruningModifier": {},
    "GlobalMagnitudePruningModifier": {"distribution": "global"},
}


def from_recipe(recipe: str | Mapping[str, Any], steps_per_epoch: int) -> Group:
    """The algorithms of a SparseML recipe.

    ``GMPruningModifier``, ``MagnitudePruningModifier``, ``GlobalMagnitudePruningModifier`` and
    ``ConstantPruningModifier`` are read, in the older list form with tags and in the newer form
    with stages. What else a recipe has (epochs, learning rates, quantization, distillation) is
    named in a warning. Epochs become optimizer steps; before ``start_epoch`` a tensor is dense, and
    the last update is at ``end_epoch``, as there. Of weights pruned once none comes back.

    Args:
        recipe: Text of the YAML (PyYAML must be installed), with or without the front matter's
            dashes, or what it parses to.
        steps_per_epoch: Optimizer steps per epoch.

    Returns:
        A group, to apply to model and optimizer.

    Raises:
        ValueError: If the recipe has no pruning that is known, or a value is not understood.
    """
    parsed = _parse(recipe) if isinstance(recipe, str) else recipe
    members: list[tuple[Any, Any]] = []
    others = []
    for name, settings in _modifiers(parsed):
        if name in _GRADUAL:
            members += _gradual(settings, steps_per_epoch, _GRADUAL[name])
        elif name == "ConstantPruningModifier":
            targets = settings.get("params", settings.get("targets", "__ALL_PRUNABLE__"))
            members.append((_Filter(targets), Static(init_method="from_zeros")))
        elif "Pruning" in name or "Sparse" in name:
            raise ValueError(
                f"{name} is not read; known are {', '.join([*_GRADUAL, 'ConstantPruningModifier'])}"
            )
        else:
            others.append(name)
    if others:
        warnings.warn(f"not taken from the recipe: {', '.join(others)}", stacklevel=2)
    if not members:
        raise ValueError("the recipe has no modifier that prunes")
    return Group(members)


def _parse(text: str) -> Any:
    try:
        import yaml
    except ModuleNotFoundError:
        raise ValueError("the text of a recipe is read by PyYAML, which is not installed") from None

    class Loader(yaml.SafeLoader):
        """Reads ``!Modifier`` as a mapping with the modifier's name."""

    Loader.add_multi_constructor(
        "!", lambda loader, tag, node: {tag: loader.construct_mapping(node, deep=True)}
    )
    if (front := re.match(r"\s*---\n(.*?)\n---", text, re.DOTALL)) is not None:
        text = front[1]
    return yaml.load(text, Loader)


def _modifiers(parsed: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Name and settings of every modifier, wherever it stands."""
    if isinstance(parsed, Mapping):
        for key, value in parsed.items():
            if str(key).endswith("Modifier"):
                yield str(key), value or {}
            else:
                yield from _modifiers(value)
    elif isinstance(parsed, (list, tuple)):
        for entry in parsed:
            yield from _modifiers(entry)


def _gradual(
    settings: Mapping[str, Any], steps_per_epoch: int, options: Mapping[str, Any]
) -> Iterator[tuple[Any, GMP]]:
    def step(*names: str) -> int:
        value = next((settings[n] for n in names if n in settings), None)
        if not isinstance(value, int | float):
            raise ValueError(f"{names[0]} of a pruning modifier must be a number, not {value!r}")
        return round(value * steps_per_epoch)

    start, end = step("start_epoch", "start"), step("end_epoch", "end")
    every = settings.get("update_frequency", -1)
    gap = max(1, round(every * steps_per_epoch)) if every and every > 0 else 1
    shape = settings.get("inter_func", "cubic")
    if shape not in _POWERS:
        raise ValueError(f"inter_func must be one of {list(_POWERS)}, not {shape!r}")
    final = settings.get("final_sparsity")
    targets = settings.get("params", settings.get("targets", "__ALL_PRUNABLE__"))
    by_level: Mapping[Any, Any] = final if isinstance(final, Mapping) else {final: targets}
    for level, names in by_level.items():
        schedule = functools.partial(
            _level,
            float(settings.get("init_sparsity", 0.0)),
            float(level),
            start,
            end,
            _POWERS[shape],
        )
        steps = sorted({*range(max(start, 1), end, gap), max(end, 1)})
        shaper = _shaper(settings.get("mask_type", settings.get("mask_structure", "unstructured")))
        yield (
            _Filter(names),
            GMP(
                schedule,
                update={"steps": steps},
                init_method="topk",
                score_shaper=shaper,
                **options,
            ),
        )


def _level(initial: float, final: float, start: int, end: int, power: float, step: int) -> float:
    """Sparsity at a step: none before the start, then between the two by a power."""
    if step < start:
        return 0.0
    share = min((step - start) / max(end - start, 1), 1.0)
    return final + (initial - final) * (1 - share) ** power


def _shaper(mask: Any) -> Any:
    if mask in ("unstructured", "0:0", None):
        return None
    if mask == "block4":
        mask = [1, 4]
    if isinstance(mask, (list, tuple)):
        return {"type": "block", "block": list(mask)}
    if isinstance(mask, str) and re.fullmatch(r"\d+:\d+", mask):
        return mask
    raise ValueError(
        f"mask_type {mask!r} is not read; known are unstructured, block4, N:M and [a, b]"
    )


class _Filter:
    """Parameters by SparseML's names: full names, ``re:`` patterns, module types, or all."""

    def __init__(self, names: Any) -> None:
        self.names = [names] if isinstance(names, str) else list(names)

    def __call__(self, name: str, param: Tensor, model: nn.Module) -> bool:
        if any(entry in _ALL for entry in self.names):
            owner = model.get_submodule(name.rpartition(".")[0])
            return default_filter(name, param, model) and layer_kind(owner) is not None
        module = name.rpartition(".")[0]
        for entry in self.names:
            if entry.startswith("re:"):
                pattern = entry.removeprefix("re:")
                if re.match(pattern, name) or (re.match(pattern, module) and param.dim() > 1):
                    return True
            elif entry == name or (param.dim() > 1 and self._is_type(entry, module, model)):
                return True
        return False

    @staticmethod
    def _is_type(entry: str, path: str, model: nn.Module) -> bool:
        return entry == path or type(model.get_submodule(path)).__name__ == entry
