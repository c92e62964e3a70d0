"""A new algorithm in a dozen lines, held against Static and SET over three seeds."""

import statistics

import torch
from torch import Tensor, nn

import sparse_lib as sl

STEPS, SPARSITY = 400, 0.95


class InputSET(sl.SET):
    """SET whose growth prefers inputs that have large weights already.

    Random growth gives each absent weight the same chance. Here the chance rises with the mean
    magnitude of the weights on the same input, so inputs that proved useful get more of them.
    It pays where few inputs matter; where useful ones are not found early, it loses to SET.
    """

    def grow_score(self, p: Tensor) -> Tensor:
        """Random, times the mean magnitude of the column; the highest scores grow."""
        return super().grow_score(p) * p.abs().mean(0, keepdim=True)


def train(algorithm: str, seed: int) -> float:
    """Loss on new points of a network that has to find out which 4 of 128 inputs matter."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    config = {"algorithm": algorithm, "sparsity": SPARSITY, "param_filter": "0.weight"}
    if algorithm != "static":
        config["update"] = {"freq": 20, "stop": int(0.75 * STEPS)}
    # The class is found by its name in lower case, as the library's own are.
    sparsity = sl.configure({**config, "seed": seed})
    sparsity.apply(model)
    sparsity.apply(optimizer)
    draws = torch.Generator().manual_seed(seed)
    for _ in range(STEPS):
        loss = error(model, torch.randn(128, 128, generator=draws))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return error(model, torch.randn(4096, 128, generator=draws)).item()


def error(model: nn.Module, x: Tensor) -> Tensor:
    """Mean squared error on a function of the first four inputs; x has shape (points, 128)."""
    return nn.functional.mse_loss(model(x)[:, 0], x[:, :4].sum(1).sin())


def main() -> dict[str, list[float]]:
    """Train each method with three seeds and print means and differences to Static."""
    losses = {
        name: [train(name, seed) for seed in range(3)] for name in ("static", "set", "inputset")
    }
    for name, values in losses.items():
        paired = [value - static for value, static in zip(values, losses["static"], strict=True)]
        print(
            f"{name:9} {statistics.mean(values):.3f}, minus Static {statistics.mean(paired):+.3f} "
            f"(standard deviation over seeds {statistics.stdev(paired):.3f})"
        )
    return losses


if __name__ == "__main__":
    main()
