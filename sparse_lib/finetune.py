"""Training on from a pruned model, with its zeros kept."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sparse_lib.algorithms.static import Static
from sparse_lib.core.codes import is_quantized
from sparse_lib.core.group import Group
from sparse_lib.core.mistakes import has_adapter
from sparse_lib.layers import default_filter


def keep_zeros(model: nn.Module, optimizer: Any = None) -> Group:
    """Keep the zeros of a pruned model while it is trained further, whoever pruned it.

    Every weight of two or more dimensions outside of embeddings, norms and heads that has zeros
    gets a mask of them (a mask that is there already is kept); a tensor that is zero everywhere is
    left alone. With masks gone (``sl.finalize``), the zeros are those of the start.

    Args:
        model: The pruned model, with its weights loaded.
        optimizer: Its optimizer; or apply the returned algorithm, which holds the masks, to it
            later, or give that to an integration such as
            `sparse_lib.integrations.transformers.SparsityCallback`.

    Raises:
        ValueError: If no weight has zeros, a matrix is quantized, so that its zeros cannot be
            masked, or the model has adapters of peft, which merge into the zeros:
            `sparse_lib.integrations.peft.keep_zeros` masks them too.

    >>> model = nn.Linear(4, 4, bias=False)
    >>> _ = nn.init.eye_(model.weight)
    >>> algorithm = keep_zeros(model, torch.optim.SGD(model.parameters(), lr=0.1))
    >>> int(model.weight_mask.sum())
    4
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"keep_zeros takes a torch module first, not {type(model).__name__}")
    if any(map(has_adapter, model.modules())):
        raise ValueError(
            "the model has adapters of peft, which merge into the zeros; use "
            "sparse_lib.integrations.peft.keep_zeros"
        )
    for name, param in model.named_parameters():
        if param.dim() > 1 and is_quantized(param):
            raise ValueError(
                f"{name!r} is quantized ({type(param).__name__} of {param.dtype}), so its zeros "
                "cannot be masked; load the model in a float type"
            )
    return keep_zeros_of(model, has_zeros, optimizer)


def keep_zeros_of(model: nn.Module, param_filter: Any, optimizer: Any = None) -> Group:
    """As `keep_zeros`, for the weights that a filter ``f(name, param, model)`` takes."""
    if not any(param_filter(name, param, model) for name, param in model.named_parameters()):
        raise ValueError(
            "no weight of the model has zeros to keep; load the pruned weights first, or apply an "
            "algorithm that makes zeros"
        )
    group = Group({param_filter: Static(init_method="from_zeros")})
    group.apply(model)
    if optimizer is not None:
        group.apply(optimizer)
    return group


@torch.no_grad()
def has_zeros(name: str, param: Tensor, model: nn.Module | None = None) -> bool:
    """Whether `keep_zeros` masks a parameter."""
    if is_quantized(param) or not default_filter(name, param, model):
        return False
    zeros = param.numel() - int(param.count_nonzero())
    return 0 < zeros < param.numel()
