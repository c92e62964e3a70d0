"""SLTrain against a dense weight that is composed with autograd."""

import pytest
import torch
from torch import nn

import sparse_lib as sl
from sparse_lib.sltrain import SparseLowRankLinear


def composed(layer, x):
    """The same, with ``W`` as an ordinary tensor of autograd's graph."""
    low = layer.alpha / layer.rank * (layer.B @ layer.A)
    sparse = torch.zeros(low.numel(), dtype=low.dtype).index_put((layer.places,), layer.values)
    return nn.functional.linear(x, low + sparse.view_as(low), layer.bias)


@pytest.mark.parametrize("bias", [True, False])
def test_outputs_and_gradients_are_those_of_the_composed_weight(bias):
    layer = SparseLowRankLinear(
        7, 5, rank=2, sparsity=0.8, alpha=3.0, bias=bias, dtype=torch.float64
    )
    with torch.no_grad():
        layer.B.copy_(torch.randn(5, 2))
    x = torch.randn(4, 3, 7, dtype=torch.float64, requires_grad=True)
    weights = [x, *layer.parameters()]
    ours, theirs = layer(x), composed(layer, x)
    torch.testing.assert_close(ours, theirs)
    seed = torch.randn_like(ours)
    for mine, expected in zip(
        torch.autograd.grad(ours, weights, seed), torch.autograd.grad(theirs, weights, seed)
    ):
        torch.testing.assert_close(mine, expected)
    torch.testing.assert_close(layer.weight() @ torch.eye(7, dtype=torch.float64),
                               composed(layer, torch.eye(7, dtype=torch.float64)).T
                               - (0 if layer.bias is None else layer.bias[:, None]))  # fmt: skip


def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 6, bias=False))


def test_counts_are_exact_and_places_depend_on_seed_and_name_alone():
    one, two = make(), nn.Sequential(*make(), nn.Linear(6, 6))
    assert sl.sltrain(one, rank=3, sparsity=0.97, seed=4) == ["0", "2"]
    torch.randn(9)
    assert sl.sltrain(two, rank=3, sparsity=0.97, seed=4) == ["0", "2", "3"]
    for name in ("0", "2"):
        first, second = one.get_submodule(name), two.get_submodule(name)
        assert all(map(torch.equal, first.state_dict().values(), second.state_dict().values()))
        size = first.in_features * first.out_features
        assert len(set(first.places.tolist())) == first.values.numel()
        assert first.values.numel() == sl.num_nonzero(0.97, size)
        assert first.places.dtype == torch.int32 and not first.B.any()
    assert not torch.equal(one[0].places, SparseLowRankLinear(
        12, 16, rank=3, sparsity=0.97, seed=5, name="0").places)  # fmt: skip


def test_it_learns_and_a_checkpoint_goes_on():
    target = torch.randn(12, 6, generator=torch.Generator().manual_seed(1))
    x = torch.randn(64, 12, generator=torch.Generator().manual_seed(2))

    def fit(model, optimizer, steps):
        for _ in range(steps):
            optimizer.zero_grad()
            loss = (model(x) - x @ target).square().mean()
            loss.backward()
            optimizer.step()
        return loss.item()

    model = make()
    sl.sltrain(model, rank=4, sparsity=0.8)
    places = model[0].places.clone()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    first = fit(model, optimizer, 1)
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    saved = torch.load(_file(saved), weights_only=True)
    last = fit(model, optimizer, 200)
    assert last < 0.5 * first and torch.equal(model[0].places, places)

    again = make()
    sl.sltrain(again, rank=4, sparsity=0.8, seed=9)  # other places, until the state is loaded
    again.load_state_dict(saved["model"])
    other = torch.optim.Adam(again.parameters(), lr=0.01)
    other.load_state_dict(saved["optimizer"])
    assert fit(again, other, 200) == last


def _file(state):
    import io

    stream = io.BytesIO()
    torch.save(state, stream)
    stream.seek(0)
    return stream


