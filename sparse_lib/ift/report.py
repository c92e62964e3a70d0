"""Parameters and FLOPs of each layer, before and after a transform."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from torch import nn

from sparse_lib import tables
from sparse_lib.flops.model import ModelFlops
from sparse_lib.layers import LayerDescription, describe
from sparse_lib.masks.counts import num_nonzero


@dataclass(frozen=True, slots=True)
class LayerReport:
    """One layer of the dense model and what took its place.

    ``operation`` is as of `sparse_lib.flops.LayerFlops`. ``sparsity`` is that of its masked
    weights, 0 where it was not transformed, and ``nonzero_after`` are those of ``weights_after``
    that masks keep. FLOPs are forward, of one sample; None if the size of an input is unknown.
    """

    name: str
    operation: str
    sparsity: float
    weights_before: int
    weights_after: int
    nonzero_after: int
    flops_before: int | None
    flops_after: int | None

    @property
    def ratio(self) -> float:
        """FLOPs after over before; all weights of a layer are used equally often."""
        if self.flops_before and self.flops_after is not None:
            return self.flops_after / self.flops_before
        return self.nonzero_after / self.weights_before if self.weights_before else 1.0


@dataclass(frozen=True)
class Report:
    """Layers and totals of a transformed model. FLOPs: forward, one sample, 2 per multiply-add.

    ``sparsity`` set the sizes; ``mask_sparsity`` is the same unless a budget for the whole model
    was given. ``layers`` has one row per layer that multiplies, transformed or not; parameters are
    all of a model, of which masks keep ``nonzero_after``. FLOPs are None if the size of an input is
    unknown; ``input_size`` is the ``sequence_length`` or ``image_size`` that they are counted for.
    """

    family: str
    sparsity: float
    mask_sparsity: float
    layers: tuple[LayerReport, ...]
    parameters_before: int
    parameters_after: int
    nonzero_after: int
    flops_before: int | None
    flops_after: int | None
    input_size: Mapping[str, Any]

    @property
    def flops_ratio(self) -> float | None:
        """Whole-model FLOPs after over before, None if they are unknown."""
        if not self.flops_before or self.flops_after is None:
            return None
        return self.flops_after / self.flops_before

    def summary(self) -> dict[str, Any]:
        """Totals, for a record of a run."""
        keys = [field.name for field in fields(self) if field.name not in ("layers", "input_size")]
        return {key: getattr(self, key) for key in (*keys, "flops_ratio")}

    def to_markdown(self) -> str:
        """Totals and the table of layers as Markdown."""
        family = self.family
        title = "SLTrain" if family == "sltrain" else f"Sparse-{family.capitalize()}"
        size = ", ".join(f"{k} {v}" for k, v in self.input_size.items() if v is not None)
        masks = f"masks at sparsity {self.mask_sparsity:.4g}"
        lines = [
            f"{title} at sparsity {self.sparsity:g}, {masks}: "
            f"{self.parameters_before:,} parameters became {self.parameters_after:,}, "
            f"of which {self.nonzero_after:,} are non-zero."
        ]
        if self.flops_before is not None:
            lines.append(
                f"Forward FLOPs of one sample{f' ({size})' if size else ''}: "
                f"{self.flops_before:,} became {self.flops_after:,} ({self.flops_ratio:.4f}x)."
            )
        heading = ("layer", "kind", "sparsity", "weights", "non-zero", "FLOPs", "ratio")
        rows = []
        for row in self.layers:
            weights = f"{row.weights_before:,} → {row.weights_after:,}"
            known = row.flops_before is not None
            flops = f"{row.flops_before:,} → {row.flops_after:,}" if known else ""
            cells = (f"{row.sparsity:.4g}", weights, f"{row.nonzero_after:,}", flops)
            rows.append((row.name, row.operation, *cells, f"{row.ratio:.4f}"))
        return "\n".join([*lines, "", *tables.markdown(heading, rows)]) + "\n"

    def __str__(self) -> str:
        return self.to_markdown()


def make_report(
    model: nn.Module,
    new: nn.Module,
    before: ModelFlops | None,
    after: ModelFlops | None,
    family: str,
    sparsity: float,
    targets: Mapping[str, float],
    input_size: Mapping[str, Any],
) -> Report:
    """Compare a dense model with its transformed one, whose masked weights get target sparsities.

    FLOPs are None where they are unknown; ``sparsity`` is what set the sizes.
    """
    old_flops, new_flops = _by_layer(before), _by_layer(after, targets)

    def nonzero(layers: Iterable[LayerDescription]) -> int:
        return sum(num_nonzero(targets.get(la.weight_name, 0.0), la.numel) for la in layers)

    rows = []
    for name, (old, replaced) in _parts(describe(model), describe(new)).items():
        rows.append(
            LayerReport(
                name=name,
                operation=old[0].kind,
                sparsity=max((targets.get(la.weight_name, 0.0) for la in replaced), default=0.0),
                weights_before=sum(layer.numel for layer in old),
                weights_after=sum(layer.numel for layer in replaced),
                nonzero_after=nonzero(replaced),
                flops_before=_total(old_flops, old),
                flops_after=_total(new_flops, replaced),
            )
        )
    if before is not None and new_flops is not None:
        rows += [
            LayerReport(f.name, f.operation, 0.0, 0, 0, 0, f.dense_flops, new_flops.get((f.name,)))
            for f in before.layers
            if f.weight_name is None
        ]
    masked = [layer for layer in describe(new) if layer.weight_name in targets]
    parameters = sum(p.numel() for p in new.parameters())
    return Report(
        family=family,
        sparsity=float(sparsity),
        mask_sparsity=max(targets.values()),
        layers=tuple(rows),
        parameters_before=sum(p.numel() for p in model.parameters()),
        parameters_after=parameters,
        nonzero_after=parameters - sum(layer.numel for layer in masked) + nonzero(masked),
        flops_before=None if before is None else before.forward(),
        flops_after=None if after is None else after.forward(targets),
        input_size=dict(input_size),
    )


def _parts(
    before: Iterable[LayerDescription], after: Iterable[LayerDescription]
) -> dict[str, tuple[list[LayerDescription], list[LayerDescription]]]:
    """Layers of the dense model by module path, each with what took its place."""
    parts: dict[str, tuple[list[LayerDescription], list[LayerDescription]]] = {}
    for layer in before:
        if layer.is_matmul:
            parts.setdefault(layer.name, ([], []))[0].append(layer)
    for layer in after:
        name = layer.name
        while name not in parts and name:
            name = name.rpartition(".")[0]
        if layer.is_matmul and name in parts:
            parts[name][1].append(layer)
    return parts


def _by_layer(
    flops: ModelFlops | None, targets: Mapping[str, float] | None = None
) -> dict[Any, int] | None:
    """FLOPs by a weight's name, or by ``(module,)`` where products have none."""
    if flops is None:
        return None
    return {f.weight_name or (f.name,): f.forward_flops(targets) for f in flops.layers}


def _total(flops: Mapping[Any, int] | None, layers: Iterable[LayerDescription]) -> int | None:
    return None if flops is None else sum(flops.get(la.weight_name, 0) for la in layers)
