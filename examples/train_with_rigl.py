"""Train your own model with RigL: look before, train, save, go on, and skip the masked work."""

import torch
from torch import nn

import sparse_lib as sl

STEPS = 300


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points in 64 dimensions, of which 8 decide about the class; a function of the step."""
    x = torch.randn(128, 64, generator=torch.Generator().manual_seed(step))
    return x, (x[:, :4].prod(1) + x[:, 4:8].sum(1) > 0).long()


def make(seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer, sl.Group]:
    """A model, its optimizer, and RigL on every linear layer but the last."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
    model.append(nn.Linear(256, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    config = {
        "algorithm": "rigl",
        "sparsity": 0.9,
        "param_filter": ["0.weight", "2.weight"],
        "update": {"freq": 20, "stop": int(0.75 * STEPS)},
        "drop_fraction": {"type": "cosine", "init": 0.3, "half_period": STEPS},
        "seed": 0,
    }
    print(sl.plan(model, config, num_steps=STEPS))  # what will be sparse, before any training
    sparsity = sl.configure(config)
    sparsity.apply(model)  # the model first,
    sparsity.apply(optimizer)  # then its optimizer
    return model, optimizer, sparsity


def train(model: nn.Module, optimizer: torch.optim.Optimizer, start: int, stop: int) -> float:
    """The loop stays as it is without sparsity."""
    for step in range(start, stop):
        x, label = batch(step)
        loss = nn.functional.cross_entropy(model(x), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main() -> dict[str, float]:
    """Train in two halves, as if interrupted between them."""
    model, optimizer, sparsity = make()
    train(model, optimizer, 0, STEPS // 2)
    parts = {"model": model, "optimizer": optimizer, "sparsity": sparsity}
    saved = {name: part.state_dict() for name, part in parts.items()}

    model, optimizer, sparsity = make(seed=1)  # what is loaded replaces all of it
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    sparsity.load_state_dict(saved["sparsity"])
    fast = sl.device.compile(model, "skip")  # shares weights and masks with the model
    loss = train(fast, optimizer, STEPS // 2, STEPS)

    x, label = batch(STEPS)
    accuracy = (model(x).argmax(1) == label).float().mean().item()
    print(f"loss {loss:.3f}, accuracy on new points {accuracy:.0%}")
    metrics = sparsity.metrics()
    for name, tensor in metrics["tensors"].items():
        print(f"{name}: {tensor['sparsity']:.1%} zeros, {tensor['itop']:.0%} of places tried")
    return {"accuracy": accuracy, "sparsity": metrics["sparsity"]}


if __name__ == "__main__":
    main()
