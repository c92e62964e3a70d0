"""Recipes of SparseML as algorithms."""

from __future__ import annotations

import ast
import difflib
import functools
import operator
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from sparse_lib.algorithms.gmp import GMP
from sparse_lib.algorithms.static import Static
from sparse_lib.checks import check_bool, check_finite, check_fraction, check_integer, closest
from sparse_lib.core.group import Group
from sparse_lib.finetune import has_zeros
from sparse_lib.layers import default_filter, layer_kind

_ALL = ("__ALL__", "__ALL_PRUNABLE__")
_POWERS = {"linear": 1.0, "cubic": 3.0, "inverse_cubic": 1 / 3}
_GRADUAL: dict[str, dict[str, Any]] = {
    "GMPruningModifier": {},
    "MagnitudePruningModifier": {},
    "GlobalMagnitudePruningModifier": {"distribution": "global"},
}
_CONSTANT = "ConstantPruningModifier"
_COMMON = {"params", "targets", "start_epoch", "start", "end_epoch", "end", "update_frequency"}
_KEYS = {
    *_COMMON, "init_sparsity", "final_sparsity", "leave_enabled", "inter_func", "update_scheduler",
    "scheduler_args", "log_types", "mask_type", "mask_structure", "apply_globally",
    "global_sparsity", "score_type", "phased",
}  # fmt: skip
# Settings that are read with these values only: with another one masks would differ.
_FIXED: dict[str, tuple[Any, ...]] = {
    "score_type": ("magnitude",),
    "phased": (False,),
    "scheduler_args": ({}, None),
}
_OPERATORS: dict[type, Any] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}  # fmt: skip


def from_recipe(recipe: str | os.PathLike[str] | Mapping[str, Any], steps_per_epoch: int) -> Group:
    """The algorithms of a SparseML recipe.

    ``GMPruningModifier``, ``MagnitudePruningModifier``, ``GlobalMagnitudePruningModifier`` and
    ``ConstantPruningModifier`` are read, in the older list form with tags and in the newer form
    with stages, and variables in ``eval(...)`` are replaced by their values. What else a recipe has
    (epochs, learning rates, quantization, distillation) is named in a warning. Epochs become
    optimizer steps; before ``start_epoch`` a tensor is dense, and the last update is at
    ``end_epoch``, as there. Of weights pruned once none comes back.

    Args:
        recipe: Text of the YAML, the path of a file ``.yaml`` or ``.md`` that has it, with or
            without the front matter's dashes (both need PyYAML), or what it parses to.
        steps_per_epoch: Optimizer steps per epoch, at least 1.

    Returns:
        A group, to apply to model and optimizer.

    Raises:
        ValueError: If the recipe has no pruning that is known, or a key or value is not understood.
        TypeError: If a value has a wrong type.
    """
    steps_per_epoch = check_integer(steps_per_epoch, "steps_per_epoch", 1)
    if not isinstance(recipe, (str, os.PathLike, Mapping)):
        raise TypeError(f"recipe must be text, a path or a dict, not {recipe!r:.80}")
    parsed = recipe if isinstance(recipe, Mapping) else _parse(_text(recipe))
    members: list[tuple[Any, Any]] = []
    others, known = [], [*_GRADUAL, _CONSTANT]
    for name, settings in _modifiers(parsed, {}):
        if name in _GRADUAL:
            _check_settings(name, settings, _KEYS)
            members += _gradual(name, settings, steps_per_epoch, _GRADUAL[name])
            if not check_bool(settings.get("leave_enabled", True), f"leave_enabled of {name}"):
                others.append(f"leave_enabled of {name} (masks stay until sl.finalize)")
        elif name == _CONSTANT:
            _check_settings(name, settings, _COMMON | {"log_types"})
            kept = _Filter(_targets(settings), zeros=True)
            members.append((kept, Static(init_method="from_zeros")))
        elif (
            "Pruning" in name or "Sparse" in name or difflib.get_close_matches(name, known, 1, 0.8)
        ):
            raise ValueError(f"{name} is not read; {closest(name, known)}")
        else:
            others.append(name)
    if not members:
        named = ", ".join(others) or "no modifier"
        raise ValueError(f"the recipe has {named}; those that prune are {', '.join(known)}")
    if others:
        warnings.warn(f"not taken from the recipe: {', '.join(others)}", stacklevel=2)
    # What a gradual modifier prunes stays pruned, so a constant one after it has nothing to do.
    taken = [which.names for which, member in members if isinstance(member, GMP)]
    return Group(
        [(w, member) for w, member in members if isinstance(member, GMP) or w.names not in taken]
    )


def _text(recipe: str | os.PathLike[str]) -> str:
    """The text of a recipe that may be given by its path."""
    is_path = not isinstance(recipe, str) or recipe.endswith((".yaml", ".yml", ".md"))
    if isinstance(recipe, str) and ("\n" in recipe or not is_path):
        return recipe
    try:
        return Path(recipe).read_text(encoding="utf-8")
    except (OSError, TypeError, UnicodeDecodeError) as error:
        raise ValueError(f"the recipe {str(recipe)!r} cannot be read: {error}") from None


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
    try:
        parsed = yaml.load(text, Loader)
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", error)
        where = f", line {mark.line + 1}" if mark else ""
        raise ValueError(f"the recipe is not valid YAML{where}: {problem}") from None
    if parsed is None:
        raise ValueError("the recipe is empty")
    if isinstance(parsed, str):
        raise ValueError(
            f"the recipe must be YAML, or the path of a file .yaml or .md, not {parsed!r:.80}"
        )
    return parsed


