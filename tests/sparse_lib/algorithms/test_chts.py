"""CHTs against its equations written as loops, and its draws against their probabilities."""

import itertools
import math

import pytest
import torch

import sparse_lib as sl
from sparse_lib.algorithms.chts import ch2_l3n, relative_importance
from tests.sparse_lib.algorithm_cases import assert_enforced, driven, train


def by_paths(mask, u, v):
    """The score of one absent link, path by path: each z once, with its neighbours as sets."""
    inputs = [set(row.nonzero().flatten().tolist()) for row in mask]
    outputs = [set(column.nonzero().flatten().tolist()) for column in mask.T]

    def side(of, mine, other_side):
        total = 0.0
        for z in other_side:
            common = of[mine] & of[z]
            if common:
                total += (1 + len(common)) / (1 + max(len(of[z]) - len(common) - 1, 0))
        return total

    return side(inputs, u, outputs[v]) + side(outputs, v, inputs[u])


def test_the_score_is_that_of_the_paths():
    mask = torch.rand(7, 9, generator=torch.Generator().manual_seed(0)) < 0.35
    score = ch2_l3n(mask)
    for u, v in itertools.product(range(7), range(9)):
        if not mask[u, v]:
            assert score[u, v].item() == pytest.approx(by_paths(mask, u, v), abs=1e-12)
    assert torch.equal(ch2_l3n(mask.T).T, score)


def test_relative_importance_by_hand():
    weight = torch.tensor([[1.0, 3.0], [0.0, 0.0], [1.0, 0.0]])
    expected = torch.tensor([[0.5 + 0.25, 1.0 + 0.75], [0.0, 0.0], [0.5 + 1.0, 0.0]])
    assert torch.equal(relative_importance(weight), expected.double())


def layer_of(mask, weight=None):
    layer = torch.nn.Linear(mask.shape[1], mask.shape[0], bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.ones(mask.shape) if weight is None else weight)
    return layer


def updated(mask, weight=None, sparsity=None, **options):
    """The mask after one update of a layer with a given first mask."""
    layer = layer_of(mask, weight)
    level = 1 - int(mask.sum()) / mask.numel() if sparsity is None else sparsity
    algorithm = sl.CHTs(level, 1, lambda param, _: mask.clone(), **options)
    optimizer = driven(algorithm, layer, torch.optim.SGD, 0.0)
    layer(torch.ones(1, mask.shape[1])).sum().backward()
    optimizer.step()
    return layer.weight_mask


SQUARE = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 1]]).bool()


def test_top_growth_closes_the_square_first():
    # (0, 2) closes a 4-cycle with score 7; all others share no neighbour and score 0.
    new = updated(SQUARE, sparsity=1 - 7 / 12, drop_fraction=0, growth="top", seed=3)
    expected = SQUARE.clone()
    expected[0, 2] = True
    assert torch.equal(new, expected)
    for seed in range(20):  # of one positive score, so it comes first in a draw as well
        new = updated(SQUARE, sparsity=1 - 7 / 12, drop_fraction=0, seed=seed)
        assert torch.equal(new, expected)


def test_without_softness_the_smallest_weights_go():
    weight = torch.arange(1.0, 13.0).view(3, 4)
    mask = torch.ones(3, 4).bool()
    new = updated(mask, weight, sparsity=0.5, drop_fraction=0.5, delta=1.0, seed=0)
    assert torch.equal(new, weight > 6)


@pytest.mark.parametrize(("delta", "exponent"), [(0.5, 1.0), (0.75, 3.0)])
def test_those_that_stay_are_drawn_in_proportion_to_a_power_of_their_magnitude(delta, exponent):
    strength = torch.tensor([[1.0, 2.0, 3.0]])
    algorithm = sl.CHTs(0.0, 1, delta=delta, seed=0)
    layer = layer_of(torch.ones(1, 3).bool(), strength)
    algorithm.apply(layer)
    counts, draws = torch.zeros(3), 4000
    for number in range(draws):
        algorithm.num_updates = number
        counts[algorithm.drop_score(layer.weight).argmax()] += 1
    expected = strength[0] ** exponent / (strength**exponent).sum()
    for count, share in zip(counts.tolist(), expected.tolist(), strict=True):
        assert abs(count / draws - share) < 4 * math.sqrt(share * (1 - share) / draws)


