"""An evaluation leaves out the work of zeros, as a training does."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import nn

Model = TypeVar("Model", bound="nn.Module")


def skipping(model: Model, execution: str) -> Model:
    """The model, or its twin whose layers skip their zeros where that is faster.

    The weights tell what is masked, so any exported model will do. Scores differ by rounding.

    Args:
        model: in evaluation mode, on its device and in its number format.
        execution: ``"auto"`` or ``"dense"``; anything but float32 on the CPU runs dense.
    """
    import torch

    from sparse_lib.configure import configure
    from sparse_lib.device import compile, worth_skipping
    from sparse_lib.layers import default_filter

    first = next(model.parameters())
    if execution == "dense" or first.device.type != "cpu" or first.dtype != torch.float32:
        return model
    for name, weight in model.named_parameters():
        if default_filter(name, weight, model):
            zeros = float((weight == 0).float().mean())
            if worth_skipping(weight.shape[0], weight[0].numel(), zeros):
                configure({"algorithm": "static", "init_method": "from_zeros"}).apply(model)
                return compile(model)  # type: ignore[return-value]
    return model
