"""Layers: outputs and inputs of each kind, roles, and the weights that a default filter takes."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm, weight_norm
from transformers import MixtralConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssConfig, GptOssExperts
from transformers.models.mixtral.modeling_mixtral import MixtralExperts
from transformers.pytorch_utils import Conv1D

import sparse_lib as sl
from sparse_lib.core.metrics import dead_outputs
from sparse_lib.layers import Layout, default_filter, describe, fans, layout_of
from sparse_lib.masks.distributions import distribute
from tests.cases import descend, driven
from tests.sparse_lib.tiny_models import gpt2, llama, mixtral, resnet


class FromState(nn.RNNCell):
    """A recurrent cell as a function of its state."""

    def forward(self, state):
        return super().forward(state.new_zeros(len(state), 3), state)


class Turned(nn.Linear):
    """A linear layer that stores its weight as [inputs, outputs]."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs, bias=False)
        self.weight = nn.Parameter(self.weight.detach().t().contiguous())

    def forward(self, x):
        return x @ self.weight


def experts_of(kind, settings):
    config = settings(hidden_size=8, intermediate_size=4, num_local_experts=2)
    config._experts_implementation = "eager"
    return kind(config)


mixtral_experts = partial(experts_of, MixtralExperts, MixtralConfig)
gpt_oss_experts = partial(experts_of, GptOssExperts, GptOssConfig)


PLAIN = {
    "linear": (lambda: nn.Linear(8, 12, bias=False), (8,)),
    "linear, turned": (lambda: Turned(8, 12), (8,)),
    "linear, turned and square": (lambda: Turned(8, 8), (8,)),
    "conv1d of transformers": (lambda: Conv1D(12, 8), (8,)),
    "conv1d": (lambda: nn.Conv1d(8, 12, 3, bias=False), (8, 5)),
    "conv2d": (lambda: nn.Conv2d(8, 12, 2, bias=False), (8, 3, 3)),
    "conv2d, groups": (lambda: nn.Conv2d(16, 12, 2, groups=2, bias=False), (16, 3, 3)),
    "conv3d": (lambda: nn.Conv3d(4, 8, 2, bias=False), (4, 2, 2, 2)),
    "transposed": (lambda: nn.ConvTranspose2d(8, 12, 2, bias=False), (8, 2, 2)),
    "transposed, groups": (lambda: nn.ConvTranspose1d(16, 8, 2, groups=4, bias=False), (16, 3)),
    "recurrent": (lambda: FromState(3, 8, bias=False), (8,)),
}


def touched(layer, name, shape):
    """For each weight: the one output channel, and the one input channel, that it joins."""
    x = torch.rand(1, *shape, dtype=torch.float64, requires_grad=True)
    weight = layer.double().get_parameter(name)
    weight.data.uniform_(0.1, 0.2)
    out = layer(x).transpose(0, 1).flatten(1).sum(1)
    outputs = torch.stack([torch.autograd.grad(o, weight, retain_graph=True)[0] for o in out])
    slope = torch.autograd.grad(out.sum(), weight, create_graph=True)[0].flatten()
    read = [torch.autograd.grad(s, x, retain_graph=True)[0][0].abs() for s in slope]
    inputs = torch.stack([r.view(len(r), -1).sum(1) for r in read], -1).view(-1, *weight.shape)
    if isinstance(layer, FromState):  # each state is read by all, but most by its own weight
        return (outputs != 0).long().argmax(0), None
    assert ((outputs != 0).sum(0) == 1).all() and ((inputs != 0).sum(0) == 1).all()
    return (outputs != 0).long().argmax(0), (inputs != 0).long().argmax(0)


@pytest.mark.parametrize("kind", PLAIN)
def test_each_kinds_outputs_and_inputs_are_those_that_a_weight_joins(kind):
    make, shape = PLAIN[kind]
    layer = make()
    name = "weight_hh" if isinstance(layer, FromState) else "weight"
    layout = layout_of(layer, name, layer.get_parameter(name))
    outputs, inputs = touched(layer, name, shape)
    rows = layout.matrices(outputs).flatten(3).flatten(0, 2)
    assert (rows == rows[:, :1]).all() and len(rows[:, 0].unique()) == len(rows)
    assert len(rows) == int(outputs.max()) + 1
    if inputs is not None:
        columns = layout.matrices(inputs).transpose(2, 3).flatten(3).flatten(0, 2)
        assert (columns == columns[:, :1]).all() and len(columns[:, 0].unique()) == len(columns)
    assert torch.equal(layout.restore(layout.matrices(outputs), outputs.shape), outputs)


