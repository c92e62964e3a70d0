"""Sparse training for any ``nn.Module`` and any torch optimizer.

>>> import torch
>>> import sparse_lib as sl
>>> model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
>>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
>>> sparsity = sl.RigL(sparsity=0.75, update={"freq": 10, "stop": 75}, drop_fraction=0.3, seed=0)
>>> _ = sparsity.apply(model)
>>> _ = sparsity.apply(optimizer)
>>> loss = model(torch.ones(2, 8)).square().mean()
>>> loss.backward()
>>> optimizer.step()
>>> int(model[0].weight.count_nonzero()), model[0].weight.numel()
(64, 256)
"""

from sparse_lib import (  # noqa: F401 (reached as sl.masks, ...)
    algorithms,
    checkpoint,
    compat,
    device,
    ift,
    masks,
    optim,
    schedules,
)
from sparse_lib.algorithms.acdc import ACDC
from sparse_lib.algorithms.gmp import GMP
from sparse_lib.algorithms.granet import GraNet
from sparse_lib.algorithms.randompruning import RandomPruning
from sparse_lib.algorithms.rigl import RigL
from sparse_lib.algorithms.saliencypruning import SaliencyPruning
from sparse_lib.algorithms.set import SET
from sparse_lib.algorithms.snfs import SNFS
from sparse_lib.algorithms.srigl import SRigL
from sparse_lib.algorithms.srste import SRSTE
from sparse_lib.algorithms.static import Static
from sparse_lib.algorithms.topk import TopK
from sparse_lib.algorithms.topkast import TopKAST
from sparse_lib.checkpoint import densify, finalize, is_sparse, load_checkpoint
from sparse_lib.configure import configure
from sparse_lib.core.algorithm import SparsityAlgorithm
from sparse_lib.core.drop_and_grow import DropAndGrow
from sparse_lib.core.dynamic import DynamicSparsityAlgorithm
from sparse_lib.core.group import Group
from sparse_lib.core.hidden import HiddenWeights
from sparse_lib.finetune import keep_zeros
from sparse_lib.flops.model import count as count_flops
from sparse_lib.preview import plan

__version__ = "0.1.0"

# What a script types; everything else is reached by its module, such as sl.masks.num_nonzero.
__all__ = [
    "ACDC",
    "DropAndGrow",
    "DynamicSparsityAlgorithm",
    "GMP",
    "GraNet",
    "Group",
    "HiddenWeights",
    "RandomPruning",
    "RigL",
    "SET",
    "SNFS",
    "SRSTE",
    "SRigL",
    "SaliencyPruning",
    "SparsityAlgorithm",
    "Static",
    "TopK",
    "TopKAST",
    "configure",
    "count_flops",
    "densify",
    "finalize",
    "is_sparse",
    "keep_zeros",
    "load_checkpoint",
    "plan",
]
