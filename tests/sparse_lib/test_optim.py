"""Torch's optimizers with ``apply``."""

import pytest
from torch import nn

from sparse_lib import optim
from sparse_lib.algorithms.static import Static


def test_every_torch_optimizer_has_apply():
    model = nn.Linear(4, 4)
    sparsity = Static(0.5)
    model.apply(sparsity)
    optimizer = optim.AdamW(model.parameters())
    assert optimizer.apply(sparsity) is optimizer and sparsity.drives_optimizer
    with pytest.raises(TypeError, match="apply takes a sparsity algorithm, not 3"):
        optimizer.apply(3)
    assert {"SGD", "Adam", "AdamW", "Adagrad", "RMSprop"} <= set(optim.__all__)
