"""Sparse-IFT: sparse replacements that cost the FLOPs of the dense layers (Thangarasa et al. 2024).

>>> import torch, sparse_lib as sl
>>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
>>> model, config, report = sl.ift.transform(model, "factorized", 0.5)
>>> report.layers[0].flops_before, report.layers[0].flops_after
(8192, 8192)
>>> group = sl.configure(config | {"algorithm": "rigl", "update": {"freq": 100}})
"""

from sparse_lib.ift.report import LayerReport, Report
from sparse_lib.ift.sizes import (
    doped_rank,
    factorized_size,
    parallel_branches,
    round_size,
    wide_factor,
)
from sparse_lib.ift.transformation import FAMILIES, solve_sparsity, transform

__all__ = [
    "FAMILIES",
    "LayerReport",
    "Report",
    "doped_rank",
    "factorized_size",
    "parallel_branches",
    "round_size",
    "solve_sparsity",
    "transform",
    "wide_factor",
]