def _modifiers(
    parsed: Any, variables: Mapping[str, Any]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Name and settings of every modifier, wherever it stands, with variables put in.

    The variables of a stage go before those of the whole recipe.
    """
    if isinstance(parsed, Mapping):
        own = {k: v for k, v in parsed.items() if not isinstance(v, Mapping)}
        variables = {**variables, **own}
        for key, value in parsed.items():
            if str(key).endswith("Modifier"):
                if not isinstance(value, Mapping | None):
                    raise TypeError(f"{key} must hold settings, not {value!r}")
                yield str(key), {k: _value(v, variables) for k, v in (value or {}).items()}
            else:
                yield from _modifiers(value, variables)
    elif isinstance(parsed, (list, tuple)):
        for entry in parsed:
            yield from _modifiers(entry, variables)


def _value(value: Any, variables: Mapping[str, Any], seen: tuple[str, ...] = ()) -> Any:
    """What a setting stands for: ``eval(0.5 * num_epochs)`` becomes a number."""
    if isinstance(value, Mapping):
        return {_value(k, variables, seen): _value(v, variables, seen) for k, v in value.items()}
    if isinstance(value, list):
        return [_value(entry, variables, seen) for entry in value]
    if not (isinstance(value, str) and value.startswith("eval(") and value.endswith(")")):
        return value

    def number(node: ast.AST) -> Any:
        match node:
            case ast.Constant(value=int() | float() as constant):
                return constant
            case ast.Name(id=name) if name in variables and name not in seen:
                return _value(variables[name], variables, (*seen, name))
            case ast.UnaryOp(op=op, operand=inner) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](number(inner))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](number(left), number(right))
        known = sorted(str(key) for key, held in variables.items() if not isinstance(held, list))
        raise ValueError(
            f"{value!r} of the recipe is no sum, difference, product or quotient of numbers and of "
            f"its variables {known}"
        )

    try:
        return number(ast.parse(value[5:-1].strip(), mode="eval").body)
    except (SyntaxError, TypeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"{value!r} of the recipe has no value: {error}") from None


def _check_settings(name: str, settings: Mapping[str, Any], known: set[str]) -> None:
    for key in settings:
        if key not in known:
            raise ValueError(f"{key!r} is no setting of {name}; {closest(str(key), known)}")
    for key, allowed in _FIXED.items():
        if key in settings and settings[key] not in allowed:
            value = settings[key]
            raise ValueError(f"{key} of {name} is read with {allowed[0]!r} only, not {value!r}")


def _targets(settings: Mapping[str, Any]) -> Any:
    return settings.get("params", settings.get("targets", "__ALL_PRUNABLE__"))


def _gradual(
    modifier: str, settings: Mapping[str, Any], steps_per_epoch: int, options: Mapping[str, Any]
) -> Iterator[tuple[Any, GMP]]:
    def epochs(*names: str) -> float:
        key = next((name for name in names if name in settings), None)
        if key is None:
            raise ValueError(f"{modifier} needs {names[0]}")
        return check_finite(settings[key], f"{key} of {modifier}")

    first_epoch, last_epoch = epochs("start_epoch", "start"), epochs("end_epoch", "end")
    if last_epoch < max(first_epoch, 0):
        raise ValueError(
            f"end_epoch of {modifier} must be at least start_epoch, which is {first_epoch:g}, not "
            f"{last_epoch:g}"
        )
    start, end = (round(max(epoch, 0) * steps_per_epoch) for epoch in (first_epoch, last_epoch))
    every = check_finite(settings.get("update_frequency", -1), f"update_frequency of {modifier}")
    gap = max(1, round(every * steps_per_epoch)) if every > 0 else 1
    shape = settings.get("inter_func", settings.get("update_scheduler", "cubic"))
    if shape not in [*_POWERS]:  # a list, for it may be no name
        raise ValueError(f"inter_func of {modifier} must be one of {list(_POWERS)}, not {shape!r}")
    if "final_sparsity" not in settings:
        raise ValueError(f"{modifier} needs final_sparsity")
    final = settings["final_sparsity"]
    for key in ("apply_globally", "global_sparsity"):
        if check_bool(settings.get(key, False), f"{key} of {modifier}"):
            options = {**options, "distribution": "global"}
    first = check_fraction(settings.get("init_sparsity", 0.0), f"init_sparsity of {modifier}")
    shaper = _shaper(settings.get("mask_type", settings.get("mask_structure", "unstructured")))
    by_level = final.items() if isinstance(final, Mapping) else [(final, _targets(settings))]
    for level, names in by_level:
        last = check_fraction(level, f"final_sparsity of {modifier}")
        schedule = functools.partial(_level, first, last, start, end, _POWERS[shape])
        steps = sorted({*range(max(start, 1), end, gap), max(end, 1)})
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
    if mask in ("block4", "block"):
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

    def __init__(self, names: Any, zeros: bool = False) -> None:
        self.names = [names] if isinstance(names, str) else list(names or ())
        if not all(isinstance(name, str) for name in self.names):
            raise TypeError(f"params of a pruning modifier must be names, not {names!r}")
        for name in self.names:
            try:
                re.compile(name.removeprefix("re:") if name.startswith("re:") else "")
            except re.error as error:
                raise ValueError(
                    f"params of a pruning modifier has {name!r}, which is no regular expression: "
                    f"{error}"
                ) from None
        self.zeros = zeros

    def __repr__(self) -> str:
        return f"{self.names} of the recipe" + (" that has zeros" if self.zeros else "")

    def __call__(self, name: str, param: Tensor, model: nn.Module) -> bool:
        return self._names(name, param, model) and (not self.zeros or has_zeros(name, param, model))

    def _names(self, name: str, param: Tensor, model: nn.Module) -> bool:
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
