"""Sparse-IFT against its identities, its rounding bounds, and the sizes and counts published."""

from collections import OrderedDict
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import (
    MobileNetV2Config,
    MobileNetV2ForImageClassification,
)

import sparse_lib as sl
from sparse_lib import ift
from sparse_lib.layers import describe
from tests.sparse_lib import tiny_models

LOCAL = ["parallel", "factorized", "doped"]
sparsities = st.floats(0, 0.99)
sizes = st.integers(1, 10_000)
gpt2 = partial(tiny_models.gpt2, n_embd=24, n_head=3, vocab_size=32, n_positions=8)
LLAMA = {"hidden_size": 32, "intermediate_size": 88, "vocab_size": 32}
llama = partial(tiny_models.llama, **LLAMA, max_position_embeddings=8)
resnet = partial(tiny_models.resnet, depths=[1, 2])


def mlp():
    return nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 24))


MODELS = {"gpt2": gpt2, "llama": llama, "resnet": resnet, "mlp": mlp}
MODELS["bottleneck"] = partial(resnet, layer_type="bottleneck")
SIZED = ("gpt2", "llama", "mlp")  # models whose input size is known without being told
PAIRS = [(f, name) for f in ift.FAMILIES for name in MODELS if (f, name) != ("wide", "mlp")]


def run(model):
    """Logits of a model on a fixed input of its kind."""
    generator = torch.Generator().manual_seed(0)
    if isinstance(model, nn.Sequential):
        return model(torch.randn(2, 40, generator=generator))
    if "vocab_size" in model.config.to_dict():
        return model(torch.randint(0, 32, (2, 8), generator=generator)).logits
    return model(torch.randn(2, 3, 32, 32, generator=generator)).logits


def transform(model, *args, **kwargs):
    if type(model).__name__.startswith("ResNet"):
        kwargs.setdefault("image_size", 32)
    return ift.transform(model, *args, **kwargs)


@given(sparsities, sizes, sizes)
def test_every_member_keeps_the_multiply_adds(s, m, n):
    kept = ift.wide_factor(s) ** 2 * m * n * (1 - s), ift.parallel_branches(s) * m * n * (1 - s)
    kept += (ift.factorized_size(m, n, s) * (m + n) * (1 - s),)
    kept += (m * n * (1 - s) + ift.doped_rank(m, n, s) * (m + n),)
    assert kept == pytest.approx([m * n] * 4)


@given(st.floats(0.01, 1e6), st.integers(1, 64))
def test_rounding_is_to_the_nearest_multiple(size, multiple):
    rounded = ift.round_size(size, multiple)
    assert rounded % multiple == 0 and rounded >= multiple
    assert abs(rounded - size) <= multiple / 2 + 1e-9 or rounded == multiple


def bound(family, m, n, s):
    """Rounding bound of a layer's FLOPs, as the families' docstrings state it."""
    mask = (m + n) / (m * n)  # rounding of the masks' counts to whole weights
    if family == "parallel":
        return (1 - s) / 2 + mask
    if family == "factorized":
        twice = 1 if ift.factorized_size(m, n, s) >= 1 else 2
        return twice * (1 - s) * (m + n) / (2 * m * n) + mask
    return (m + n) / (2 * m * n) + mask


