"""Dynamic algorithms on the backend that skips masked work grow what they grow on masked dense."""

import pytest
import torch
from torch import nn

import sparse_lib as sl

NUM_STEPS, FREQ = 12, 3
MOVES = {"update": {"freq": FREQ}, "drop_fraction": 0.4, "seed": 1}
RISING = {"type": "linear", "init": 0.6, "slope": 0.02}
CASES = {
    "rigl": lambda: sl.RigL(0.8, **MOVES),
    "granet": lambda: sl.GraNet(RISING, pruning="global", **MOVES),
    "group": lambda: sl.Group({"0.*": sl.RigL(0.8, **MOVES), "*": sl.SET(0.7, **MOVES)}),
    "set growing along the gradient": lambda: sl.SET(0.8, grown_init="gradient", **MOVES),
}


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10)
    )


def weights_only(algorithm, model):
    for param in model.parameters():
        param.requires_dense = param.dim() < 2
    algorithm.apply(model)
    return algorithm


def run(case, execution, *, micro_batches=1, by_hand=False, resume_at=None):
    model = make_model()
    algorithm = weights_only(CASES[case](), model)
    compiled = sl.device.compile(model, sl.device.backend(execution, crossover=0.0, strict=True))
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    algorithm.apply(optimizer)
    algorithm.autoupdate = not by_hand
    data = torch.Generator().manual_seed(2)
    trail = []
    for step in range(NUM_STEPS):
        if step == resume_at:
            state = algorithm.state_dict()
            algorithm.detach()
            algorithm = weights_only(CASES[case](), model)
            algorithm.apply(optimizer)
            algorithm.load_state_dict(state)
        optimizer.zero_grad()
        for _ in range(micro_batches):
            images = torch.randn(4, 3, 6, 6, generator=data)
            nn.functional.cross_entropy(compiled(images), torch.arange(4)).backward()
        optimizer.step()
        if by_hand and (step + 1) % FREQ == 0:
            algorithm.update()
        trail.append({n: m.clone() for n, m in sl.checkpoint.masks_of(model).items()})
    assert algorithm.metrics()["churn"] > 0
    algorithm.detach()
    return trail


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "options",
    [{}, {"micro_batches": 2}, {"by_hand": True}, {"resume_at": FREQ - 1}],
    ids=["plain", "accumulated", "by hand", "resumed"],
)
def test_masks_are_those_of_masked_dense(case, options):
    skipped, dense = (run(case, name, **options) for name in ("skip", "dense"))
    for step, (ours, truth) in enumerate(zip(skipped, dense)):
        assert ours.keys() == truth.keys() and len(truth) == 2
        for name in truth:
            assert torch.equal(ours[name], truth[name]), (step, name)
