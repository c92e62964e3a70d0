"""Scores of weights before training, from the loss of a dense model: SNIP, GraSP, FORCE.

`rank` computes them and leaves them with the weights, where the init methods and the
distributions of the same names find them::

    rank(model, lambda: loss(model, batch), "grasp")
    Static(0.9, init_method="grasp", distribution="grasp").apply(model)

The distribution of that name ranks over all tensors together, as the papers do; any other keeps its
own counts, and then weights compete within their tensors.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from sparse_lib.checks import check_fraction, check_integer, closest
from sparse_lib.masks.init import SCORED, keep_score
from sparse_lib.masks.makers import make_masks_global_topk

Loss = Callable[[], Tensor]


def rank(
    model: nn.Module,
    loss: Loss,
    method: str,
    *,
    params: Collection[str] | None = None,
    **options: Any,
) -> dict[str, Tensor]:
    """Score the weights of a model that has no masks yet, and leave the scores with them.

    Args:
        model: The model, dense. Its weights are as they were afterwards, and so are its gradients.
        loss: A forward pass on data of the caller's: returns a scalar. It is called several times.
        method: ``"snip"``, ``"grasp"``, ``"force"`` or ``"iterative-snip"``.
        params: Full names of the weights; None takes all of at least two dimensions.
        **options: Of `grasp`, or ``sparsity`` (required) and others of `force`.

    Returns:
        Full name to score; the weights with the highest are to be kept.

    Raises:
        ValueError: If a name or an option is unknown or out of range.

    Warns:
        UserWarning: If all scores of a weight are zero: of equal scores the first in the tensor
            are kept, so the masks do not follow the method there. A residual branch whose last norm
            starts at zero hides the weights inside from the loss; start it at one for the scores.
    """
    if method not in METHODS:
        raise ValueError(f"method {method!r} is unknown; {closest(method, METHODS)}")
    known = dict(model.named_parameters())
    if params is None:
        params = [name for name, param in known.items() if param.dim() > 1]
    for name in params:
        if name not in known:
            raise ValueError(f"{name!r} is no parameter of the model; {closest(name, known)}")
    weights = {name: known[name] for name in known if name in set(params)}
    try:
        scores = METHODS[method](weights, loss, **options)
    except TypeError as error:
        raise ValueError(f"method {method!r}: {error}") from error
    hidden = [name for name, score in scores.items() if not score.any()]
    if hidden:
        warnings.warn(
            f"{method!r} scores all of {hidden[0]!r} zero, and so {len(hidden)} of {len(scores)} "
            "weights: the loss does not depend on them, as behind a norm that starts at zero, so "
            "their masks do not follow the method",
            stacklevel=2,
        )
    for name, score in scores.items():
        keep_score(weights[name], method, score)
    return scores


def snip(weights: Mapping[str, Tensor], loss: Loss) -> dict[str, Tensor]:
    """Connection sensitivity, ``abs(weight * gradient)`` (Lee et al. 2019, equation 5).

    Arguments as of `rank`, with the weights by name.
    """
    gradients = torch.autograd.grad(loss(), list(weights.values()), materialize_grads=True)
    return {
        name: (weight.detach() * gradient).abs()
        for (name, weight), gradient in zip(weights.items(), gradients, strict=True)
    }


def grasp(weights: Mapping[str, Tensor], loss: Loss) -> dict[str, Tensor]:
    """Gradient signal preservation (Wang et al. 2020, arXiv:2002.07376, equation 8).

    Removing weights ``w`` changes the squared norm of the gradient ``g`` by ``-2 w * H g`` to
    first order, ``H`` the Hessian. The paper removes those of the largest ``-w * H g``; so the
    score is ``w * H g``. Its code divides logits by a temperature of 200, takes ten samples of each
    class, and gradients of two halves of them; here all of that is the caller's ``loss``, which
    must be the same in both of its uses.
    """
    tensors = list(weights.values())
    with sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivative
        gradients = torch.autograd.grad(loss(), tensors, create_graph=True, materialize_grads=True)
        product = sum((gradient.detach() * gradient).sum() for gradient in gradients)
        curved = torch.autograd.grad(product, tensors, materialize_grads=True)  # type: ignore[arg-type]
    return {
        name: weight.detach() * change
        for (name, weight), change in zip(weights.items(), curved, strict=True)
    }


def force(
    weights: Mapping[str, Tensor],
    loss: Loss,
    *,
    sparsity: float,
    num_steps: int = 10,
    may_return: bool = True,
) -> dict[str, Tensor]:
    """Foresight connection sensitivity by progressive skeletonization (FORCE).

    De Jorge et al. 2021 (arXiv:2006.09081), algorithm 1 with the exponential decay of section 3.2:
    in step ``t`` of ``T = num_steps``, ``k_t = n**(1 - t/T) * k**(t/T)`` of all ``n`` weights stay,
    ``k`` at the end, by the ``sparsity`` of the masks over all weights together, in [0, 1): those
    of the largest ``abs(weight * gradient)``, with the gradient of the network that step ``t - 1``
    left. Its removed weights are zero in the forward pass and have gradients too, so they may come
    back. With ``may_return=False`` they may not: iterative SNIP of the same paper. One step is
    SNIP. The authors' code draws a batch per step; here that is the caller's ``loss``.
    """
    check_fraction(sparsity, "sparsity")
    check_integer(num_steps, "num_steps", 1)
    tensors = list(weights.values())
    whole = {name: weight.detach().clone() for name, weight in weights.items()}
    masks = {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in whole.items()}
    total = sum(weight.numel() for weight in whole.values())
    density = 1.0 - sparsity
    if density <= 0:
        raise ValueError(f"sparsity must be below 1, not {sparsity!r}")
    try:
        for step in range(1, num_steps + 1):
            with torch.no_grad():
                for name, weight in weights.items():
                    weight.copy_(torch.where(masks[name], whole[name], 0))
            gradients = torch.autograd.grad(loss(), tensors, materialize_grads=True)
            pairs = zip(whole.items(), gradients, strict=True)
            scores = {name: (weight * gradient).abs() for (name, weight), gradient in pairs}
            if not may_return:
                scores = {n: torch.where(masks[n], score, -1.0) for n, score in scores.items()}
            if step < num_steps:
                kept = math.exp(step / num_steps * math.log(density))
                masks = make_masks_global_topk(scores, 1 - max(kept, 1 / total))
    finally:
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(whole[name])
    return scores


METHODS: dict[str, Callable[..., dict[str, Tensor]]] = {
    "snip": snip,
    "grasp": grasp,
    "force": force,
    "iterative-snip": functools.partial(force, may_return=False),
}
assert set(METHODS) == set(SCORED)