@settings(max_examples=15)
@given(
    st.sampled_from(LOCAL), st.integers(4, 80), st.integers(4, 80), st.sampled_from([1, 3]),
    st.sampled_from([1, 2]), st.floats(0.34, 0.97),
)  # fmt: skip
def test_convolutions_are_iso_flop_up_to_rounding(family, channels, n, kernel, stride, s):
    with torch.device("meta"):
        conv = nn.Conv2d(channels, n, kernel, stride, kernel // 2, bias=False)
        model = nn.Sequential(nn.Conv2d(3, channels, 1), conv)
    _, _, report = ift.transform(model, family, s, image_size=9)
    stem, row = report.layers
    assert stem.ratio == 1 and stem.sparsity == 0
    assert abs(row.ratio - 1) <= bound(family, channels * kernel**2, n, s)


@pytest.mark.parametrize("sparsity", [0.3, 0.5, 0.75, 0.9])
@pytest.mark.parametrize("name", ["gpt2", "llama", "resnet", "bottleneck"])
def test_widened_layers_are_iso_flop_up_to_rounding(name, sparsity):
    with torch.device("meta"):
        model = MODELS[name]()
    new, config, report = transform(model, "wide", sparsity)
    half = {"gpt2": 3, "llama": 8, "resnet": 1, "bottleneck": 4}[name] / 2
    shapes = {layer.weight_name: layer.weight_shape for layer in describe(model)}
    sparse = set(config["param_filter"])
    factor = ift.wide_factor(sparsity)
    for row in report.layers:
        weight = f"{row.name}.weight"
        if weight in sparse:
            # Inner widths of a block (heads x k/v, channels / 4) can be smaller than the stage's.
            least = min(shapes[weight][:2])
            allowed = (1 + half / (factor * least)) ** 2 - 1
            assert abs(row.ratio - 1) <= allowed + 2 / row.weights_before, row


def test_known_sizes_of_one_layer():
    # m = 64 * 9 and n = 128 at 75%: the numbers are worked out by hand.
    with torch.device("meta"):
        convs = nn.Sequential(nn.Conv2d(3, 64, 1), nn.Conv2d(64, 128, 3, padding=1))
    parallel = ift.transform(convs, "parallel", 0.75, image_size=8)[0][1]
    assert len(parallel.branches) == 4
    factorized = ift.transform(convs, "factorized", 0.75, image_size=8)[0][1]
    assert factorized.sparse_in.weight.shape == (419, 64, 3, 3)  # 73728 / (704 / 4) = 418.9
    assert factorized.sparse_out.weight.shape == (128, 419, 1, 1)
    doped = ift.transform(convs, "doped", 0.75, image_size=8)[0][1]
    assert doped.low_rank_in.weight.shape == (79, 64, 3, 3)  # 0.75 * 73728 / 704 = 78.5


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("family", list(ift.FAMILIES))
def test_sparsity_zero_is_the_same_function(family, name):
    model = MODELS[name]().eval()
    new, config, report = transform(model, family, 0)
    assert new is not model
    torch.testing.assert_close(run(new), run(model), rtol=0, atol=0)
    assert config["sparsity"] == 0
    assert all(row.ratio == 1 for row in report.layers) and report.flops_ratio == 1


@pytest.mark.parametrize(("family", "name"), PAIRS)
def test_models_run_and_keep_inputs_outputs_and_the_given_model(family, name):
    model = MODELS[name]()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    new, config, report = transform(model, family, 0.75)
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    assert run(new).shape == run(model).shape
    roles = {layer.weight_name: layer for layer in describe(new)}
    assert {roles[weight].role for weight in config["param_filter"]} == {"block"}
    assert {roles[weight].groups for weight in config["param_filter"]} == {1}
    if family != "wide":
        old = dict(model.named_parameters(remove_duplicate=False))
        for weight, layer in roles.items():
            if layer.role in ("stem", "head", "embedding") or layer.groups > 1:
                assert roles[weight].weight_shape == tuple(old[weight].shape)
    names = {layer.name for layer in describe(model) if layer.role == "block" and layer.groups == 1}
    assert {row.name for row in report.layers if row.sparsity} == names


@pytest.mark.parametrize("family", ["wide", "factorized"])
def test_mobilenet_keeps_depthwise_convolutions_dense(family):
    sizes = MobileNetV2Config(depth_multiplier=0.35, image_size=32, num_labels=5)
    model = MobileNetV2ForImageClassification(sizes)
    new, config, report = ift.transform(model, family, 0.75)
    depthwise = {layer.weight_name for layer in describe(new) if layer.groups > 1}
    assert depthwise and not depthwise & set(config["param_filter"])
    for row in report.layers:
        if row.sparsity == 0 and row.operation == "conv2d":
            assert 0.75 <= row.ratio / (2 if family == "wide" else 1) <= 1.25  # multiples of 8
    assert run(new).shape == (2, 5)


class Shared(nn.Module):
    """A layer that is used in two places, and one that is not."""

    def __init__(self):
        super().__init__()
        self.x = self.y = nn.Linear(16, 16)
        self.z = nn.Linear(16, 16)

    def forward(self, x):
        return self.z(self.y(self.x(x)))


@pytest.mark.parametrize("family", LOCAL)
@pytest.mark.parametrize("layers", [None, "x", "y"])
def test_a_shared_module_is_replaced_wherever_it_is_used(family, layers):
    model = Shared()
    new, config, report = ift.transform(model, family, 0.5, layers=layers)
    assert new.x is new.y and isinstance(new.x, ift.replacement.Replacement)
    assert isinstance(new.z, nn.Linear) == (layers is not None)
    assert model.x is model.y and isinstance(model.x, nn.Linear)
    x = torch.randn(3, 16)
    assert torch.equal(new(x), new.z(new.x(new.x(x))))
    rows = {row.name: row for row in report.layers}
    assert rows["x"].flops_before == rows["x"].flops_after == 2 * 2 * 16 * 16
    assert report.flops_before == report.flops_after == 3 * 2 * 16 * 16
    assert all(name.split(".")[0] in ("x", "z") for name in config["param_filter"])


def test_what_asks_to_stay_dense_stays_so():
    model = gpt2()
    model.transformer.h[0].mlp.requires_dense = True
    model.transformer.h[0].attn.c_proj.weight.requires_dense = True
    _, config, _ = ift.transform(model, "parallel", 0.5)
    names = {name.split(".branches")[0] for name in config["param_filter"]}
    assert names == {"transformer.h.0.attn.c_attn"}
    _, config, _ = ift.transform(model, "factorized", 0.5, budget="dense")
    assert config["sparsity"] == ift.solve_sparsity(model, "factorized", 0.5)


def test_what_stands_inside_of_each_family():
    conv = nn.Conv2d(4, 6, 3, 2, 1, padding_mode="reflect")
    dense = nn.Sequential(nn.Conv2d(3, 4, 1), conv).eval()
    layer = ift.transform(dense, "parallel", 0.5, image_size=8)[0][1]
    with torch.no_grad():
        for branch in layer.branches:
            assert isinstance(branch.norm, nn.BatchNorm2d)
            branch.sparse.weight.copy_(conv.weight / 2)
            branch.norm.weight.fill_((1 + branch.norm.eps) ** 0.5)
    x = torch.randn(2, 4, 8, 8)
    torch.testing.assert_close(layer(x), conv(x))
    dense, x = nn.Linear(12, 20), torch.randn(5, 12)
    layer = ift.transform(dense, "factorized", 0.5)[0]
    inner = torch.relu(nn.functional.layer_norm(x @ layer.sparse_in.weight.T, (15,)))
    torch.testing.assert_close(layer(x), inner @ layer.sparse_out.weight.T + layer.sparse_out.bias)
    layer = ift.transform(dense, "doped", 0.5)[0]
    nn.init.zeros_(layer.low_rank_out.weight)
    torch.testing.assert_close(layer(x), dense(x))


@pytest.mark.parametrize("family", LOCAL)
def test_outputs_start_at_the_scale_of_the_dense_layer(family):
    dense = nn.Linear(256, 256, bias=False)
    nn.init.normal_(dense.weight, std=0.02)
    new, config, _ = ift.transform(dense, family, 0.75)
    group = sl.configure(config)
    if family == "doped":  # the others meet a norm after the masks
        group.apply(new)
    x = torch.randn(512, 256)
    assert new(x).std().item() == pytest.approx(dense(x).std().item(), rel=0.1)


@pytest.mark.parametrize(("family", "name"), [pair for pair in PAIRS if pair[1] in SIZED])
def test_solved_sparsity_meets_the_dense_budget(family, name):
    model = MODELS[name]()
    solved = ift.solve_sparsity(model, family, 0.75)
    _, config, report = ift.transform(model, family, 0.75, budget="dense")
    assert config["sparsity"] == report.mask_sparsity == solved
    assert abs(report.flops_ratio - 1) <= 1e-3
    if family == "wide":
        assert solved > 0.75


def test_wide_scales_each_width_and_keeps_head_counts_pairs_and_dtype():
    new, _, _ = ift.transform(llama(), "wide", 0.5)  # 32 * 1.414 = 45.3, multiples of 8
    assert (new.config.hidden_size, new.config.head_dim) == (48, 12)
    assert new.config.num_attention_heads == 4 and new.config.num_key_value_heads == 2
    assert new.config.intermediate_size == 124  # 88 * 1.414 = 124.5
    own = llama(head_dim=6, intermediate_size=50, num_key_value_heads=4)
    new, _, _ = ift.transform(own, "wide", 0.5, sequence_length=8)
    assert new.config.head_dim == 8 and new.config.hidden_size == 44  # 8.5 and 45.3
    run(new)
    model = gpt2(n_inner=50).to(torch.bfloat16).eval()
    new, _, _ = ift.transform(model, "wide", 0.5)  # 24 * 1.414 = 33.9, multiples of 3
    assert (new.config.n_embd, new.config.n_head, model.config.n_embd) == (33, 3, 24)
    assert new.transformer.h[0].mlp.c_fc.weight.shape == (33, 71)
    for family in ift.FAMILIES:
        new, _, _ = ift.transform(model, family, 0.5)
        assert {p.dtype for p in new.parameters()} == {torch.bfloat16}
        assert not any(module.training for module in new.modules())


def test_report_adds_up():
    model, config, report = ift.transform(gpt2(), "wide", 0.75)
    flops = sl.count_flops(model, batch_size=1, sequence_length=8)
    masks = dict.fromkeys(config["param_filter"], config["sparsity"])
    assert report.flops_after == flops.forward(masks) == sum(r.flops_after for r in report.layers)
    assert report.flops_before == sum(row.flops_before for row in report.layers)
    _, _, less = ift.transform(gpt2(), "wide", 0.5, budget=report.flops_before // 5 * 4)
    assert less.flops_after == pytest.approx(0.8 * report.flops_before, rel=1e-3)
    assert report.parameters_after == sum(p.numel() for p in model.parameters())
    assert [row.ratio for row in report.layers if row.operation == "attention"] == [2.0]
    # By hand: head and attention double, blocks stay.
    blocks, rest = 2 * 8 * 12 * 24**2, 4 * 8 * 8 * 24 + 2 * 8 * 24 * 32
    assert report.flops_before == blocks + rest and report.flops_after == blocks + 2 * rest
    _, _, report = ift.transform(resnet(), "wide", 0.75)  # of an unknown size of images
    assert report.flops_before is None and report.flops_ratio is None
    assert {row.ratio for row in report.layers if row.sparsity} == {1.0}


def exchanged():
    model = gpt2()
    model.transformer.h[0].mlp.c_fc = nn.Linear(24, 96)
    return model


def tied():
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
    model[1].weight = model[0].weight
    return model


encoder = partial(nn.TransformerEncoderLayer, 8, 2, 32)


class Reads(nn.Module):
    """A model whose code looks into a layer, as the patch embedding of transformers' ViT does."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.first(x.to(self.second.weight.dtype))


@pytest.mark.parametrize(
    ("model", "family", "sparsity", "options", "message"),
    [
        *[(mlp, "doped", value, {}, "sparsity is") for value in (-0.1, 1.0, 2, float("nan"))],
        (mlp, "wider", 0.5, {}, "'wider'.*wide"),
        (mlp, "wide", 0.5, {}, "gpt2, llama, mobilenet_v2, resnet"),
        (mlp, "parallel", 0.2, {}, "'parallel'.*0.2.*at least 1/3"),
        (lambda: nn.Linear(1, 1), "doped", 0.5, {}, "'doped'.*rank 0.25.*rounds to 0"),
        (lambda: nn.Linear(8, 1), "parallel", 0.5, {}, "layer norm would have 1 of the at least 3"),
        (lambda: mlp().requires_grad_(False), "doped", 0.5, {}, "no layer.*frozen"),
        (lambda: nn.MultiheadAttention(8, 2), "doped", 0.5, {}, "'doped' cannot apply to layer"),
        (lambda: nn.Embedding(3, 4), "doped", 0.5, {}, "no layer"),
        (mlp, "doped", 0.5, {"layers": ["nope"]}, r"layers=\['nope'\]"),
        (gpt2, "wide", 0.5, {"layers": ["*"]}, "layers"),
        (exchanged, "wide", 0.5, {}, "transformer.h.0.mlp.c_fc"),
        (partial(gpt2, n_embd=10, n_head=2), "wide", 0.5, {"budget": "much"}, "budget.*'much'"),
        (gpt2, "wide", 0.5, {"budget": 10}, "budget of 10 FLOPs"),
        (gpt2, "wide", 0.5, {"budget": 10**12}, "budget of 1,000,000,000,000 FLOPs cannot be met"),
        (resnet, "wide", 0.5, {"budget": "dense"}, "sequence_length or image_size"),
        (partial(llama, hidden_size=12, head_dim=None), "wide", 0.5, {}, "hidden_size is 12.*8"),
        (encoder, "doped", 0.5, {"layers": "linear1"}, "'linear1' is of a TransformerEncoder"),
        (tied, "parallel", 0.5, {}, "'parallel'.*'0'.*'1.weight'"),
        *[(Reads, family, 0.5, {}, "'second'") for family in LOCAL],
    ],
)
def test_what_cannot_be_transformed_is_named(model, family, sparsity, options, message):
    with pytest.raises(ValueError, match=message):
        ift.transform(model(), family, sparsity, **options)


MLP = "transformer.h.0.mlp."


@pytest.mark.parametrize(
    ("make", "layers", "names"),
    [
        (tied, "2", ["2"]),
        (Reads, "first", ["first"]),
        (gpt2, ["*.mlp.*"], [f"{MLP}c_fc", f"{MLP}c_proj"]),
        (gpt2, "*c_fc", [f"{MLP}c_fc"]),
    ],
)
def test_the_layers_that_can_be_transformed_may_be_chosen(make, layers, names):
    _, config, report = ift.transform(make(), "doped", 0.5, layers=layers)
    assert config["param_filter"] == [f"{name}.sparse.weight" for name in names]
    assert sum(row.sparsity > 0 for row in report.layers) == len(names)


@pytest.mark.parametrize(
    ("key", "value"),
    [("sparsity", "0.5"), ("budget", None), ("family", None), ("layers", 3), ("layers", [3]),
     ("model", 3)],
)  # fmt: skip
def test_wrong_types_are_named(key, value):
    arguments = {"model": mlp(), "family": "parallel", "sparsity": 0.5, key: value}
    with pytest.raises(TypeError, match=f"{key} must be .*not .*{value!r}".replace("[", r"\[")):
        ift.transform(**arguments)


@pytest.mark.parametrize(("sparsity", "width", "ratio"), [(0.5, 1092, 1.18), (0.75, 1536, 1.40)])
def test_gpt3_small_wide_and_at_the_dense_budget(sparsity, width, ratio):
    model, length = tiny_models.gpt_on_meta(12, 768, 12), {"sequence_length": 1024}
    new, _, report = ift.transform(model, "wide", sparsity, **length)
    assert new.config.n_embd == width and new.config.n_head == 12
    assert new.transformer.h[0].mlp.c_fc.weight.shape == (width, 4 * width)
    assert round(report.flops_ratio, 2) == ratio
    blocks = [row.ratio for row in report.layers if row.sparsity]
    assert len(blocks) == 48 and max(blocks) == pytest.approx((width / 768) ** 2 * (1 - sparsity))
    _, config, report = ift.transform(model, "wide", sparsity, budget="dense", **length)
    assert abs(report.flops_ratio - 1) <= 1e-3
    # By hand, per token: heads and attention grow by the width, which the blocks make up for.
    blocks, rest = 2 * 12 * 12 * 768**2, (4 * 12 * 1024 + 2 * 50257) * 768
    left = blocks + rest - rest * width / 768
    assert 1 - config["sparsity"] == pytest.approx(left / (blocks * (width / 768) ** 2), rel=1e-3)


@pytest.mark.parametrize(("sparsity", "width"), [(0.5, 91), (0.75, 128), (0.9, 202)])
def test_resnet18_for_cifar_wide(sparsity, width):
    sizes = {"embedding_size": 64, "hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2]}
    with torch.device("meta"):
        model = tiny_models.resnet(cifar=True, num_labels=100, **sizes)
    new, _, report = ift.transform(model, "wide", sparsity, image_size=32)
    stem = new.resnet.embedder.embedder.convolution
    assert stem.weight.shape == (width, 3, 3, 3)
    assert report.flops_ratio == pytest.approx(1, abs=0.01)
    # Stem and head face the images and the classes on one side only.
    stem_row, head_row = report.layers[0], report.layers[-1]
    assert stem_row.ratio == width / 64
    assert head_row.ratio == new.config.hidden_sizes[-1] / 512
    _, _, report = ift.transform(model, "wide", sparsity, budget="dense", image_size=32)
    assert abs(report.flops_ratio - 1) <= 1e-3


def test_a_name_with_brackets_gets_its_mask():
    new, config, _ = ift.transform(
        nn.Sequential(OrderedDict({"block[0]": nn.Linear(8, 8)})), "doped", 0.5
    )
    group = sl.configure(config)
    group.apply(new)
    assert [*group.sparse_params] == ["block[0].sparse.weight"]
