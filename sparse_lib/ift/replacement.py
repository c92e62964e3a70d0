"""Shared code of the layer-local families: which layers, and how one replaces another."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from sparse_lib.layers import LayerDescription, describe, required_dense

# What owners of a layer read from it; MobileNetV2, for one, pads by these.
_GEOMETRY = (
    "in_features out_features nf nx in_channels out_channels kernel_size stride padding dilation "
    "groups padding_mode"
).split()


class Replacement(nn.Module):
    """Several layers that look to their owner like the one that they replace.

    Attributes:
        sparse_weights: Names inside the module of the weights that masks go on.
    """

    sparse_weights: tuple[str, ...]

    def __init__(self, dense: nn.Module) -> None:
        super().__init__()
        for name in _GEOMETRY:
            if hasattr(dense, name):
                setattr(self, name, getattr(dense, name))


def transformable(
    model: nn.Module, layers: str | Sequence[str] | None = None
) -> list[LayerDescription]:
    """The layers that Sparse-IFT makes sparse, in the order of the model.

    These are the weights of role ``"block"``: not the first convolution, embeddings, norms and
    output heads, nor what carries ``requires_dense`` or is frozen. Grouped (depthwise) convolutions
    stay dense too: each of their outputs sums over a few weights only. A module that is used in
    several places is one layer, chosen by any of its names. ``layers``, a glob on module names or
    several, choose among these.

    Raises:
        ValueError: If nothing is left; TypeError if ``layers`` is something else.
    """
    globs = [layers] if isinstance(layers, str) else layers
    is_list = isinstance(globs, Collection) and all(isinstance(glob, str) for glob in globs)
    if globs is not None and not is_list:
        raise TypeError(f"layers must be a glob or a list of globs, not {layers!r}")
    all_names, dense, found = module_names(model), required_dense(model), []
    named = model.named_parameters(remove_duplicate=False)
    free = {name for name, p in named if id(p) not in dense and p.requires_grad}
    for layer in describe(model):
        names = all_names[model.get_submodule(layer.name)]
        is_block = layer.is_matmul and layer.role == "block" and layer.groups == 1
        is_own = bool(layer.numel) and layer.tied_to is None
        if is_block and is_own and layer.weight_name in free:
            if globs is None or any(fnmatchcase(n, glob) for n in names for glob in globs):
                found.append(layer)
    if not found:
        where = f" matches layers={list(globs)!r}" if globs is not None else ""
        raise ValueError(
            f"{type(model).__name__} has no layer to transform: none{where} that is neither input, "
            "output, embedding, norm, grouped convolution, frozen nor empty"
        )
    return found


def module_names(model: nn.Module) -> dict[nn.Module, list[str]]:
    """Every module of a model with all names under which it is used."""
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    return names


def replace_layers(
    model: nn.Module,
    sparsity: float,
    layers: str | Sequence[str] | None,
    *,
    family: str,
    make: Callable[[nn.Module, int, int, float], Replacement],
) -> tuple[nn.Module, list[str]]:
    """A copy of a model with every chosen layer replaced, and the names of its sparse weights.

    ``layers`` is as of `transformable`; ``make`` takes a layer of the copy, its inputs per output,
    its outputs and the sparsity.

    Raises:
        ValueError: If a layer is not a Linear, a transformers ``Conv1D`` or a ``Conv2d``, or shares
            its weight with another module.
    """
    chosen = transformable(model, layers)
    ties = {layer.tied_to: layer.weight_name for layer in describe(model) if layer.tied_to}
    model = copy.deepcopy(model)
    places = module_names(model)
    names: list[str] = []
    for layer in chosen:
        dense = model.get_submodule(layer.name)
        owner = model.get_submodule(layer.name.rpartition(".")[0])
        if isinstance(owner, nn.TransformerEncoderLayer):
            raise ValueError(
                f"layer {layer.name!r} is of a {type(owner).__name__}, which reads its weight in "
                "evaluation; choose other layers"
            )
        if layer.kind != "conv1d" and type(dense) not in (nn.Linear, nn.Conv2d):
            raise ValueError(
                f"family {family!r} cannot apply to layer {layer.name!r}, a "
                f"{type(dense).__name__}: it replaces Linear, Conv1D and Conv2d only; choose other "
                "layers with layers=[globs]"
            )
        if layer.weight_name in ties:
            raise ValueError(
                f"family {family!r} cannot apply to layer {layer.name!r}: its weight is also "
                f"{ties[layer.weight_name]!r}; choose other layers with layers=[globs]"
            )
        try:
            new = make(dense, layer.fan_in, layer.numel // layer.fan_in, sparsity)
        except ValueError as error:
            raise ValueError(f"family {family!r} at layer {layer.name!r}: {error}") from None
        new.train(dense.training)
        new.replaces = layer.name  # type: ignore[assignment]  # for messages
        prefix = f"{layer.name}." if layer.name else ""
        for name in places[dense]:
            if name:
                model.set_submodule(name, new)
            else:
                model = new
        names += [prefix + weight for weight in new.sparse_weights]
    return model, names


def layer_from(dense: nn.Module, num_outputs: int) -> nn.Linear | nn.Conv2d:
    """A layer without bias on the inputs of ``dense``, of its geometry, to other outputs."""
    if isinstance(dense, nn.Conv2d):
        return convolution(dense, dense.in_channels, num_outputs)
    weight = dense.weight
    assert isinstance(weight, Tensor)
    return nn.Linear(
        sizes(dense)[0], num_outputs, bias=False, device=weight.device, dtype=weight.dtype
    )


def convolution(
    like: nn.Conv2d, in_channels: int, out_channels: int, *, groups: int = 1, bias: bool = False
) -> nn.Conv2d:
    """A convolution of the kernel, stride, padding and dilation of another, with other channels."""
    return nn.Conv2d(
        in_channels,
        out_channels,
        like.kernel_size,  # type: ignore[arg-type]
        like.stride,  # type: ignore[arg-type]
        like.padding,  # type: ignore[arg-type]
        like.dilation,  # type: ignore[arg-type]
        groups,
        bias,
        like.padding_mode,
        device=like.weight.device,
        dtype=like.weight.dtype,
    )


def layer_to(dense: nn.Module, num_inputs: int, *, bias: bool) -> nn.Linear | nn.Conv2d:
    """A pointwise layer to the outputs of ``dense``, with a copy of its bias if asked for."""
    weight, own = dense.weight, dense.bias if bias else None
    assert isinstance(weight, Tensor)
    num_outputs, has_bias = sizes(dense)[1], own is not None
    new: nn.Linear | nn.Conv2d
    with weight.device:
        if isinstance(dense, nn.Conv2d):
            new = nn.Conv2d(num_inputs, num_outputs, 1, bias=has_bias, dtype=weight.dtype)
        else:
            new = nn.Linear(num_inputs, num_outputs, has_bias, dtype=weight.dtype)
    if isinstance(own, Tensor) and new.bias is not None:
        with torch.no_grad():
            new.bias.copy_(own)
    return new


def sizes(dense: nn.Module) -> tuple[int, int]:
    """Input features (channels) and output features (channels) of a layer."""
    if isinstance(dense, nn.Conv2d):
        return dense.in_channels, dense.out_channels
    if isinstance(dense, nn.Linear):
        return dense.in_features, dense.out_features
    assert isinstance(dense.weight, Tensor)
    return dense.weight.shape[0], dense.weight.shape[1]


def norm(dense: nn.Module, size: int) -> nn.BatchNorm2d | nn.LayerNorm:
    """The norm inside a replacement: batch norm after convolutions, layer norm after others.

    ValueError for a layer norm over one feature, which it makes a constant, or two, of which it
    leaves the order.
    """
    weight = dense.weight
    assert isinstance(weight, Tensor)
    kind = nn.BatchNorm2d if isinstance(dense, nn.Conv2d) else nn.LayerNorm
    if kind is nn.LayerNorm and size < 3:
        raise ValueError(
            f"its inner layer norm would have {size} of the at least 3 features that it needs; "
            "choose other layers with layers=[globs]"
        )
    return kind(size, device=weight.device, dtype=weight.dtype)


def output_scale(dense: nn.Module, num_inputs: int) -> Tensor:
    """Root mean square that the layer's outputs have for independent inputs of unit variance."""
    assert isinstance(dense.weight, Tensor)
    return dense.weight.detach().float().square().mean().mul(num_inputs).sqrt()


@torch.no_grad()
def draw(layer: nn.Linear | nn.Conv2d, scale: Tensor | float) -> None:
    """Draw normal weights whose outputs have that root mean square for inputs of unit variance.

    Draws from torch's global generator, as building the model did.
    """
    fan_in = layer.weight[0].numel()
    layer.weight.normal_().mul_(torch.as_tensor(scale) / fan_in**0.5)
