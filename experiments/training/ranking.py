"""Scores of weights for masks that are pruned at initialisation."""

from __future__ import annotations

import copy
from typing import Any

import torch

from experiments.training.device import over
from sparse_lib.configure import configure
from sparse_lib.masks import at_init
from sparse_lib.masks.init import keep_score

#: Batches whose mean loss ranks the weights.
NUM_BATCHES = 8
NORMS = (
    torch.nn.modules.batchnorm._BatchNorm,
    torch.nn.GroupNorm,
    torch.nn.LayerNorm,
    torch.nn.RMSNorm,
)


def rank_weights(
    model: torch.nn.Module, config: dict[str, Any], task: Any, device: torch.device
) -> None:
    """Score a model's weights on the first batches; `sparse_lib` finds the scores at the weights.

    Norms that start at zero count as one for the scores. They close residual branches, so that no
    gradient reaches the weights inside, which would all score zero.

    Args:
        model: fresh, on its device, whole in this process; stays as it is.
        config: of the sparsity, with an ``init_method`` that ranks weights.
    """
    twin = copy.deepcopy(model).train()  # forward passes change running statistics
    for module in twin.modules():
        gain = getattr(module, "weight", None)
        if isinstance(module, NORMS) and gain is not None and not gain.any():
            torch.nn.init.ones_(gain)
    probe = configure({**config, "init_method": "random", "distribution": None})
    assert probe is not None
    probe.apply(copy.deepcopy(model))
    masked = probe.sparse_params
    batches = [over(task.batch(step), lambda part: part.to(device)) for step in range(NUM_BATCHES)]

    def loss() -> torch.Tensor:
        return sum(task.loss(twin, batch) for batch in batches) / len(batches)

    method, options = config["init_method"], {}
    if method in ("force", "iterative-snip"):
        sizes = [param.mask.numel() for param in masked.values()]
        present = sum(int(param.mask.count_nonzero()) for param in masked.values())
        options["sparsity"] = 1 - present / sum(sizes)
    state = torch.get_rng_state()
    scores = at_init.rank(twin, loss, method, params=list(masked), **options)
    torch.set_rng_state(state)
    weights = dict(model.named_parameters())
    for name, score in scores.items():
        keep_score(weights[name], method, score)
