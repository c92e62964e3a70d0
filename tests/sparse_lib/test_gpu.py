"""Masks on a GPU are those of the CPU, and the host waits for it at few places."""

import copy

import pytest
import torch

import sparse_lib as sl
from sparse_lib.conformance import Case, expect_enforced, make_model
from sparse_lib.core.registry import algorithm_classes
from tests.cases import ALGORITHMS, driven


def masks_over_updates(name, model, device):
    """The masks after each of six steps whose gradients come from a CPU generator."""
    model = copy.deepcopy(model).to(device)
    algorithm = Case(algorithm_classes()[name]).make([0.3, 0.8, 0.4])  # by more than drops free
    optimizer = driven(algorithm, model, lr=0.0, momentum=0.9)
    found = []
    for step in range(6):
        generator = torch.Generator().manual_seed(step)
        for param in model.parameters():
            gradient = torch.randn(param.shape, generator=generator)
            # Through the hooks of a backward pass, where dense gradients are seen and masked.
            (param * gradient.to(device)).sum().backward()
        optimizer.step()
        expect_enforced(algorithm, optimizer)
        optimizer.zero_grad()
        found.append({n: s.mask.cpu().clone() for n, s in algorithm.sparse_params.items()})
    return found


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ALGORITHMS)
def test_masks_on_a_gpu_are_those_of_a_cpu(name):
    model = torch.nn.Sequential(make_model(0), make_model(1), make_model(2))
    expected = masks_over_updates(name, model, "cpu")
    assert name == "acdc" or any(not mask.all() for mask in expected[-1].values())
    found = masks_over_updates(name, model, "cuda")
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


@pytest.fixture
def waits(monkeypatch):
    """Calls by which the host would wait for a GPU; not numpy, which the CPU's counts go by."""
    calls = []

    def watch(name):
        method = getattr(torch.Tensor, name)

        def watched(self, *args, **kwargs):
            calls.append(name)
            return method(self, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, name, watched)

    for name in ("item", "tolist", "cpu", "nonzero", "__int__", "__float__", "__bool__"):
        watch(name)
    return calls


def make_step(algorithm, num_layers):
    """A training step of layers of one size, compiled as one graph."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(num_layers)))
    optimizer = driven(algorithm, model, momentum=0.9)
    run, data = torch.compile(model, backend="eager", fullgraph=True), torch.randn(4, 16)

    def step():
        run(data).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@pytest.mark.parametrize("make", [sl.Static, sl.SET, sl.RigL, sl.GMP])
def test_the_host_waits_for_nothing_between_updates(make, waits):
    settings = {} if make is sl.Static else {"update": {"freq": 100}}
    step = make_step(make(0.5, **settings), 3)
    for _ in range(3):
        step()
    waits.clear()
    step()
    assert not waits
