"""Masks on a GPU are those of the CPU."""

import copy

import pytest
import torch

from tests.cases import ALGORITHMS, assert_enforced, driven, make, make_model


def masks_over_updates(name, model, device):
    """The masks after each of six steps whose gradients come from a CPU generator."""
    model = copy.deepcopy(model).to(device)
    algorithm = make(name, [0.3, 0.8, 0.4])  # by more than drops free
    optimizer = driven(algorithm, model, lr=0.0, momentum=0.9)
    found = []
    for step in range(6):
        generator = torch.Generator().manual_seed(step)
        for param in model.parameters():
            gradient = torch.randn(param.shape, generator=generator)
            # Through the hooks of a backward pass, where dense gradients are seen and masked.
            (param * gradient.to(device)).sum().backward()
        optimizer.step()
        assert_enforced(algorithm, optimizer)
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
