"""Masks on each device here are those of the CPU, from the same weights and gradients."""

import copy

import pytest
import torch

from sparse_lib.conformance import Case, expect_enforced, make_model
from sparse_lib.core.registry import algorithm_classes
from tests.sparse_lib.algorithm_cases import ALGORITHMS

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def masks_over_updates(name, model, device):
    """The masks after each of six steps whose gradients come from a CPU generator."""
    model = copy.deepcopy(model).to(device)
    algorithm = Case(algorithm_classes()[name]).make()
    algorithm.apply(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.0, momentum=0.9)
    algorithm.apply(optimizer)
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


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_masks_of_a_device_are_those_of_the_cpu(name, device):
    expected = masks_over_updates(name, make_model(), "cpu")
    found = masks_over_updates(name, make_model(), device)
    assert name == "acdc" or any(not mask.all() for mask in expected[-1].values())
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)
