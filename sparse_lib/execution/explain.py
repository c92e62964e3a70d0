"""Which layers of a model skip their masked work, and why the others do not."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sparse_lib import tables
from sparse_lib.execution import kernels
from sparse_lib.execution.backend import Backend
from sparse_lib.execution.costs import worth_skipping
from sparse_lib.execution.layers import skipping_mixin
from sparse_lib.execution.products import reason_for_dense
from sparse_lib.layers import is_packed, original
from sparse_lib.masks import counts


@dataclass(frozen=True)
class LayerExecution:
    """How one weight of two or more dimensions runs, by full name and the class of its module.

    ``sparsity`` is the fraction of zeros in its mask; ``reason`` says why its masked work is not
    skipped, and is empty where it is.
    """

    name: str
    kind: str
    sparsity: float
    skips: bool
    reason: str


class Explanation(tuple[LayerExecution, ...]):
    """Rows of `LayerExecution`; `print` shows them as a table."""

    def __str__(self) -> str:
        rows = [("weight", "layer", "sparsity", "runs")]
        rows += [
            (row.name, row.kind, f"{row.sparsity:.2f}", "skipping" if row.skips else row.reason)
            for row in self
        ]
        return tables.plain(rows, 4)


def explain(model: nn.Module, backend_or_name: Backend | str = "skip") -> Explanation:
    """Says of each weight whether a twin of `compile` skips its masked work, and why not.

    What follows from an input alone (its dtype, the size of images, which changes what a
    convolution costs) is not known here. The model may be a twin or have packed layers; the backend
    is what `compile` is given.

    Returns:
        A row for each weight that may have a mask, in module order.
    """
    chosen = Backend(backend_or_name) if isinstance(backend_or_name, str) else backend_or_name
    model = original(model)
    masks = {
        id(param): mask
        for module in model.modules()
        for name, param in module._parameters.items()
        if (mask := module._buffers.get(f"{name}_mask")) is not None
    }
    rows = []
    for path, module in model.named_modules():
        if is_packed(module):
            name, kind = f"{path}.weight".lstrip("."), type(module).__name__
            sparsity = 1 - module.values.numel() / max(module.weight_shape.numel(), 1)
            reason = kernels.unavailable()
            rows.append(LayerExecution(name, kind, sparsity, not reason, reason or ""))
            continue
        for name, param in module._parameters.items():
            if param is None or param.dim() < 2:
                continue
            mask = masks.get(id(param))
            sparsity = 0.0 if mask is None else counts.sparsity(mask)
            reason = _reason(module, name, param, mask, sparsity, chosen)
            name, kind = f"{path}.{name}".lstrip("."), type(module).__name__
            rows.append(LayerExecution(name, kind, sparsity, not reason, reason or ""))
    return Explanation(rows)


def _reason(
    module: nn.Module,
    name: str,
    weight: nn.Parameter,
    mask: Tensor | None,
    sparsity: float,
    chosen: Backend,
) -> str | None:
    if mask is None:
        return "it has no mask"
    if chosen.name != "skip":
        return f"the backend is {chosen.name!r}"
    if missing := kernels.unavailable():
        return missing
    mixin = skipping_mixin(type(module))
    if not mixin or name != "weight":
        return f"its type {type(module).__name__} is not supported"
    if reason := reason_for_dense(weight, weight, module._parameters.get("bias"), mask):
        return reason
    geometry = mixin[0].geometry(module)  # type: ignore[arg-type]
    if isinstance(geometry, str):
        return geometry
    if chosen.crossover is not None:
        below = sparsity < chosen.crossover
        return f"its sparsity is below the crossover {chosen.crossover:g}" if below else None
    rows, columns = weight.shape[0], weight[0].numel()
    if geometry.inputs_first:
        rows, columns = columns, rows
    half = weight.dtype is torch.bfloat16
    takes = half and geometry.takes_half and kernels.takes_half()
    options = {"half": half, "multiplies_half": takes, "costs": chosen.costs}
    if worth_skipping(rows, columns, sparsity, **options):  # type: ignore[arg-type]
        return None
    return f"dense is faster for {rows} x {columns} weights at this sparsity"