@pytest.mark.parametrize("kind", [kind for kind in PLAIN if kind != "recurrent"])
def test_settings_by_outputs_and_inputs_hold_in_each_kind(kind):
    make, shape = PLAIN[kind]
    layer = make()
    outputs, inputs = touched(layer, "weight", shape)
    num_outputs, size = int(outputs.max()) + 1, layer.weight.numel()

    def masked(**settings):
        model = nn.Sequential(make())
        algorithm = settings.pop("algorithm", "static")
        config = {"algorithm": algorithm, "sparsity": 0.5, "seed": 0, **settings}
        sl.configure({**config, "param_filter": "*weight"}).apply(model)
        return model[0].weight_mask, model

    per_output = [masked(init_method="balanced-topk")[0], masked(algorithm="srigl")[0]]
    for mask in per_output:
        counts = [int(mask[outputs == unit].sum()) for unit in range(num_outputs)]
        assert set(counts) == {size // num_outputs // 2}
    mask, _ = masked(init_method="topk", score_shaper={"type": "output_groups", "num_groups": 2})
    assert int(mask[outputs < num_outputs // 2].sum()) == size // 4
    mask, _ = masked(init_method="topk", score_shaper="2:4")
    # The kernel position is what is left of a weight's place once its channels are known.
    kernel = layer.weight.shape[2:]
    position = torch.arange(kernel.numel()).view(kernel).expand(layer.weight.shape)
    for unit in range(num_outputs):
        for place in position.unique():
            own = (outputs == unit) & (position == place)
            in_order = mask[own][inputs[own].argsort()]
            assert (in_order.view(-1, 4).sum(1) == 2).all()
    room = 1 - (num_outputs + len(inputs.unique())) / size
    mask, model = masked(algorithm="topk", sparsity=room, min_per_output=1, min_per_input=1)
    for units in (outputs, inputs):
        assert all(mask[units == unit].any() for unit in units.unique())
    mask[(outputs == 1) | (outputs == 3)] = False
    assert dead_outputs(mask, layout_of(model[0], "weight", model[0].weight)) == 2


@pytest.mark.parametrize("make", [mixtral_experts, gpt_oss_experts])
def test_fused_experts_are_layers_of_their_own(make):
    experts = make()
    for name in ("gate_up_proj", "down_proj"):
        weight = experts.get_parameter(name)
        weight.data.normal_()
        layout = layout_of(experts, name, weight)
        # Hidden states have 8 features, so gate and up have 8 inputs, and down 8 outputs, of 4.
        sizes = (2, 1, 8, 8, 1) if name == "gate_up_proj" else (2, 1, 8, 4, 1)
        assert layout.sizes(tuple(weight.shape)) == sizes
    x, index = torch.randn(1, 8, requires_grad=True), torch.tensor([[1]])
    experts.down_proj.data[:, 0] = 0  # of GPT-OSS the first input, else the first output
    out = experts(x, index, torch.ones(1, 1))
    assert bool(out[0, 0] == 0) == (make is mixtral_experts)
    sl.configure({"sparsity": 0.5, "init_method": "topk", "score_shaper": "2:4"}).apply(
        nn.Sequential(experts)
    )
    inputs = 2 if make is mixtral_experts else 1
    for mask in (experts.gate_up_proj_mask, experts.down_proj_mask):
        assert (mask.movedim(inputs, -1).reshape(-1, 4).sum(1) == 2).all()


def test_erdos_renyi_counts_experts_as_layers():
    """Two experts of 8 x 4 beside a layer of 8 x 4 have its density, by symmetry."""
    model = nn.ModuleDict({"experts": mixtral_experts(), "linear": nn.Linear(4, 8, bias=False)})
    for spread in ("er", "erk"):
        config = {"sparsity": 0.5, "distribution": spread}
        algorithm = sl.configure(config | {"param_filter": ["*down_proj", "linear.weight"]})
        algorithm.apply(model)
        assert {p.sparsity for p in algorithm.sparse_params.values()} == {0.5}
        sl.densify(model)
    weights = {"a": torch.empty(4, 8, 4), "b": torch.empty(64, 64)}
    # Densities are as (8 + 4) / 32 to 128 / 4096, and 10% of 4,224 weights are 422.
    expected = 1 - 12 / 32 * 422 / (12 / 32 * 128 + 128)
    assert distribute("erk", weights, 0.9, experts={"a"})["a"] == pytest.approx(expected, abs=0.01)
    model = nn.ModuleDict({"own": Own(), "linear": nn.Linear(8, 8, bias=False)})
    algorithm = sl.configure({"sparsity": 0.5, "distribution": "erk"})
    algorithm.apply(model)
    assert {p.sparsity for p in algorithm.sparse_params.values()} == {0.5}


class Own(nn.Module):
    """A layer of a user's own."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4, 8, 8))


@pytest.mark.parametrize(
    "config",
    [
        {"score_shaper": "2:4"},
        {"score_shaper": {"type": "output_groups", "num_groups": 2}},
        {"score_shaper": "block"},
        {"init_method": "balanced-topk"},
        {"algorithm": "srigl"},
        {"algorithm": "topk", "min_per_output": 1},
    ],
)
def test_unknown_layers_are_refused_for_structured_settings(config):
    with pytest.raises(ValueError, match=r"'0.weight'.* known kind"):
        sl.configure({"sparsity": 0.5, **config}).apply(nn.Sequential(Own()))
    group = sl.configure({"sparsity": 0.5})
    group.apply(nn.Sequential(Own()))
    assert group.metrics()["tensors"]["0.weight"]["dead_units"] is None
    said = nn.Sequential(Own())
    said[0].is_transposed = False
    sl.configure({"sparsity": 0.5, **config}).apply(said)


def test_what_n_m_does_not_divide_stays_dense_on_request():
    def shaped(**shaper):
        return sl.configure({"sparsity": 0.5, "score_shaper": {"type": "2:4", **shaper}})

    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 8, 3), nn.Linear(30, 10))
    with pytest.raises(ValueError, match=r"'0.weight'.*divisible by 4.*'?remainder"):
        shaped().apply(net)
    with pytest.warns(UserWarning, match="stays dense") as told:
        (algorithm := shaped(remainder="dense")).apply(net)
    assert {p.name: p.sparsity for p in algorithm.sparse_params.values()} == {"1.weight": 0.5}
    assert ["'0.weight'" in str(w.message) for w in told] == [True, False]
    assert ["'2.weight'" in str(w.message) for w in told] == [False, True]
    with pytest.raises(ValueError, match="remainder must be 'refuse' or 'dense', not 'drop'"):
        shaped(remainder="drop")


def embedding_tied_to_a_head():
    model = nn.ModuleDict({"tokens": nn.Embedding(12, 16), "head": nn.Linear(16, 12)})
    model["head"].weight = model["tokens"].weight
    return model


def direction_of_weight_norm():
    return nn.utils.parametrizations.weight_norm(nn.ConvTranspose1d(8, 4, 2), dim=1)


@pytest.mark.parametrize(
    ("make", "name", "inputs"),
    [
        (direction_of_weight_norm, "parametrizations.weight.original1", 0),
        (embedding_tied_to_a_head, "tokens.weight", 1),
        (lambda: type("Scaled", (Conv1D,), {})(8, 16), "weight", 0),
    ],
)
def test_the_inputs_of_a_weight_are_those_of_the_layer_that_reads_it(make, name, inputs):
    config = {"sparsity": 0.5, "init_method": "topk", "score_shaper": "2:4"}
    sl.configure(config | {"param_filter": name}).apply(model := make())
    mask = model.get_buffer(f"{name}_mask")
    assert (mask.movedim(inputs, -1).reshape(-1, 4).sum(1) == 2).all()


def test_routers_depthwise_convolutions_and_bilinear_layers_are_dense_by_default():
    experts = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
    mixture = {"gate": nn.Linear(8, 2), "experts": experts, "shared_expert_gate": nn.Linear(8, 1)}
    model = nn.ModuleDict(
        {
            "mixtral": mixtral(),
            "mixture": nn.ModuleDict(mixture),
            "gated": nn.ModuleDict({"gate": nn.Linear(8, 16), "up": nn.Linear(8, 16)}),
            "wide": nn.Conv2d(8, 16, 3, groups=8),
            "grouped": nn.Conv2d(8, 16, 3, groups=4),
            "transposed": nn.ConvTranspose1d(8, 8, 3, groups=8),
            "one": nn.Conv2d(1, 8, 3),
            "bilinear": nn.Bilinear(4, 4, 8),
        }
    )
    taken = {n for n, p in model.named_parameters() if default_filter(n, p, model)}
    block = "mixtral.model.layers.0"
    attention = [f"{block}.self_attn.{x}_proj.weight" for x in "qkvo"]
    experts = [f"{block}.mlp.experts.{x}_proj" for x in ("gate_up", "down")]
    own = "mixture.experts.0 mixture.experts.1 gated.gate gated.up grouped one".split()
    assert taken == {*attention, *experts, *(f"{name}.weight" for name in own)}
    reasons = {row["name"]: row["reason"] for row in sl.plan(model, {"sparsity": 0.5}).records()}
    assert reasons["mixtral.model.layers.0.mlp.gate.weight"] == "router"
    assert reasons["mixture.shared_expert_gate.weight"] == "router"
    assert reasons["wide.weight"] == reasons["transposed.weight"] == "depthwise convolution"
    assert reasons["bilinear.weight"] == "bilinear layer"


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
        descend(optimizer, loss := model(torch.randn(8, 16)).square().mean())
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