def test_a_weight_that_is_nan_stays_and_one_that_is_zero_goes_first():
    weight = torch.tensor([[float("nan"), 1e-30, 0.0, 1e30]])
    layer = layer_of(torch.ones(1, 4).bool(), weight)
    for removal, seed in itertools.product(("magnitude", "relative"), range(5)):
        algorithm = sl.CHTs(0.0, 1, delta=0.9, removal=removal, seed=seed)
        algorithm.sparse_params.clear()
        fresh = layer_of(torch.ones(1, 4).bool(), weight)
        algorithm.apply(fresh)
        key = algorithm.drop_score(fresh.weight)[0]
        assert key[0] == key.max() and key[2] == key.min() < key[1]
    assert layer.weight.isnan().any()


def test_without_an_exponent_all_weights_are_alike_also_those_that_are_zero():
    weight = torch.zeros(20, 50)
    weight[:, ::2] = torch.linspace(1, 9, 500).view(20, 25)
    algorithm = sl.CHTs(0.0, 1, delta=0.0, seed=0)
    layer = layer_of(torch.ones(20, 50).bool(), weight)
    algorithm.apply(layer)
    stay = algorithm.drop_score(layer.weight).flatten().topk(500).indices
    share = float((layer.weight.detach().flatten()[stay] == 0).double().mean())
    assert abs(share - 0.5) < 4 * math.sqrt(0.25 / 500)  # a draw of 500 of 1000


def test_the_exponent_rises_and_the_state_goes_on():
    delta = {"type": "linear", "init": 0.5, "slope": 0.1}
    model = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.Tanh(), torch.nn.Linear(16, 6))
    algorithm = sl.CHTs(0.6, 2, delta=delta, removal="relative", seed=0)
    optimizer = driven(algorithm, model, torch.optim.SGD, 0.1, momentum=0.9)
    assert algorithm.delta == 0.5
    train(model, optimizer, 3)
    assert algorithm.delta == pytest.approx(0.8)
    train(model, optimizer, 5)
    assert algorithm.delta == 1.0  # and no division by 0
    assert_enforced(algorithm, optimizer)


def test_convolutions_link_to_each_weight_of_a_kernel():
    conv = torch.nn.Conv2d(3, 5, 3, bias=False)
    algorithm = sl.CHTs(0.5, 1, drop_fraction=0.3, seed=0)
    algorithm.apply(conv)
    flat = ch2_l3n(conv.weight_mask.view(5, 27)).view(5, 3, 3, 3)
    assert torch.equal(algorithm.grow_score(conv.weight), flat)


def test_the_sigmoid_schedule_is_an_s():
    density = sl.schedules.make_hyperparameter_schedule(
        {"type": "sigmoid", "init": 0.5, "final": 0.9, "start": 10, "stop": 110}
    )
    assert [density(t) for t in (0, 10, 110, 500)] == [0.5, 0.5, 0.9, 0.9]
    assert density(60) == pytest.approx(0.7)

    def g(x):
        return 1 / (1 + math.exp(-6 * (2 * x - 1)))

    for step in (20, 35, 85, 100):
        share = (g((step - 10) / 100) - g(0)) / (g(1) - g(0))
        assert density(step) == pytest.approx(0.5 + 0.4 * share)
    with pytest.raises(ValueError, match="steepness must be above 0"):
        sl.schedules.make_hyperparameter_schedule(
            {"type": "sigmoid", "init": 0, "final": 1, "start": 0, "stop": 9, "steepness": 0}
        )
