"""Smaller dense layers in place of those with dead rows and columns."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from sparse_lib.checkpoint.exports import finalize

_POINTWISE = (
    nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU,
    nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardtanh, nn.Tanh, nn.Sigmoid, nn.Softplus,
)  # fmt: skip
_POOLS = (
    nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d,
)  # fmt: skip
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
_CONVS = (nn.Conv1d, nn.Conv2d)
_Named = tuple[str, nn.Module]


@torch.no_grad()
def shrink(model: nn.Sequential) -> nn.Sequential:
    """A smaller copy of a chain of Linear and Conv layers that computes the same function.

    A unit (an output of a linear layer, a channel of a convolution) goes if the next layer has only
    zeros for it, or if its own weights are all zero: what it outputs is then constant and moves to
    the next layer's bias. Inputs of the first layer and outputs of the last one stay. The function
    is that of evaluation, equal up to rounding; masks are gone.

    Args:
        model: ``nn.Sequential``, nested or not, of Linear, Conv1d and Conv2d with element-wise
            activations, dropout, batch norms, pooling and ``Flatten`` between them. Of another
            model, give a part that is such a chain.

    Returns:
        The smaller copy; each layer keeps at least one unit.

    Raises:
        TypeError: If the model is no ``nn.Sequential``.
        ValueError: If between two layers stands a module that is none of these; names it.

    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> with torch.no_grad():
    ...     _ = net[0].weight[2:].zero_()
    >>> shrink(net)[0], shrink(net)[2].in_features
    (Linear(in_features=4, out_features=2, bias=True), 2)
    """
    if not isinstance(model, nn.Sequential):
        raise TypeError(
            f"shrink takes a torch.nn.Sequential, not {type(model).__name__}; give it a part that "
            "is a chain of layers"
        )
    small = copy.deepcopy(model)
    finalize(small)
    modules = list(_leaves("", small))
    places = [i for i, (_, m) in enumerate(modules) if type(m) in (nn.Linear, *_CONVS)]
    chains = [modules[i : j + 1] for i, j in zip(places, places[1:])]
    paths: dict[nn.Module, str] = {}
    for path, module in modules:
        if module in paths and module.state_dict():
            raise ValueError(f"layers {paths[module]!r} and {path!r} are one module, used twice")
        paths[module] = path
    for chain in chains:
        _check(chain)
    while any(_shrink_first(chain) for chain in chains):
        pass
    return small


def _leaves(path: str, module: nn.Module) -> Iterator[_Named]:
    if type(module) is not nn.Sequential:
        yield path, module
        return
    for name, child in module._modules.items():
        assert child is not None
        yield from _leaves(f"{path}.{name}" if path else name, child)


def _check(chain: Sequence[_Named]) -> None:
    """Refuse a chain (layer, modules between, next layer) that is not understood."""
    (first_name, first), *between, (last_name, last) = chain
    flattens = any(type(module) is nn.Flatten for _, module in between)
    for name, module in ((first_name, first), (last_name, last)):
        if getattr(module, "groups", 1) != 1:
            raise ValueError(f"layer {name!r} has groups={module.groups}, and must have 1")
    if type(last) is nn.Linear and type(first) is not nn.Linear and not flattens:
        raise ValueError(f"layer {last_name!r} reads a convolution without a Flatten between")
    if type(last) is not nn.Linear and (type(first) is nn.Linear or flattens):
        raise ValueError(f"layer {last_name!r} is a convolution after a linear layer or a Flatten")
    units = len(first.weight)  # type: ignore[arg-type]
    if type(first) is nn.Linear and last.in_features != units:
        raise ValueError(
            f"layer {last_name!r} reads {last.in_features} features, not the {units} outputs of "
            f"{first_name!r}"
        )
    for name, module in between:
        known = type(module) in _POINTWISE
        known |= type(module) in _NORMS and module.running_mean is not None
        known &= getattr(module, "num_features", units) == units
        known |= type(module) in _POOLS and type(first) is not nn.Linear
        known &= getattr(module, "divisor_override", None) is None
        known |= type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1)
        if not known:
            raise ValueError(
                f"{name!r} between {first_name!r} and {last_name!r} is {module!r}, through which "
                "units cannot be followed"
            )


def _shrink_first(chain: Sequence[_Named]) -> bool:
    """Take units out of the first layer of a checked chain; False if there is none to take."""
    first, last = chain[0][1], chain[-1][1]
    between = [module for _, module in chain[1:-1]]
    weight, bias = first.weight, first.bias
    assert isinstance(weight, Tensor) and isinstance(last.weight, Tensor)
    units = len(weight)
    columns = last.weight.reshape(len(last.weight), units, -1)
    unread = (columns == 0).all(2).all(0)
    is_constant = (weight == 0).flatten(1).all(1)
    constant = _passed(weight.new_zeros(units) if bias is None else bias, between)  # type: ignore[arg-type]
    padded = [last, *between]
    stays = all(_padding(module) == 0 for module in padded) and last.bias is not None
    dead = unread | (is_constant & ((constant == 0) | stays))
    if bool(dead.all()):
        dead[0] = False
    if not bool(dead.any()):
        return False
    moved = dead & ~unread & (constant != 0)
    if bool(moved.any()):
        last.bias += columns.sum(2)[:, moved] @ constant[moved]  # type: ignore[operator]
    kept = ~dead
    count = int(kept.sum())
    for module in (first, *between):
        for name, param in module._parameters.items():
            if param is not None:
                module._parameters[name] = _like(param, param[kept])
        if type(module) in _NORMS:
            module.num_features = count  # type: ignore[assignment]
            for name in ("running_mean", "running_var"):
                module._buffers[name] = module.get_buffer(name)[kept]
    shape = list(last.weight.shape)
    shape[1] = columns[:, kept].shape[1] * shape[1] // units
    last._parameters["weight"] = _like(last.weight, columns[:, kept].reshape(shape))
    for module, side, size in ((first, "out", count), (last, "in", shape[1])):
        kind = "features" if type(module) is nn.Linear else "channels"
        setattr(module, f"{side}_{kind}", size)
    return True


def _like(param: Tensor, values: Tensor) -> nn.Parameter:
    return nn.Parameter(values.clone(), requires_grad=param.requires_grad)


def _padding(module: nn.Module) -> int:
    """The largest zero padding, with which a constant channel is none at the borders."""
    if not isinstance(module, (*_CONVS, nn.AvgPool1d, nn.AvgPool2d)):
        return 0
    padding = module.padding
    if isinstance(padding, str):
        return 0 if padding == "valid" else 1
    return max(padding) if isinstance(padding, tuple) else padding


def _passed(values: Tensor, between: Sequence[nn.Module]) -> Tensor:
    """The values of constant units, one each, after the modules between two layers."""
    for module in between:
        if type(module) in (*_POOLS, nn.Flatten):
            continue
        shape = (1, -1, 1, 1) if isinstance(module, nn.BatchNorm2d) else (1, -1)
        was, _ = module.training, module.eval()
        values = module(values.reshape(shape)).flatten()
        module.train(was)
    return values
