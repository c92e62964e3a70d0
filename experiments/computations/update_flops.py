"""What a training step costs under each rule of growth: counted by the library over real steps of a
small network, beside the closed forms of Evci et al. 2020, appendix H."""

from __future__ import annotations

from typing import Any

import pandas as pd
import torch
from torch import nn

from sparse_lib.algorithms.rigl import RigL
from sparse_lib.algorithms.set import SET
from sparse_lib.algorithms.snfs import SNFS
from sparse_lib.algorithms.static import Static
from sparse_lib.flops.model import count, rigl_mean_step

SPARSITY, INTERVAL, ROUNDS, BATCH = 0.9, 9, 4, 8


def compute(scale: str) -> dict[str, pd.DataFrame]:
    """The table ``steps``, the same at every scale: one row per method."""
    update = {"freq": INTERVAL + 1}
    rules = {
        "Static": Static(SPARSITY, seed=0),
        "SET": SET(SPARSITY, update=update, seed=0),
        "RigL": RigL(SPARSITY, update=update, seed=0),
        "SNFS": SNFS(SPARSITY, update=update, seed=0),
    }
    return {"steps": pd.DataFrame([_row(name, rule) for name, rule in rules.items()])}


def _row(name: str, algorithm: Any) -> dict[str, Any]:
    """Train whole rounds of updates, and count."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 60), nn.ReLU(), nn.Linear(60, 50), nn.ReLU())
    inputs = torch.randn(BATCH, 40)
    flops = count(model, batch_size=BATCH)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    algorithm.apply(model)
    algorithm.apply(optimizer)
    steps = ROUNDS * (INTERVAL + 1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    levels = {key: param.sparsity for key, param in algorithm.sparse_params.items()}
    dense = flops.training_step() / 3
    sparse = flops.training_step(levels) / 3
    formula = {"RigL": rigl_mean_step(sparse, dense, INTERVAL), "SNFS": 2 * sparse + dense}.get(
        name, 3 * sparse
    )
    mean = algorithm.metrics(flops)["flops"]["run"] / steps
    return {
        "method": name,
        "steps": steps,
        "counted": mean,
        "formula": formula,
        "difference": mean / formula - 1,
    }
