"""Whether activations keep their size over width and sparsity, before and after a few steps.

The coordinate check of Yang et al. (2022), with sparsity as in figure 5 of Dey et al. (NeurIPS
2024): one decoder at several widths and random static sparsities, trained for a few steps under
each rule of `experiments.models._parameterization`. Where a rule is right, only noise changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from experiments.models import _parameterization as parameterization
from experiments.models import llama
from sparse_lib.configure import configure

RULES = ("standard", "mup", "supar")
STEPS = (0, 1, 10)
BASE_WIDTH = 32
INIT_STD = 0.1
LEARNING_RATE = 0.004
VOCAB, BATCH, CONTEXT, LAYERS = 64, 8, 32, 2

#: scale -> widths, sparsities, seeds.
GRIDS: dict[str, tuple[tuple[int, ...], tuple[float, ...], int]] = {
    "smoke": ((32, 64), (0.0, 0.75), 1),
    "quick": ((32, 64, 128), (0.0, 0.75, 0.9375), 2),
}
MOST = ((32, 64, 128, 256), (0.0, 0.5, 0.75, 0.875, 0.9375, 0.984375), 3)


def compute(scale: str) -> dict[str, pd.DataFrame]:
    """The table ``activations``: one row per rule, width, sparsity, seed and step.

    ``value`` is the mean magnitude of what attention and feed-forward layers add to the residual
    stream.
    """
    widths, sparsities, seeds = GRIDS.get(scale, MOST)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = [
            {"rule": rule, "width": width, "sparsity": sparsity, "seed": seed, **row}
            for rule in RULES
            for width in widths
            for sparsity in sparsities
            for seed in range(seeds)
            for row in trace(rule, width, sparsity, seed)
        ]
    finally:
        torch.set_num_threads(threads)
    return {"activations": pd.DataFrame(rows)}


def trace(rule: str, width: int, sparsity: float, seed: int) -> Iterator[dict[str, Any]]:
    """Step and mean magnitude of one model's activations, at each of `STEPS`.

    Args:
        rule: One of `RULES`.
        width: Hidden size, a multiple of 16.
        sparsity: Of every matrix in the blocks, in [0, 1).
        seed: Of weights, masks and tokens.
    """
    chosen = parameterization.Parameterization(rule=rule, base_width=BASE_WIDTH, init_std=INIT_STD)
    config = llama.Config(
        hidden_size=width,
        intermediate_size=width * 11 // 4,
        num_layers=LAYERS,
        num_heads=width // 16,
    )
    torch.manual_seed(seed)
    model = llama.build(config, vocab_size=VOCAB, context=CONTEXT, eos_id=0)
    masks = {"algorithm": "static", "sparsity": sparsity, "seed": seed}
    algorithm = configure(masks) if sparsity else None
    if algorithm is not None:
        algorithm.apply(model)
    parameterization.initialise(model, chosen)
    optimizer = torch.optim.AdamW(parameterization.groups(model, chosen, 0.0), betas=(0.9, 0.95))
    for group in optimizer.param_groups:
        group["lr"] = LEARNING_RATE * group["rate_factor"]
    if algorithm is not None:
        algorithm.apply(optimizer)
    tokens = _tokens(seed)
    for step in range(max(STEPS) + 1):
        if step in STEPS:
            yield {"step": step, "value": _activation(model, tokens[:, :-1])}
        logits = model(input_ids=tokens[:, :-1]).logits
        cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def _tokens(seed: int) -> torch.Tensor:
    """A batch with something to learn: each token is followed by one of four; (B, T + 1)."""
    generator = torch.Generator().manual_seed(seed)
    after = torch.randint(VOCAB, (VOCAB, 4), generator=generator)
    tokens = torch.randint(VOCAB, (BATCH, CONTEXT + 1), generator=generator)
    for place in range(CONTEXT):
        choice = torch.randint(4, (BATCH,), generator=generator)
        tokens[:, place + 1] = after[tokens[:, place], choice]
    return tokens


@torch.no_grad()
def _activation(model: nn.Module, tokens: torch.Tensor) -> float:
    seen: list[float] = []
    ends = [
        module
        for name, module in model.named_modules()
        if name.endswith(("self_attn.o_proj", "mlp.down_proj"))
    ]
    hooks = [
        module.register_forward_hook(lambda _, __, out: seen.append(float(out.abs().mean())))
        for module in ends
    ]
    try:
        model(input_ids=tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return sum(seen) / len(seen)
