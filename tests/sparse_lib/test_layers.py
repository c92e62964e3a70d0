"""describe and default_filter on torch layers and transformers' models."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm, weight_norm

import sparse_lib as sl
from sparse_lib.layers import Layout, default_filter, describe, fans
from tests.cases import driven
from tests.sparse_lib.tiny_models import gpt2, llama, resnet


@pytest.mark.parametrize(
    ("layout", "shape", "expected"),
    [
        (Layout(), (5, 3), (3, 5)),
        (Layout(inputs_first=True), (3, 5), (3, 5)),
        (Layout(), (8, 4, 3, 3), (36, 72)),
        (Layout(groups=2), (8, 2, 3, 3), (18, 36)),
        (Layout(inputs_first=True), (4, 8, 2, 2), (16, 32)),
        (Layout(has_experts=True), (4, 5, 3), (3, 5)),
        (Layout(), (7,), (1, 1)),
    ],
)
def test_fans_follow_the_storage_order_of_each_kind(layout, shape, expected):
    assert fans(shape, layout) == expected


def test_roles_of_gpt2_and_resnet():
    layers = {layer.weight_name: layer for layer in describe(gpt2())}
    c_fc = layers["transformer.h.0.mlp.c_fc.weight"]
    assert (c_fc.kind, c_fc.transposed, c_fc.fan_in, c_fc.fan_out) == ("conv1d", True, 8, 32)
    head = layers["lm_head.weight"]
    assert (head.role, head.tied_to) == ("head", "transformer.wte.weight")
    assert layers["transformer.wte.weight"].role == "embedding"

    roles = {layer.weight_name: layer.role for layer in describe(resnet())}
    assert roles["resnet.embedder.embedder.convolution.weight"] == "stem"
    assert roles["classifier.1.weight"] == "head"
    assert roles["resnet.encoder.stages.1.layers.0.shortcut.convolution.weight"] == "block"


def test_default_filter_takes_blocks_only_and_sees_tied_and_reparametrized_weights():
    for build, num_sparse in ((gpt2, 4), (llama, 7), (resnet, 6)):
        model = build()
        by_name = {n for n, p in model.named_parameters() if default_filter(n, p)}
        assert by_name == filtered(model) and len(by_name) == num_sparse
    model = nn.ModuleDict({"project": nn.Linear(4, 9, bias=False), "symbols": nn.Embedding(9, 4)})
    weight = model["symbols"].weight = model["project"].weight
    assert default_filter("project.weight", weight) and filtered(model) == set()
    for norm in (parametrizations.weight_norm, parametrizations.spectral_norm):
        parts = {"symbols": norm(nn.Embedding(9, 4)), "fc": norm(nn.Linear(4, 3))}
        assert filtered(nn.ModuleDict(parts)) == set()


DENSE = (
    "model.embed_tokens transformer.wte transformer.wpe lm_head head ln_f block.norm1 pos_embed "
    "token_embedding pe_helper fc classifier score decoder.embedding_layer.word_embeddings"
)
SPARSE = "layers.0.fc attn.q_proj h.0.attn.c_attn overhead"


@pytest.mark.parametrize("names", [DENSE, SPARSE])
def test_default_filter_goes_by_name_without_the_model(names):
    for name in names.split():
        assert default_filter(f"{name}.weight", torch.empty(4, 4)) == (names == SPARSE), name
        assert not default_filter(f"{name}.bias", torch.empty(4))


@pytest.mark.parametrize(
    ("names", "sparse"),
    [(["fc", "out"], {"fc", "out"}), (["conv", "fc"], {"conv"}), (["fc"], set())],
)
def test_a_layer_called_fc_is_a_head_only_where_it_is_the_last(names, sparse):
    model = nn.ModuleDict({name: nn.Linear(4, 4) for name in names})
    by_role = {layer.name for layer in describe(model) if layer.role == "block"}
    assert {name.split(".")[0] for name in filtered(model)} == by_role == sparse


def filtered(model):
    return {n for n, param in model.named_parameters() if default_filter(n, param, model)}


NORMED = {
    "weight_norm": weight_norm,
    "parametrized weight_norm": parametrizations.weight_norm,
    "weight_norm of inputs": lambda layer: parametrizations.weight_norm(layer, dim=1),
    "spectral_norm": spectral_norm,
    "parametrized spectral_norm": parametrizations.spectral_norm,
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")
@pytest.mark.parametrize("norm", NORMED)
def test_reparametrized_weights_train_sparsely_and_gains_stay_dense(norm):
    torch.manual_seed(0)
    model = nn.Sequential(
        NORMED[norm](nn.Linear(16, 32)), nn.Unflatten(1, (8, 4)), nn.ReLU(),
        NORMED[norm](nn.Conv1d(8, 6, 3)), nn.Flatten(), NORMED[norm](nn.Linear(12, 24)),
    )  # fmt: skip
    config = {"algorithm": "set", "sparsity": 0.5, "update": 1, "drop_fraction": 0.05, "seed": 0}
    algorithm = sl.configure(config)
    optimizer = driven(algorithm, model, momentum=0.9)
    assert len(algorithm.sparse_params) == 3
    for sparse in algorithm.sparse_params.values():
        assert sparse.param.numel() in (16 * 32, 8 * 6 * 3, 12 * 24)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 16)).square().mean()
        loss.backward()
        optimizer.step()
        assert loss.isfinite()
    model.eval()(torch.randn(8, 16))  # computes the weights
    layers = (model[0], model[3], model[5])
    for layer, sparse in zip(layers, algorithm.sparse_params.values(), strict=True):
        assert not layer.weight[~sparse.mask].any() and layer.weight[sparse.mask].any()
        assert sparse.sparsity == pytest.approx(0.5, abs=0.01)


def test_a_gain_of_kernel_positions_in_a_grouped_convolution_is_dense():
    """As in wav2vec 2.0: its shape (1, 1, 4) has no outputs to divide into groups."""
    model = parametrizations.weight_norm(nn.Conv1d(8, 8, 4, groups=2), dim=2)
    found = {d.weight_name.split(".")[-1]: d for d in describe(model)}
    gain, direction = found["original0"], found["original1"]
    assert (gain.kind, gain.role, gain.dense_reason) == ("norm", "norm", "one dimension")
    assert (direction.fan_in, direction.role, direction.dense_reason) == (4 * 4, "block", None)


def test_only_weights_of_linear_kind_are_sparse_by_default():
    class Mixer(nn.Module):  # a state-space mixer as of Mamba, and experts in one tensor
        def __init__(self):
            super().__init__()
            self.A_log = nn.Parameter(torch.zeros(4, 4))
            self.time_mix_k = nn.Parameter(torch.zeros(1, 1, 4))
            self.gate_up_proj = nn.Parameter(torch.zeros(2, 4, 8))
            self.gate_up_proj_bias = nn.Parameter(torch.zeros(2, 8))
            self.w1 = nn.Parameter(torch.zeros(2, 4, 8))
            self.in_proj = nn.Linear(4, 8)
            self.attention = nn.MultiheadAttention(4, 2)

    attention = {"attention.in_proj_weight", "attention.out_proj.weight"}
    assert filtered(Mixer()) == {"gate_up_proj", "w1", "in_proj.weight", *attention}
