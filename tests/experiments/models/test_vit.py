"""The vision transformer: its work by hand, and which of its weights are sparse."""

import pytest
import torch

from experiments.models import vit
from sparse_lib.configure import configure
from sparse_lib.flops.model import count

SIZES = {"hidden_size": 8, "intermediate_size": 20, "num_layers": 2, "num_heads": 2}
CLASSES, CHANNELS, SIDE, PATCH = 7, 3, 12, 4


def build():
    torch.manual_seed(0)
    config = vit.Config(**SIZES, patch_size=PATCH)
    return vit.build(config, classes=list("abcdefg"), num_channels=CHANNELS, image_size=SIDE)


def test_work_and_sparse_weights():
    model = build()
    patches, width, inner = (SIDE // PATCH) ** 2, 8, 20
    tokens = patches + 1  # and the class's
    blocks = 2 * (4 * width**2 + 2 * width * inner)
    attention = 2 * 2 * 2 * tokens**2 * width
    rest = patches * CHANNELS * PATCH**2 * width + width * CLASSES
    flops = count(model, batch_size=1, image_size=SIDE)
    assert flops.forward() == 2 * tokens * blocks + attention + 2 * rest
    algorithm = configure({"algorithm": "static", "sparsity": 0.75, "seed": 0})
    algorithm.apply(model)
    sizes = [param.mask.numel() for param in algorithm.sparse_params.values()]
    assert sum(sizes) == blocks and len(sizes) == 12
    levels = {name: param.sparsity for name, param in algorithm.sparse_params.items()}
    assert flops.forward(levels) == 2 * tokens * blocks // 4 + attention + 2 * rest


def test_heads_must_divide_the_width():
    with pytest.raises(ValueError, match="hidden_size is 9; it must be a multiple of num_heads"):
        vit.Config(**(SIZES | {"hidden_size": 9}), patch_size=PATCH)
