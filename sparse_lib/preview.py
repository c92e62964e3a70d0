"""The effect of a sparsity config on a model, before anything is trained."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sparse_lib import tables
from sparse_lib.algorithms.static import Static
from sparse_lib.checks import check_integer
from sparse_lib.configure import configure
from sparse_lib.core.algorithm import SparsityAlgorithm
from sparse_lib.core.codes import is_quantized
from sparse_lib.core.dynamic import DynamicSparsityAlgorithm
from sparse_lib.core.group import Group
from sparse_lib.core.mistakes import unreached
from sparse_lib.core.parameter import IS_PLANNED, SparseParameter
from sparse_lib.core.selection import bytes_of_mask
from sparse_lib.flops.model import ModelFlops, count
from sparse_lib.flops.trace import without_memory
from sparse_lib.layers import DENSE_ROLES, LayerDescription, describe, why_dense
from sparse_lib.masks.counts import num_nonzero, num_true
from sparse_lib.masks.shapers import (
    InputGroupScoreShaper,
    NMScoreShaper,
    OutputGroupScoreShaper,
    ScoreFlattener,
)
from sparse_lib.schedules import Constant

_BY_SHAPE = ScoreFlattener | OutputGroupScoreShaper | InputGroupScoreShaper | NMScoreShaper


@dataclass(frozen=True, slots=True)
class PlannedParameter:
    """One parameter of a plan: sparse by an algorithm, or dense, and the reason.

    Attributes:
        kind: Kind of its layer, or ``"bias"``.
        sparsity: Target at the first step, in [0, 1].
        final_sparsity: Target at the last mask update; None if that depends on a number of steps
            which was not given.
        num_nonzero: Exact number of elements that the first mask keeps.
        mask_bytes: Memory that its mask takes for good: a byte per element, another one once it has
            changed (its history), and for tensors up to 2**20 elements the mask in words as wide as
            the weight's, which speed masking up.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    algorithm: str | None
    reason: str
    sparsity: float
    final_sparsity: float | None
    num_weights: int
    num_nonzero: int
    mask_bytes: int = 0


@dataclass(frozen=True)
class Plan:
    """A table of a model's parameters in order, with warnings and FLOPs (2 per multiply-add).

    Warnings are sentences about what looks like a mistake; ``flops`` is None if no size of a batch
    was given.
    """

    parameters: tuple[PlannedParameter, ...]
    warnings: tuple[str, ...]
    flops: ModelFlops | None = None

    @property
    def num_parameters(self) -> int:
        """Parameters of the model, tied ones once."""
        return sum(row.num_weights for row in self.parameters)

    @property
    def num_nonzero(self) -> int:
        """Parameters that the first masks keep."""
        return sum(row.num_nonzero for row in self.parameters)

    @property
    def mask_bytes(self) -> int:
        """Memory of all masks, see `PlannedParameter`; an algorithm may keep more beside."""
        return sum(row.mask_bytes for row in self.parameters)

    def records(self) -> list[dict[str, Any]]:
        """One row per parameter."""
        return [asdict(row) for row in self.parameters]

    def flops_records(self) -> list[dict[str, Any]]:
        """Inference and training-step FLOPs: dense, at the first and (if known) the last step."""
        if self.flops is None:
            return []
        rows = self.parameters
        start = {row.name: 1 - row.num_nonzero / max(row.num_weights, 1) for row in rows}
        cases: dict[str, dict[str, float]] = {"dense": {}, "start": start}
        if all(row.final_sparsity is not None for row in rows):
            moved = [r for r in rows if r.final_sparsity != r.sparsity]
            cases["end"] = start | {row.name: row.final_sparsity or 0.0 for row in moved}
        found = []
        for when, levels in cases.items():
            named = {name: value for name, value in levels.items() if value}
            step = partial(self.flops.training_step, named)
            kinds = {"inference_flops": self.flops.forward(named), "training_flops": step()}
            kinds["training_flops_dense_weight_grad"] = step(dense_weight_grad=True)
            found.append({"when": when, **kinds})
        return found

    def to_markdown(self) -> str:
        """Summary, tables and warnings as Markdown."""
        share = 1 - self.num_nonzero / max(self.num_parameters, 1)
        summary = (
            f"{self.num_parameters:,} parameters, {self.num_nonzero:,} non-zero "
            f"({share:.2%} of the whole model is sparse); masks take {self.mask_bytes:,} bytes."
        )
        rows = [
            (
                *(row.name, row.kind, " x ".join(map(str, row.shape)), f"{row.sparsity:.4g}"),
                "?" if row.final_sparsity is None else f"{row.final_sparsity:.4g}",
                *(f"{row.num_nonzero:,} / {row.num_weights:,}", row.reason),
            )
            for row in self.parameters
            if len(row.shape) > 1 or row.algorithm
        ]
        heading = ("parameter", "kind", "shape", "sparsity", "final", "non-zero", "why")
        lines = [summary, "", *tables.markdown(heading, rows)]
        if self.flops is not None:
            keys = ("inference_flops", "training_flops", "training_flops_dense_weight_grad")
            flops = [(r["when"], *(f"{r[key]:.4g}" for key in keys)) for r in self.flops_records()]
            kinds = ("FLOPs per batch", "inference", "training", "with dense weight gradients")
            lines += ["", *tables.markdown(kinds, flops)]
        lines += ["", *(f"Warning: {warning}" for warning in self.warnings)]
        return "\n".join(lines).rstrip() + "\n"

    def __str__(self) -> str:
        return self.to_markdown()