def test_mixed_precision_keeps_parameters_and_gradients_as_they_are():
    layer = SparseLowRankLinear(8, 8, rank=2, sparsity=0.5)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(torch.randn(3, 8))
    out.float().sum().backward()
    assert {p.grad.dtype for p in layer.parameters()} == {torch.float32}


def test_between_steps_there_is_no_dense_weight():
    layer = SparseLowRankLinear(64, 64, rank=2, sparsity=0.97)
    kept = sum(t.numel() * t.element_size() for t in layer.state_dict().values())
    count = sl.num_nonzero(0.97, 64 * 64)
    assert kept == 4 * (2 * 64 * 2 + 64) + (4 + 4) * count < 4 * 64 * 64


def test_what_cannot_be_replaced_is_named_and_nothing_changes():
    model = make()
    with pytest.raises(ValueError, match="rank is 13, above a side of '0'"):
        sl.sltrain(model, rank=13, sparsity=0.9)
    with pytest.raises(ValueError, match="no linear layer"):
        sl.sltrain(model, rank=1, sparsity=0.9, param_filter="*.fc*")
    with pytest.raises(ValueError, match="sparsity"):
        sl.sltrain(model, rank=1, sparsity=1.5)
    tied = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
    tied[1].weight = tied[0].weight
    with pytest.raises(ValueError, match="'0' is shared with another module"):
        sl.sltrain(tied, rank=1, sparsity=0.9)
    assert type(model[0]) is nn.Linear and type(tied[0]) is nn.Linear
    assert sl.sltrain(model, rank=1, sparsity=0.9, param_filter=["2.*"]) == ["2"]


def test_the_family_is_the_same_layer_with_its_sparse_part_under_a_mask():
    torch.manual_seed(3)
    dense = nn.Sequential(nn.Linear(24, 40))
    model, config, report = sl.ift.transform(dense, "sltrain", 0.9)
    group = sl.configure({"algorithm": "static", "seed": 1} | config)
    group.apply(model)
    own = model[0]
    assert config == {"param_filter": ["0.sparse.weight"], "sparsity": 0.9}
    assert not own.low_rank_out.weight.any()  # and A and S are uniform in 1 / sqrt(24)
    for weight in (own.low_rank_in.weight, own.sparse.weight):
        assert 0.9 / 24**0.5 < weight.detach().abs().max() <= 1 / 24**0.5
    layer = SparseLowRankLinear(24, 40, rank=6, sparsity=0.9, alpha=6 / 4)
    with torch.no_grad():
        own.low_rank_out.weight.normal_()
        layer.A.copy_(own.low_rank_in.weight)
        layer.B.copy_(own.low_rank_out.weight)
        layer.bias.copy_(own.sparse.bias)
        mask = group.sparse_params["0.sparse.weight"].mask
        layer.places.copy_(mask.flatten().nonzero().flatten())
        layer.values.copy_(own.sparse.weight[mask])
    x = torch.randn(5, 24)
    torch.testing.assert_close(own(x), layer(x))
    (row,) = report.layers
    assert row.flops_after == 2 * (sl.num_nonzero(0.9, 960) + 6 * (24 + 40))
    assert str(report).startswith("SLTrain at sparsity 0.9")


def test_the_family_takes_convolutions_and_any_budget():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 12, 3, 2, 1))
    new, _, report = sl.ift.transform(model, "sltrain", 0.97, image_size=9)
    assert new[1].low_rank_in.weight.shape == (3, 8, 3, 3)  # a quarter of 12
    assert new[1](torch.randn(2, 8, 7, 7)).shape == model[1](torch.randn(2, 8, 7, 7)).shape
    assert report.layers[1].ratio == pytest.approx(0.03 + 3 * (72 + 12) / (72 * 12), abs=0.002)
    _, config, report = sl.ift.transform(model, "sltrain", 0.97, image_size=9, budget="dense")
    assert config["sparsity"] == pytest.approx(3 * (72 + 12) / (72 * 12), abs=0.002)
    assert report.flops_ratio == pytest.approx(1, abs=0.001)
