"""Fine-tune a model that is pruned already: its zeros stay zero, and the result is exported."""

import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.nn.utils import prune

import sparse_lib as sl


def make_model() -> nn.Sequential:
    """A small network; yours may come from anywhere."""
    layers = [nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1)]
    return nn.Sequential(*layers)


def fit(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, shift: float) -> float:
    """Fit a function of the inputs, moved by `shift`; returns the last loss."""
    for step in range(steps):
        x = torch.randn(256, 32, generator=torch.Generator().manual_seed(step))
        y = (x[:, :4].sum(1, keepdim=True) + shift).sin()
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def pruned_weights() -> dict[str, torch.Tensor]:
    """What you are given: a trained model with 80% of its weights set to zero, as plain tensors."""
    torch.manual_seed(0)
    model = make_model()
    fit(model, torch.optim.AdamW(model.parameters(), lr=2e-3), 200, shift=0.0)
    for layer in (model[0], model[2]):
        prune.l1_unstructured(layer, "weight", amount=0.8)
        prune.remove(layer, "weight")
    return model.state_dict()


def main() -> dict[str, float]:
    """Load, keep the zeros, fine-tune on another function, export."""
    weights = pruned_weights()
    model = make_model()
    model.load_state_dict(weights)

    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    sl.keep_zeros(model, optimizer)
    before = fit(model, optimizer, 1, shift=0.5)
    after = fit(model, optimizer, 300, shift=0.5)
    print(f"loss {before:.3f} before fine-tuning, {after:.3f} after")

    revived = 0
    for name in ("0.weight", "2.weight"):
        weight = model.state_dict()[name]
        revived += int((weight[weights[name] == 0] != 0).sum())
        print(f"{name}: {(weight == 0).float().mean():.1%} zeros")
    with tempfile.TemporaryDirectory() as folder:
        # Values and bits on disk, checked against the model; `sl.finalize` would drop the masks.
        path = sl.checkpoint.export_safetensors(
            model, Path(folder, "model.safetensors"), layout="bitmask"
        )
        state, _ = sl.checkpoint.read_safetensors(path)
        print(f"{path.name}: {path.stat().st_size} bytes")
    assert all(torch.equal(state[name], model.state_dict()[name]) for name in weights)
    return {"before": before, "after": after, "revived": revived}


if __name__ == "__main__":
    main()