def plan(
    model: nn.Module,
    config: Any,
    *,
    num_steps: int | None = None,
    batch_size: int | None = None,
    sequence_length: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    inputs: Mapping[str, Tensor] | None = None,
) -> Plan:
    """Says what a config makes sparse in a model, and what that saves. The model is not changed.

    Where counts follow from shapes (``init_method`` random, topk or checkerboard, and no
    distribution that reads weights) nothing is copied or drawn, and the model may be on the meta
    device. Elsewhere the masks are really made, on a copy. Counts are exact either way.

    Args:
        model: The model.
        config: What ``configure`` takes, or an algorithm, which is planned as its ``apply`` would
            do it and left as it is.
        num_steps: Optimizer steps of the run, at least 1, to tell the sparsity at its end.
        batch_size: Samples per batch, by default 1. FLOPs are counted if this or one of the
            following is given; for a model of features, (B, F), it is all that is needed.
        sequence_length: Tokens per sample of a language model.
        image_size: Pixels per side of a vision model.
        inputs: Keyword arguments of any other model, as `sparse_lib.count_flops` takes them.

    Raises:
        TypeError: If ``model`` is no module, or a value of the config has a wrong type.
        ValueError: If the config is wrong; the message names the key. If the model is on the meta
            device, and counts do not follow from shapes.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"plan takes a torch module, not {model!r}")
    if num_steps is not None:
        num_steps = check_integer(num_steps, "num_steps", 1)
    is_algorithm = isinstance(config, SparsityAlgorithm)
    algorithm = copy.deepcopy(config) if is_algorithm else configure(config)
    sparse_rows: dict[str, dict[str, Any]] = {}
    notes: list[str] = []
    by_shape = algorithm is not None and counts_follow_from_shapes(algorithm, model)
    if algorithm is not None:
        if by_shape:
            twin = _planned_twin(model, algorithm)
        else:
            twin = copy.deepcopy(model)
            for parameter, original in zip(twin.parameters(), model.parameters(), strict=True):
                parameter.grad = original.grad  # which SNIP reads and deepcopy leaves behind
                parameter.requires_dense = getattr(original, "requires_dense", False)  # type: ignore[attr-defined]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            algorithm.apply(twin)
        notes = [str(warning.message) for warning in caught]
        for member in algorithm.algorithms:
            sparse_rows |= _sparse_rows(member, num_steps, by_shape)
        notes += [] if num_steps is None else unreached(algorithm, num_steps)
    described = describe(model)
    layers = {layer.weight_name: layer for layer in described}
    ties: dict[str, list[str]] = {}
    for layer in described:
        if layer.tied_to is not None:
            ties.setdefault(layer.tied_to, []).append(layer.weight_name)
    rows = []
    for name, parameter in model.named_parameters():
        found = sparse_rows.get(name)
        if found is None:
            reason = why_dense(name, parameter, model) or "no filter matched"
            found = {"algorithm": None, "reason": reason, "sparsity": 0.0, "final_sparsity": 0.0}
            found["num_nonzero"] = parameter.numel()
        found["reason"] += f" (also {', '.join(ties[name])})" if name in ties else ""
        facts: dict[str, Any] = {"name": name, "shape": tuple(parameter.shape)}
        facts |= {"kind": layers[name].kind if name in layers else "bias"}
        rows.append(PlannedParameter(**facts, **found, num_weights=parameter.numel()))
    flops, size = None, {"sequence_length": sequence_length, "image_size": image_size}
    if any(value is not None for value in (batch_size, inputs, *size.values())):
        flops = count(model, inputs, batch_size=1 if batch_size is None else batch_size, **size)  # type: ignore[arg-type]
    notes += [n for row in rows for n in _warnings(row, layers.get(row.name), ties.get(row.name))]
    return Plan(parameters=tuple(rows), warnings=tuple(notes), flops=flops)


def _final_targets(algorithm: SparsityAlgorithm, num_steps: int | None) -> dict[str, float | None]:
    """Targets at the last mask update of a run; the algorithm's schedules move on to it."""
    start: dict[str, float | None] = {
        n: float(s.target) for n, s in algorithm.sparse_params.items()
    }
    levels = algorithm.sparsity
    is_fixed = all(isinstance(schedule, Constant) for schedule in levels.schedules)
    if isinstance(algorithm, Static) or (is_fixed and not algorithm.is_dense_after(0)):
        return start
    if num_steps is None:
        return dict.fromkeys(start)
    steps = range(1, num_steps + 1)
    if isinstance(algorithm, DynamicSparsityAlgorithm):
        steps = [step for step in steps if algorithm.is_update_step(step)]  # type: ignore[assignment]
    if not steps:
        return start
    if algorithm.is_dense_after(len(steps)):
        return dict.fromkeys(start, 0.0)
    for _ in steps[:-1]:
        levels.advance(True)
    return dict(levels.targets(steps[-1], is_update_step=True))


