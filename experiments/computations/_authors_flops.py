"""FLOPs as the authors of Sparse-IFT count them, to compare with the numbers they print.

Their profiler (Sparse-IFT repository, ``profiler_utils.py``) watches modules and adds up, in
evaluation mode:

- convolution: a multiplication per weight and position, and additions for all weights but one;
- linear layer: for every output, multiplications for all inputs, additions for all but one, and
  one for the bias;
- batch norm: 7 per element less 1 per channel (it counts the statistics as if in training);
- max pooling: kernel size less 1 per output; adaptive average pooling: 1 per input.

ReLUs and residual additions are functions in their models, which it does not see. Their CIFAR
model also pools by a function, hence ``pooling``.

``sparse_lib.flops`` leaves out norms, pooling and biases and counts whole multiply-adds: 0.4%
less for their ResNets.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from sparse_lib.flops.trace import example, on_meta
from sparse_lib.layers import describe


def authors_flops(
    model: nn.Module, *, image_size: int | tuple[int, int], pooling: bool = True
) -> int:
    """Dense forward FLOPs of one image by the authors' convention.

    Args:
        model: A vision model of Conv2d, Linear, BatchNorm2d, MaxPool2d and AdaptiveAvgPool2d.
        image_size: Pixels per side, or (height, width).
        pooling: Whether pooling modules count.
    """
    total = 0

    def add(module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        nonlocal total
        total += _module_flops(module, args[0], out, pooling)

    counted = (nn.Conv2d, nn.Linear, nn.BatchNorm2d, nn.MaxPool2d, nn.AdaptiveAvgPool2d)
    handles = [m.register_forward_hook(add) for m in model.modules() if isinstance(m, counted)]
    try:
        with torch.no_grad(), on_meta(model, describe(model)) as (call, _):
            call((example(model, 1, None, image_size),), {})
    finally:
        for handle in handles:
            handle.remove()
    return total


def _module_flops(module: nn.Module, x: Tensor, out: Tensor, pooling: bool) -> int:
    if isinstance(module, nn.Conv2d):
        positions = out.shape[0] * math.prod(out.shape[2:])
        bias = 0 if module.bias is None else out.numel()
        return positions * (2 * module.weight.numel() - 1) + bias
    if isinstance(module, nn.Linear):
        bias = 0 if module.bias is None else out.numel()
        return out.numel() * (2 * module.in_features - 1) + bias
    if isinstance(module, nn.BatchNorm2d):
        affine = 2 * x.numel() if module.affine else 0
        return 5 * x.numel() + affine - module.num_features
    if not pooling:
        return 0
    if isinstance(module, nn.MaxPool2d):
        sides = module.kernel_size
        size = sides**2 if isinstance(sides, int) else math.prod(sides)
        return out.numel() * (size - 1)
    return x.numel()
