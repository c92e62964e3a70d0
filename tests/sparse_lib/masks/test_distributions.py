"""Distributions: totals, the papers' formulas, layer rules."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import ResNetConfig, ResNetForImageClassification

from sparse_lib.flops.model import count
from sparse_lib.layers import describe
from sparse_lib.masks.counts import num_nonzero
from sparse_lib.masks.distributions import distribute, er, erk, from_map, global_, uniform

SHAPES = {"conv1": (16, 3, 3, 3), "conv2": (64, 16, 3, 3), "conv3": (128, 64, 3, 3)}
SHAPES["fc"] = (10, 128)
ALL = num_nonzero(0.9, sum(map(math.prod, SHAPES.values())))
any_shapes = st.lists(
    st.lists(st.integers(1, 30), min_size=2, max_size=4), min_size=1, max_size=6
).map(lambda shapes: {f"w{i}": tuple(shape) for i, shape in enumerate(shapes)})


def total(shapes, sparsities):
    return sum(num_nonzero(s, math.prod(shapes[name])) for name, s in sparsities.items())


@pytest.mark.parametrize("distribution", [er, erk])
@settings(max_examples=100)
@given(any_shapes, st.integers(0, 100), st.sampled_from([0.0, 0.5, 1.0, 3.0]))
def test_the_total_is_exact(distribution, shapes, percent, power_scale):
    sparsities = distribution(shapes, percent / 100, power_scale=power_scale)
    wanted = num_nonzero(percent / 100, sum(math.prod(shape) for shape in shapes.values()))
    assert list(sparsities) == list(shapes)
    assert all(0 <= value <= 1 for value in sparsities.values())
    assert total(shapes, sparsities) == wanted
    assert wanted < len(shapes) or max(sparsities.values()) < 1  # each keeps one at least
    other = dict(reversed(shapes.items()))
    assert distribution(other, percent / 100, power_scale=power_scale) == sparsities


@pytest.mark.parametrize(("distribution", "used"), [(er, 2), (erk, 4)])
def test_density_follows_the_formula(distribution, used):
    sparsities = distribution(SHAPES, 0.9)
    partial = [name for name, value in sparsities.items() if value > 0]
    scales = [
        (1 - sparsities[name]) / (sum(SHAPES[name][:used]) / math.prod(SHAPES[name][:used]))
        for name in partial
    ]
    assert len(partial) >= 2 and max(scales) == pytest.approx(min(scales), rel=0.01)


def test_small_layers_first_and_last_rules_and_one_ranking_by_hand():
    # Raw densities 10/16 and 104/400; at half of 416 the first would pass 1, so 16 + 192 = 208.
    sparsities = erk({"a": (4, 4, 1, 1), "b": (4, 100)}, 0.5)
    assert sparsities == {"a": 0.0, "b": 1 - 192 / 400}
    weights = {"a": torch.full((4, 4), 2.0), "b": torch.full((4, 4), -1.0)}
    assert global_(weights, 0.5) == {"a": 1 / 16, "b": 15 / 16}  # b keeps at least one
    weights["a"].grad, weights["b"].grad = torch.zeros(4, 4), -torch.ones(4, 4)
    assert distribute("snip", weights, 0.25) == {"a": 0.5, "b": 0.0}
    assert uniform(SHAPES, 0.9, first=0, last=0.8) == {
        "conv1": 0, "conv2": 0.9, "conv3": 0.9, "fc": 0.8,
    }  # fmt: skip
    sparsities = erk(SHAPES, 0.9, first=0.0, last=0.5)
    assert sparsities["conv1"] == 0.0 and sparsities["fc"] == 0.5
    assert total(SHAPES, sparsities) == ALL
    with pytest.raises(ValueError, match="sparsity 0.99 cannot be met: 'first' and 'last' leave"):
        erk({"a": (10, 10), "b": (2, 2)}, 0.99, first=0.0)


def test_maps_and_names():
    names = ["fc1.weight", "fc2.weight", "head.weight"]
    result = from_map(names, 0.5, {"fc1.*": 0.9, "fc*": 0.8})
    assert result == {"fc1.weight": 0.9, "fc2.weight": 0.8, "head.weight": 0.5}
    with pytest.raises(ValueError, match="no sparsity for 'head.weight'"):
        from_map(names, None, {"fc*": 0.8})
    with pytest.raises(ValueError, match="'fc3.weight' matches no parameter; did you mean 'fc"):
        from_map(names, 0.5, {"fc3.weight": 0.8})
    with pytest.raises(ValueError, match=r"sparsity of 'fc\*' must be between 0 and 1, not 80"):
        from_map(names, 0.5, {"fc*": 80})
    weights = {name: torch.randn(shape) for name, shape in SHAPES.items()}
    assert distribute("erk", weights, 0.9) == erk(SHAPES, 0.9)
    with_scale = distribute({"type": "er", "power_scale": 0.5}, weights, 0.9)
    assert with_scale == er(SHAPES, 0.9, power_scale=0.5)
    assert distribute({"conv*": 0.5}, weights, 0.9)["fc"] == 0.9
    assert total(SHAPES, distribute("global", weights, 0.9)) == ALL


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ("erkk", ValueError, "'erkk'.*'erk'"),
        ({"type": "er", "scale": 1}, ValueError, "'scale'.*Known: first, last, power_scale"),
        ({"type": "uniform", "power_scale": 1}, ValueError, "'power_scale'; Known: first, last$"),
        ({"type": "snip", "first": 0}, ValueError, "'first'"),
        ({"type": "map"}, ValueError, "'sparsity_map'"),
        ({"type": "map", "sparsity_map": 0.5}, TypeError, "sparsity_map.*0.5"),
        ({"type": "er", "power_scale": -1}, ValueError, "power_scale.*at least 0"),
        (["erk"], TypeError, "distribution"),
    ],
)
def test_bad_specs_are_named(spec, error, message):
    with pytest.raises(error, match=message):
        distribute(spec, {"a": torch.ones(2, 2)}, 0.5)


@pytest.mark.parametrize(("sparsity", "published"), [(0.8, 0.42), (0.9, 0.24)])
def test_erk_costs_what_rigl_prints_of_resnet50(sparsity, published):
    """Figure 2, left: FLOPs of Static (ERK) relative to dense, printed to two digits."""
    with torch.device("meta"):
        model = ResNetForImageClassification(ResNetConfig(num_labels=1000))
    flops = count(model, batch_size=1, image_size=224)
    kinds = ("conv2d", "linear")
    layers = [layer for layer in describe(model) if layer.kind in kinds]
    shapes = {layer.weight_name: layer.weight_shape for layer in layers}
    ratio = flops.forward(erk(shapes, sparsity)) / flops.forward()
    assert ratio == pytest.approx(published, abs=0.01)