def counts_follow_from_shapes(algorithm: SparsityAlgorithm | Group, model: nn.Module) -> bool:
    """Whether an algorithm's first masks have counts that no weight's value changes."""
    for member in algorithm.algorithms:
        spread = member.sparsity.distribution
        if isinstance(spread, Mapping):
            spread = spread.get("type")
        shaped = isinstance(member.score_shaper, _BY_SHAPE | None)
        if (
            member.sparse_params
            or member.init_method not in ("random", "topk", "checkerboard")
            or spread not in (None, "uniform", "er", "erk")
            or not (member.exact_counts and shaped)
            or not type(member).initial_mask.__module__.startswith("sparse_lib.")
        ):
            return False
    names = {name for name, _ in model.named_parameters()}
    is_meta = any(parameter.is_meta for parameter in model.parameters())
    masks = any(name.removesuffix("_mask") in names for name, _ in model.named_buffers())
    # Directions of weight_norm are refused where a mask leaves one of them empty, and weights that
    # are computed from others may lack the zeros of these.
    values = ("_v", ".original1", *(() if is_meta else (".original", ".original0")))
    return not masks and not any(name.endswith(values) for name in names)


def _planned_twin(model: nn.Module, algorithm: SparsityAlgorithm | Group) -> nn.Module:
    """A copy without memory, to apply the algorithm to, which draws no masks any more."""
    for member in algorithm.algorithms:
        member.initial_mask = _full_mask  # type: ignore[method-assign]
    twin = without_memory(model)
    for parameter, original in zip(twin.parameters(), model.parameters(), strict=True):
        setattr(parameter, IS_PLANNED, True)
        parameter.requires_dense |= is_quantized(original)  # type: ignore[attr-defined]
    return twin


def _full_mask(sparse: SparseParameter, sparsity: float) -> Tensor:
    return torch.ones_like(sparse.param, dtype=torch.bool)


def _sparse_rows(
    algorithm: SparsityAlgorithm, num_steps: int | None, by_shape: bool
) -> dict[str, dict[str, Any]]:
    """An algorithm's decision on each of its parameters, by full name."""
    rows, kind, end = {}, type(algorithm).__name__, _final_targets(algorithm, num_steps)
    for name, sparse in algorithm.sparse_params.items():
        rows[name] = {
            "algorithm": kind,
            "reason": f"sparsified by {kind}{'' if sparse.param.requires_grad else ', frozen'}",
            "sparsity": float(sparse.target),
            "final_sparsity": end[name],
            "num_nonzero": _num_kept(algorithm, sparse) if by_shape else num_true(sparse.mask),
            "mask_bytes": bytes_of_mask(sparse.param, changes=algorithm.updates_masks),
        }
    return rows


def _num_kept(algorithm: SparsityAlgorithm, sparse: SparseParameter) -> int:
    """Weights that a first mask keeps, by the shape alone."""
    shaper = (algorithm.score_shaper or ScoreFlattener()).for_layer(sparse.layout)
    pools, _ = shaper(torch.empty(sparse.param.shape, device="meta"))
    pools = pools.reshape(-1, pools.shape[-1])
    count = shaper.count(float(sparse.target), pools.shape[1], compat=algorithm.rules)
    return pools.shape[0] * count


def _warnings(
    row: PlannedParameter, layer: LayerDescription | None, tied: list[str] | None
) -> list[str]:
    if row.algorithm is None:
        return []
    notes = []
    if layer is None or layer.role in DENSE_ROLES:
        role = layer.role if layer else "bias"
        notes.append(f"{row.name} has the role {role!r} and is sparsified.")
    if tied:
        notes.append(f"{row.name} is also {', '.join(tied)}: one tensor, one mask.")
    got = 1 - row.num_nonzero / row.num_weights
    if abs(got - row.sparsity) > 0.01 + 1 / row.num_weights:
        notes.append(f"{row.name} gets a sparsity of {got:.2f} in place of {row.sparsity:.2f}.")
    smallest = max(row.shape[:2], default=1)
    fewest = row.num_nonzero
    if row.final_sparsity is not None and row.final_sparsity > row.sparsity:
        fewest = min(fewest, num_nonzero(row.final_sparsity, row.num_weights))
    if len(row.shape) > 1 and fewest < smallest:
        notes.append(
            f"{row.name} keeps {fewest} weights for {smallest} rows or columns: "
            "the layer may collapse."
        )
    return notes
