"""SNFS, plain STE and pruning at random and by saliency, by hand and against plain torch."""

import pytest
import torch

import sparse_lib as sl
from sparse_lib.algorithms.snfs import SNFS, allot
from tests.cases import assert_enforced, descend, driven, row


def keep(*columns: int):
    def init(param, sparsity):
        mask = torch.zeros_like(param, dtype=torch.bool)
        mask[0, list(columns)] = True
        return mask

    return init


def step(model, optimizer, gradient):
    """A step whose dense gradient is given."""
    descend(optimizer, model(torch.tensor([gradient])).sum())


def present(layer) -> list[int]:
    return layer.weight_mask[0].nonzero().flatten().tolist()


def test_snfs_grows_by_the_momentum_of_all_steps_at_the_cost_of_dense_gradients():
    model = row(1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    algorithm = SNFS(0.5, {"freq": 2}, keep(3, 4, 5), drop_fraction=1 / 3, momentum=0.75)
    optimizer = driven(algorithm, model, lr=0.0)
    step(model, optimizer, [0.0, 8.0, 0.0, 0.0, 0.0, 0.0])
    # 0.25 * 8 = 2 after one step and 1.5 after two, against 0.25 * 3; RigL would take column 0.
    step(model, optimizer, [3.0, 0.0, 1.0, 0.0, 0.0, 0.0])
    assert algorithm.momentum_of(model.weight)[0].tolist() == [0.75, 1.5, 0.25, 0.0, 0.0, 0.0]
    assert present(model) == [1, 4, 5]  # column 3, the smallest present weight, is dropped
    model = torch.nn.Linear(10, 10, bias=False)
    algorithm = SNFS(0.8, {"freq": 3}, seed=0)
    optimizer = driven(algorithm, model, lr=0.0)
    flops = sl.count_flops(model, batch_size=4)
    for _ in range(5):
        step(model, optimizer, [1.0] * 10)
    dense = flops.forward()
    sparse = flops.forward({"weight": 0.8})
    assert algorithm.metrics(flops)["flops"]["run"] == 5 * (2 * sparse + dense)


def test_snfs_redistributes_to_the_tensor_of_the_larger_mean_momentum():
    model = torch.nn.Sequential(row(1.0, 2.0, 3.0, 4.0), torch.nn.Linear(1, 4, bias=False))
    model[1].weight.data = model[0].weight.detach().T.clone()
    options = {"drop_fraction": 0.5, "momentum": 0.0, "redistribution": "momentum"}
    algorithm = SNFS(0.5, {"freq": 1}, lambda p, s: p > 2, **options)
    optimizer = driven(algorithm, model, lr=0.0)
    first, second = model[0].weight, model[1].weight
    first.grad = torch.tensor([[1.0, 2.0, 9.0, 9.0]])  # mean of the present ones: 9
    second.grad = torch.ones(4, 1)  # 1
    optimizer.step()
    # Each drops one of two; the two grow 9 to 1, both in the first: its columns 1 and 2 win.
    assert model[0].weight_mask.tolist() == [[False, True, True, True]]
    assert model[1].weight_mask.flatten().tolist() == [False, False, False, True]


@pytest.mark.parametrize(
    ("total", "strength", "room", "shares"),
    [
        (3, [2.0, 1.0], [9, 9], [2, 1]),
        (4, [1.0, 1.0, 1.0], [9, 9, 9], [2, 1, 1]),  # the first of equal remainders
        (5, [0.0, 0.0], [9, 9], [3, 2]),
        (5, [9.0, 1.0], [2, 9], [2, 3]),
        (5, [1.0, 0.0], [2, 3], [2, 3]),  # no strength, but room
        (0, [1.0], [3], [0]),
    ],
)
def test_allot_by_hand(total, strength, room, shares):
    names = "abc"[: len(room)]
    by_name = [dict(zip(names, values, strict=True)) for values in (strength, room, shares)]
    assert allot(total, *by_name[:2]) == by_name[2]


def test_ste_is_plain_training_of_a_dense_tensor_seen_through_its_largest_magnitudes():
    torch.manual_seed(0)
    model = torch.nn.Linear(12, 9, bias=False)
    dense = model.weight.detach().clone().requires_grad_()
    algorithm = sl.SRSTE(0.75, decay=0.0)
    optimizer = driven(algorithm, model, lr=0.2, momentum=0.9, weight_decay=0.1)
    plain = torch.optim.SGD([dense], lr=0.2, momentum=0.9, weight_decay=0.1)
    returned = False
    for number in range(12):
        order = dense.detach().abs().flatten().argsort(descending=True, stable=True)
        mask = torch.zeros(dense.numel(), dtype=torch.bool)
        mask[order[:27]] = True
        mask = mask.view_as(dense)
        assert torch.equal(model.weight_mask, mask), number
        assert torch.equal(model.weight.detach(), torch.where(mask, dense.detach(), 0))
        data = torch.randn(8, 12, generator=torch.Generator().manual_seed(number))
        seen = torch.where(mask, dense.detach(), 0).requires_grad_()
        (data @ seen.T).sub(1).square().mean().backward()
        dense.grad = seen.grad  # straight through
        plain.step()
        optimizer.zero_grad()
        model(data).sub(1).square().mean().backward()
        before = model.weight_mask.clone()
        optimizer.step()
        returned |= bool((model.weight_mask & ~before).any())
        assert_enforced(algorithm, optimizer)
    assert returned
    assert torch.equal(algorithm.hidden_weight(model.weight), dense.detach())


def test_saliency_keeps_the_largest_products_of_weight_and_gradient():
    model = row(1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    algorithm = sl.SaliencyPruning([0.0, 0.5, 0.5], {"freq": 1}, "topk")
    optimizer = driven(algorithm, model, lr=0.0)
    step(model, optimizer, [9.0, 3.0, 0.0, 1.0, -2.0, 0.5])  # 9, 6, 0, 4, 10, 3
    assert present(model) == [0, 1, 4]
    step(model, optimizer, [1.0, 1.0, 99.0, 99.0, 1.0, 99.0])
    assert present(model) == [0, 1, 4]  # absent positions do not come back
    model = row(1.0, 2.0)
    algorithm = sl.SaliencyPruning(0.5)
    algorithm.apply(model)
    with pytest.raises(RuntimeError, match="no gradient of 'weight'"):
        algorithm.update()


def test_random_pruning_removes_alone_and_every_weight_as_likely():
    counts = torch.zeros(8)
    for seed in range(400):
        model = row(*range(1, 9))
        algorithm = sl.RandomPruning([0.0, 0.25, 0.5], {"freq": 1}, "topk", seed=seed)
        optimizer = driven(algorithm, model, lr=0.0)
        step(model, optimizer, [1.0] * 8)
        first = set(present(model))
        step(model, optimizer, [1.0] * 8)
        second = present(model)
        assert len(first) == 6 and len(second) == 4 and set(second) <= first
        counts[second] += 1
    # Each stays in half of the draws: 200 with a standard deviation of 10.
    assert ((counts - 200).abs() < 45).all()
