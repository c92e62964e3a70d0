"""Initial values and learning rates by width and density: standard, muP and SuPar.

Dey, Bergsma and Hestness, "Sparse maximal update parameterization" (NeurIPS 2024), table 1. With
the width multiplier ``m_d`` (width over base width) and the density multiplier ``m_rho`` (share of
a matrix's weights that are there; the base is dense), under Adam:

=========  ======================  ===========================  ==============================
rule       hidden: variance, rate  input: variance, rate        output: variance, rate
=========  ======================  ===========================  ==============================
standard   1, 1                    1, 1                         1, 1
mup        1 / m_d, 1 / m_d        1, 1                         1 / m_d^2, 1 / m_d
supar      both 1 / (m_d m_rho)    1, 1                         1 / m_d^2, 1 / m_d
=========  ======================  ===========================  ==============================

The sources multiply the output layer's logits by ``1 / m_d``. Here its weights are drawn and moved
by that much less, which is the same function under Adam (Yang et al. 2022, lemma J.1) and leaves
the model's code alone. The sources also divide attention's logits by the width of a head in place
of its root: equal up to a constant where heads keep their width and their number grows, as the
studies do. Vectors (norms, biases) keep values and rate. Weight decay is divided by the rate's
factor, so that a step takes the same share of every weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from experiments.errors import UserError
from sparse_lib.checkpoint import masks_of


@dataclass(frozen=True)
class Parameterization:
    """A rule and its base.

    Attributes:
        rule: ``standard``, ``mup`` or ``supar``.
        base_width: Hidden size at which values and rate were tuned.
        init_std: Standard deviation of all matrices at the base width, dense.
    """

    rule: str
    base_width: int
    init_std: float


@dataclass(frozen=True)
class Factors:
    """What a tensor's initial standard deviation and learning rate are multiplied by."""

    std: float = 1.0
    rate: float = 1.0


def factors(model: nn.Module, chosen: Parameterization) -> dict[str, Factors]:
    """Name to factors, for every parameter; masks count as they are now.

    Args:
        model: A language model of transformers, whose config has ``hidden_size``.
        chosen: The rule and its base.
    """
    config: Any = model.config
    width = 1.0
    if chosen.rule != "standard":
        width = float(config.hidden_size / chosen.base_width)
    table = model.get_input_embeddings().weight  # type: ignore[operator]
    head = model.get_output_embeddings().weight  # type: ignore[operator]
    if table is head and width != 1.0:
        raise UserError(
            f"recipe.parameterization.rule is {chosen.rule!r}, but model.tie_embeddings is true: "
            "an output layer that is the embedding cannot have a scale of its own"
        )
    masks = masks_of(model)
    found = {}
    for name, param in model.named_parameters():
        if param.dim() < 2 or param is table:
            found[name] = Factors()
        elif param is head:
            found[name] = Factors(1 / width, 1 / width)
        else:
            density = 1.0
            if chosen.rule == "supar" and name in masks:
                density = max(float(masks[name].float().mean()), 1 / masks[name].numel())
            found[name] = Factors((width * density) ** -0.5, 1 / (width * density))
    return found


@torch.no_grad()
def initialise(model: nn.Module, chosen: Parameterization) -> None:
    """Scale the fresh weights of a model in place; what is masked stays zero.

    Every matrix was drawn with its config's ``initializer_range`` (GPT-2's residual projections
    keep their own share of that).
    """
    params = dict(model.named_parameters())
    config: Any = model.config
    base = chosen.init_std / config.initializer_range
    for name, factor in factors(model, chosen).items():
        if params[name].dim() > 1:
            params[name].mul_(base * factor.std)


def groups(model: nn.Module, chosen: Parameterization, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups of the optimizer, those of factor 1 first; ``rate_factor`` is in each."""
    params = dict(model.named_parameters())
    by_key: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for name, factor in factors(model, chosen).items():
        by_key.setdefault((factor.rate, params[name].dim() > 1), []).append(params[name])
    ordered = sorted(by_key, key=lambda key: (key[0] != 1.0, key))
    return [
        {
            "params": by_key[rate, decays],
            "rate_factor": rate,
            "weight_decay": weight_decay / rate if decays else 0.0,
        }
        for rate, decays in ordered
    ]
