"""Sparse-Wide: the same architecture with larger widths."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import nn

from sparse_lib.ift import adapters
from sparse_lib.ift.replacement import convolution, transformable
from sparse_lib.ift.sizes import wide_factor


def apply(
    model: nn.Module, sparsity: float, layers: str | Sequence[str] | None = None
) -> tuple[nn.Module, list[str]]:
    """Build a new model with every width ``sqrt(1 / (1 - s))`` times as large.

    Widths are rounded to the nearest legal one (see the architecture's adapter), that is by at
    most half of what they are a multiple of. Weights are drawn as the architecture draws them,
    from torch's global generator. Input and output layers grow on the side that faces the model.

    Raises:
        ValueError: If the architecture has no adapter, its widths are not legal, or ``layers`` is
            given: a residual width is shared by all layers.
    """
    if layers is not None:
        raise ValueError(
            "family 'wide' takes no layers: they share the residual width, so all of them grow"
        )
    adapter = adapters.find(model)
    config = copy.deepcopy(model.config)
    adapter.widen_config(config, wide_factor(sparsity))
    parameter = next(model.parameters())
    with parameter.device:
        wide = type(model)(config).to(parameter.dtype)
    _keep_exchanged_modules(model, wide)
    wide.train(model.training)
    return wide, [layer.weight_name for layer in transformable(wide)]


def _keep_exchanged_modules(model: nn.Module, wide: nn.Module) -> None:
    """Carries over modules without parameters and convolutions' geometry, which no config knows."""
    for name, module in model.named_modules():
        try:
            built = wide.get_submodule(name)
        except AttributeError:
            built = None
        if isinstance(module, nn.Conv2d) and isinstance(built, nn.Conv2d):
            if _geometry(module) != _geometry(built):
                conv = convolution(
                    module,
                    built.in_channels,
                    built.out_channels,
                    groups=built.groups,
                    bias=module.bias is not None,
                ).to(built.weight)
                with torch.no_grad():
                    wide._init_weights(conv)  # type: ignore[operator]
                wide.set_submodule(name, conv)
        elif built is not None and type(module) is not type(built):
            if any(True for _ in module.parameters()):
                raise ValueError(
                    f"family 'wide' cannot widen {name!r}: it is a {type(module).__name__}, where "
                    f"{type(model).__name__} builds a {type(built).__name__}"
                )
            wide.set_submodule(name, copy.deepcopy(module))


def _geometry(conv: nn.Conv2d) -> tuple:
    padding = (conv.padding, conv.padding_mode, conv.bias is not None)
    return (conv.kernel_size, conv.stride, conv.dilation, *padding)
