"""Dynamic algorithms on the backend that skips masked work grow what they grow on masked dense."""

import pytest
import torch
from torch import nn

import sparse_lib as sl
from tests.cases import driven, same

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
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10)
    model = nn.Sequential(*layers)
    model[0].bias.requires_dense = model[3].bias.requires_dense = True
    return model


def run(case, execution, *, micro_batches=1, by_hand=False, resume_at=None):
    """The masks after each step of a compiled twin, or of the model itself."""
    model, algorithm = make_model(), CASES[case]()
    optimizer = driven(algorithm, model, lr=0.05, momentum=0.9)
    if execution is None:
        used = model
    else:
        used = sl.device.compile(model, sl.device.backend(execution, crossover=0.0, strict=True))
    algorithm.autoupdate = not by_hand
    data = torch.Generator().manual_seed(2)
    trail = []
    for step in range(NUM_STEPS):
        if step == resume_at:
            state = algorithm.state_dict()
            algorithm.detach()
            algorithm = CASES[case]()
            algorithm.apply(model)
            algorithm.apply(optimizer)
            algorithm.load_state_dict(state)
        optimizer.zero_grad()
        for _ in range(micro_batches):
            images = torch.randn(4, 3, 6, 6, generator=data)
            nn.functional.cross_entropy(used(images), torch.arange(4)).backward()
        optimizer.step()
        if by_hand and (step + 1) % FREQ == 0:
            algorithm.update()
        trail.append({n: m.clone() for n, m in sl.checkpoint.masks_of(model).items()})
    assert algorithm.metrics()["churn"] > 0 and len(trail[-1]) == 2
    return trail


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "options",
    [{}, {"micro_batches": 2}, {"by_hand": True}, {"resume_at": FREQ - 1}],
    ids=["plain", "accumulated", "by hand", "resumed"],
)
def test_masks_are_those_of_masked_dense(case, options):
    truth = run(case, None, **options)
    for execution in ("skip",) if options else ("skip", "dense"):
        assert same(run(case, execution, **options), truth), execution
