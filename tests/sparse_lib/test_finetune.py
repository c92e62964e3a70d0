"""Fine-tuning of a pruned model keeps its zeros, and touches nothing else."""

import pytest
import torch
from torch import nn

import sparse_lib as sl
from tests.cases import descend


def pruned():
    torch.manual_seed(0)
    model = nn.ModuleDict({name: nn.Linear(8, 8) for name in ("first", "blank", "second")})
    model["embedding"] = nn.Embedding(6, 8)
    with torch.no_grad():
        model["first"].weight[model["first"].weight.abs() < 0.2] = 0
        model["embedding"].weight[0] = 0
        model["blank"].weight.zero_()
    return model


def test_only_weights_with_zeros_are_masked_and_stay_so():
    model = pruned()
    before = model["first"].weight.detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), 0.1, weight_decay=0.1)
    group = sl.keep_zeros(model, optimizer)
    assert list(group.sparse_params) == ["first.weight"]
    for _ in range(3):
        hidden = model["embedding"](torch.arange(6))
        for name in ("first", "blank", "second"):
            hidden = hidden + model[name](hidden).tanh()
        descend(optimizer, hidden.pow(2).sum())
    after = model["first"].weight.detach()
    assert torch.equal(after == 0, before == 0) and not torch.equal(after, before)
    assert model["blank"].weight.all() and model["embedding"].weight[0].all()


def test_masks_that_are_there_are_taken_over_and_dense_models_refused():
    model = nn.Linear(8, 8, bias=False)
    sl.Static(0.5, seed=0).apply(model)
    mask = model.weight_mask.clone()
    with torch.no_grad():
        model.weight[mask.nonzero()[0, 0], mask.nonzero()[0, 1]] = 0  # present, and zero by chance
    sl.load_checkpoint(twin := nn.Linear(8, 8, bias=False), model.state_dict())
    sl.keep_zeros(twin)
    assert torch.equal(twin.weight_mask, mask)
    with pytest.raises(ValueError, match="no weight of the model has zeros to keep"):
        sl.keep_zeros(nn.Linear(4, 4))
