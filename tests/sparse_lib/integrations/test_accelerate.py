"""Sparse training in a real ``Accelerator``: save, load in a new one, with the bits of one run."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("accelerate")

from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState

from sparse_lib.integrations.accelerate import sparsify

RIGL = {"algorithm": "rigl", "sparsity": 0.75, "update": 2, "drop_fraction": 0.5, "seed": 1}


def build(precision="no", seed=0):
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    accelerator = Accelerator(cpu=True, mixed_precision=precision, gradient_accumulation_steps=2)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 8))
    optimizer = torch.optim.AdamW(model.parameters(), 0.05)
    data = torch.randn(32, 12, generator=torch.Generator().manual_seed(4))
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, DataLoader(TensorDataset(data), 4)
    )
    return accelerator, model, optimizer, loader, sparsify(accelerator, RIGL, model, optimizer)


def train(accelerator, model, optimizer, loader, algorithm):
    """One epoch; on one process that is 8 micro-batches and 4 steps."""
    for (batch,) in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).pow(2).sum(1).sub(1).pow(2).mean())
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_a_new_process_goes_on_with_the_same_bits(tmp_path, precision):
    whole = build(precision)
    train(*whole)
    train(*whole)
    assert whole[-1].step == 8 and whole[-1][0].num_updates == 4
    cut = build(precision)
    train(*cut)
    cut[0].save_state(tmp_path / "state")
    again = build(precision, seed=5)
    again[0].load_state(tmp_path / "state")
    assert again[-1].step == 4
    train(*again)
    for name, value in whole[1].state_dict().items():
        assert torch.equal(value, again[1].state_dict()[name]), name
    assert whole[-1].metrics() == again[-1].metrics()
    assert whole[-1].metrics()["sparsity"] == 0.75
    assert not whole[1][0].weight[~whole[1][0].weight_mask].any()


def in_ranks(folder, rank):
    """Ends of a whole training and of a stopped one; called on every rank."""
    whole = build(seed=rank)
    train(*whole)
    whole[0].save_state(folder / "state")
    train(*whole)
    again = build(seed=rank + 2)
    again[0].load_state(folder / "state")
    train(*again)
    return [made[0].unwrap_model(made[1]).state_dict() for made in (whole, again)]
