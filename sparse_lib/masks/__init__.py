"""Masks: from scores and a sparsity to boolean tensors."""

from sparse_lib.masks.counts import num_nonzero
from sparse_lib.masks.makers import (
    add_best,
    add_random,
    generator,
    make_mask_drop_minimum,
    make_mask_grow_maximum,
    make_mask_topk_sparsity,
    make_masks_global_topk,
    random_score,
)
from sparse_lib.masks.shapers import (
    BlockScoreShaper,
    InputGroupScoreShaper,
    NMScoreShaper,
    OutputGroupScoreShaper,
    ScoreFlattener,
    ScoreShaper,
)

__all__ = [
    "BlockScoreShaper",
    "InputGroupScoreShaper",
    "NMScoreShaper",
    "OutputGroupScoreShaper",
    "ScoreFlattener",
    "ScoreShaper",
    "add_best",
    "add_random",
    "generator",
    "make_mask_drop_minimum",
    "make_mask_grow_maximum",
    "make_mask_topk_sparsity",
    "make_masks_global_topk",
    "num_nonzero",
    "random_score",
]
