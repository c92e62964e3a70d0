"""What is kept of a sharded or large dense gradient is enough for the mask update."""

import copy
import warnings

import pytest
import torch
from torch import nn

from sparse_lib.algorithms.granet import GraNet
from sparse_lib.algorithms.rigl import RigL
from sparse_lib.algorithms.srigl import SRigL
from sparse_lib.core import dense_gradients
from sparse_lib.core.candidates import Candidates
from sparse_lib.core.drop_and_grow import DropAndGrow

FALLING = {"type": "linear", "init": 0.8, "slope": -0.1}
RISING = {"type": "linear", "init": 0.5, "slope": 0.05}


def test_present_values_and_the_largest_absent_ones_are_kept():
    gradient = torch.tensor([[1.0, -9.0, 3.0], [5.0, -5.0, float("nan")], [0.5, 0.0, 2.0]])
    mask = torch.tensor([[True, False, False], [False, False, False], [False, True, True]])
    nan = float("nan")
    expected = torch.tensor([[1.0, -9.0, nan], [5.0, nan, nan], [nan, 0.0, 2.0]])
    kept = Candidates.of(gradient, mask, 2)  # of the two fives the first
    torch.testing.assert_close(kept.expanded(), expected, equal_nan=True)
    assert torch.equal(kept.expanded(0.0), expected.nan_to_num(0.0))
    mask[0, 1] = True
    with pytest.raises(RuntimeError, match="a mask was changed between the backward pass"):
        kept.expanded()


class Own(RigL):
    def grow_score(self, p):
        return -self.dense_gradient(p)


class Beside(RigL):
    """As if its file lay in ``sparse_lib/algorithms/``."""

    def grow_score(self, p):
        return -self.dense_gradient(p)


Beside.grow_score.__module__ = "sparse_lib.algorithms.beside"


class Faster(RigL):
    @property
    def drop_fraction(self):
        return 0.8


class Swapping(DropAndGrow):
    def update_mask(self, p, mask, sparsity):
        return super().update_mask(p, ~mask, sparsity)


class Between(RigL, Swapping):
    """The update of a base that comes after RigL in the order of resolution."""


class Named(RigL):
    """RigL with arguments of its own."""

    def __init__(self, sparsity=None, *, label="", **kwargs):
        self.label = label
        super().__init__(sparsity, **kwargs)


class Vouching(RigL):
    def grow_score(self, p):
        return super().grow_score(p) * 2

    def most_grown(self, sparse):
        return 9


def by_hand():
    """An object with a method of its own."""
    algorithm = RigL(0.8, update=2, drop_fraction=0.3)
    algorithm.grow_score = lambda p: -algorithm.dense_gradient(p)
    return algorithm


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (RigL(0.8, update=2, drop_fraction=0.3), 6),  # 20 present, of which 14 stay
        (RigL(FALLING, update=2, drop_fraction=0.3), 26),  # 20 present, 40 wanted
        (GraNet(RISING, update=2, drop_fraction=0.3), 5),  # 50 present, 35 stay, 40 wanted
        (GraNet(RISING, update=2, pruning="global"), None),
        (RigL(0.8, score_shaper="2:4"), None),
        (SRigL(0.8, update=2), None),
        (Own(0.8, update=2), None),
        (Beside(0.8, update=2), None),
        (Faster(0.8, update=2), None),
        (Between(0.8, update=2), None),
        (by_hand(), None),
        (Named(0.8, update=2, drop_fraction=0.3, label="a"), 6),
        (Vouching(0.8, update=2, drop_fraction=0.3), 9),
        (RigL(0.8, update=2, grown_init="gradient"), None),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_as_many_as_may_grow(algorithm, expected):
    torch.manual_seed(0)
    model = nn.Linear(4, 25, bias=False)
    algorithm.apply(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    algorithm.apply(optimizer)

    def step():
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().sum().backward()
        optimizer.step()

    step()
    (sparse,) = algorithm.sparse_params.values()
    assert algorithm.most_grown(sparse) == expected
    if expected is not None:
        before = sparse.mask.clone()
        step()
        assert 0 < int((sparse.mask & ~before).sum()) <= expected


def train(kind, passes, *, resumed_at=None, dtype=torch.float32):
    """Masks after eight steps, of which every second updates them, each of some backward passes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 7, bias=False)).to(dtype)
    algorithm = kind(0.8, update=2, drop_fraction=0.4, seed=3)
    algorithm.apply(model)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    algorithm.apply(optimizer)
    for step, number in enumerate(passes):
        if step == resumed_at:
            saved = algorithm.state_dict(), optimizer.state_dict()
            model = copy.deepcopy(model)
            algorithm = kind(0.8, update=2, drop_fraction=0.4, seed=3)
            algorithm.apply(model)
            optimizer = torch.optim.AdamW(model.parameters(), 0.01)
            algorithm.apply(optimizer)
            algorithm.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
        optimizer.zero_grad()
        for _ in range(number):
            model(torch.randn(16, 12, dtype=dtype)).square().sum().backward()
        optimizer.step()
    return [sparse.mask.clone() for sparse in algorithm.sparse_params.values()]


@pytest.mark.parametrize("kind", [Beside, Faster])
def test_a_subclass_with_methods_of_its_own_reads_whole_gradients(monkeypatch, kind):
    whole = train(kind, [1] * 8)
    monkeypatch.setattr(dense_gradients, "LARGE", 0)
    for one, other in zip(whole, train(kind, [1] * 8), strict=True):
        assert torch.equal(one, other)


def test_what_is_dropped_of_a_large_tensor_is_what_the_class_says():
    torch.manual_seed(0)
    model = nn.Linear(1024, 1024, bias=False)
    algorithm = Faster(0.9, update=2, seed=1)
    algorithm.apply(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    algorithm.apply(optimizer)
    for _ in range(2):
        before = model.weight_mask.clone()
        optimizer.zero_grad()
        model(torch.randn(4, 1024)).square().mean().backward()
        optimizer.step()
    grown = int((model.weight_mask & ~before).sum()) / int(before.sum())
    assert 0.7 < grown <= 0.8  # of the dropped ones some win again


@pytest.mark.filterwarnings("ignore:.*without the state:UserWarning")
@pytest.mark.parametrize("kind", [RigL, GraNet, SRigL])
@pytest.mark.parametrize(
    ("passes", "resumed_at"), [([1] * 8, None), ([3] * 8, None), ([2] * 8, 5), ([1] * 8, 3)]
)
def test_large_tensors_get_the_masks_of_whole_gradients(monkeypatch, kind, passes, resumed_at):
    kept = []
    of = Candidates.of
    monkeypatch.setattr(Candidates, "of", lambda *args: kept.append(1) or of(*args))
    whole = train(kind, passes, resumed_at=resumed_at)
    assert not kept
    monkeypatch.setattr(dense_gradients, "LARGE", 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        large = train(kind, passes, resumed_at=resumed_at)
    assert bool(kept) == (kind is not SRigL and 1 in passes)
    for one, other in zip(whole, large, strict=True):
        assert torch.equal(one, other)


def test_a_first_accumulation_at_an_update_is_told(monkeypatch):
    monkeypatch.setattr(dense_gradients, "LARGE", 0)
    with pytest.warns(UserWarning, match="accumulated over backward passes, for the first time"):
        train(RigL, [1, 2])
