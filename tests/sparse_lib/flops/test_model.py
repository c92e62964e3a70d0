"""FLOP counts against formulas typed here, torch's counter, and published tables."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sparse_lib.algorithms.rigl import RigL
from sparse_lib.execution import kernels
from sparse_lib.execution.backend import backend, compile
from sparse_lib.flops.formulas import FORMULAS
from sparse_lib.flops.ledger import Ledger
from sparse_lib.flops.model import count, gpt_training_step
from tests.cases import driven
from tests.sparse_lib import tiny_models

B, T, D, V, L = 3, 16, 8, 11, 2
gpt2 = partial(tiny_models.gpt2, n_layer=L)
llama = partial(tiny_models.llama, num_hidden_layers=L)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(
    ("make", "block"), [(gpt2, 12 * D * D), (llama, 2 * D * D + 2 * D * D // 2 + 3 * D * 12)]
)
def test_gpt2_and_llama_with_grouped_queries_by_hand_and_as_executed(make, block, attention):
    model = make(attn_implementation=attention)
    flops = count(model, batch_size=B, sequence_length=T)
    assert flops.forward() == B * (L * (2 * T * block + 4 * T * T * D) + 2 * T * D * V)
    assert flops.training_step() == 3 * flops.forward()
    ids = torch.arange(B * T).view(B, T) % V
    with Ledger() as ledger:
        model(ids, labels=ids).loss.backward()
    assert ledger.executed_flops == ledger.dense_flops == flops.training_step()
    with Ledger() as ledger:
        model(ids)
    by_module = {
        name.partition(".")[2]: sum(parts.values())
        for name, parts in ledger.get_flop_counts().items()
    }
    for layer in flops.layers:
        if layer.weight_name:  # a block's attention is within it
            assert by_module[layer.name] == layer.dense_flops


@pytest.mark.parametrize(
    ("config", "published"),
    [((12, 768, 12), (1.99e12, 1.47e12, 1.20e12)), ((24, 2048, 16), (1.86e13, 1.12e13, 7.46e12))],
)
def test_spdf_table(config, published):
    flops = count(tiny_models.gpt_on_meta(*config), batch_size=1, sequence_length=2048)
    sizes = {"num_layers": config[0], "hidden_size": config[1], "vocab_size": 50257}
    for sparsity, number in zip((0.0, 0.5, 0.75), published, strict=True):
        ours = flops.training_step(flops.uniform(sparsity))
        assert ours == pytest.approx(number, rel=0.01)
        assert ours == gpt_training_step(**sizes, sequence_length=2048, sparsity=sparsity)


def test_a_sparse_cost_is_two_flops_per_nonzero_of_all_but_attention():
    flops = count(nn.Sequential(nn.Linear(10, 100)), batch_size=7)
    assert flops.forward({"0.weight": 0.9}) == 2 * 7 * 100
    assert flops.forward({"0.weight": 1.0}) == 0
    parts = flops.parts({"0.weight": 0.9}, dense_weight_grad=True)
    assert parts == {"forward": 1400, "input_gradient": 1400, "weight_gradient": 14000}
    flops = count(gpt2(), batch_size=1, sequence_length=T)
    parts = flops.parts()  # attention has two inputs, and no weight
    assert parts["input_gradient"] - parts["weight_gradient"] == 2 * L * 4 * T * T * D
    gone = flops.forward(dict.fromkeys(flops.uniform(1.0), 1.0))
    assert gone == L * 4 * T * T * D + 2 * T * D * V
    assert flops.forward() - flops.forward({"transformer.wte.weight": 1.0}) == 2 * T * D * V


def test_torch_attention_and_bilinear_layers_by_hand():
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    inputs = {"src": torch.zeros(B, T, 8)}
    assert count(model, batch_size=B, inputs=inputs).forward() == B * (
        2 * T * (4 * 64 + 2 * 128) + 4 * T * T * 8
    )
    layer = nn.Bilinear(4, 5, 6)
    x, y = torch.ones(3, 4, requires_grad=True), torch.ones(3, 5, requires_grad=True)
    with Ledger() as ledger:
        layer(x, y)
    assert ledger.executed_flops == 2 * 3 * 4 * 5 * 6 == count(layer, (x, y)).forward()


def test_counting_leaves_model_and_random_state_alone():
    model = gpt2().train()
    model.transformer.ln_f.eval()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    random_state = torch.get_rng_state()
    count(model, batch_size=2, sequence_length=8)
    assert torch.equal(random_state, torch.get_rng_state())
    assert model.training and not model.transformer.ln_f.training
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert all(p.device.type == "cpu" and p.grad is None for p in model.parameters())
    assert torch.backends.mha.get_fastpath_enabled()


class Slopes(nn.Linear):
    """As ALiBi of Bloom, whose slopes are powers of a number by a vector of exponents."""

    def forward(self, x):
        exponents = torch.arange(1, 31, device=x.device)
        slopes = torch.pow(torch.tensor(0.5, device=x.device), exponents)
        return F.linear(x, self.weight) * (slopes.reshape(1, 30) + 2.0**exponents)


class Standardised(nn.Linear):
    def forward(self, x):
        return F.linear(x, (self.weight - self.weight.mean(1, keepdim=True)) / self.weight.std())


class Modulated(nn.Linear):
    """A batch and each sample scale the inputs of the weight, as a style does in StyleGAN 2."""

    def forward(self, x):
        return (self.weight * x.mean(0) * x[:, None]) @ x[:, :, None]


class Joined(nn.Module):
    """Queries and keys by one product; keys are twice as wide."""

    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(8, 10, bias=False), nn.Linear(8, 20, bias=False)

    def forward(self, x):
        return F.linear(x, torch.cat([self.q.weight, self.k.weight]))


@pytest.mark.parametrize(
    ("make", "extra"),
    [
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 30)), 0),
        # The largest singular value is a product of the weight with a vector.
        (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(8, 30)), 2 * 8 * 30),
        (lambda: Standardised(8, 30), 0),
        (lambda: Modulated(8, 30), 0),
        (lambda: Slopes(8, 30), 0),
        (Joined, 0),
    ],
)
def test_work_of_computed_weights_belongs_to_what_they_are_computed_from(make, extra):
    model = make()
    flops = count(model, torch.ones(5, 8))
    assert flops.forward() == 2 * 5 * 8 * 30 + extra
    names = [layer.weight_name for layer in flops.layers]
    assert flops.forward(dict.fromkeys(names, 0.5)) == flops.forward() // 2
    assert flops.training_step() == 3 * flops.forward()
    if isinstance(model, Joined):
        assert [layer.dense_flops for layer in flops.layers] == [2 * 5 * 8 * 10, 2 * 5 * 8 * 20]


@pytest.mark.parametrize(
    "fill",
    [torch.sigmoid, torch.exp, F.softplus, lambda w: w.softmax(-1), lambda w: w.cumsum(0),
     lambda w: 1 - w, lambda w: w + 0.5, lambda w: w + torch.ones(w.shape),
     lambda w: torch.lerp(w, torch.ones(30, 1), 0.1)],
)  # fmt: skip
def test_a_weight_whose_zeros_a_function_fills_is_dense(fill):
    class Filled(nn.Linear):
        def forward(self, x):
            return F.linear(x, fill(self.weight) * 2) + F.linear(x, self.weight * fill(self.weight))

    flops = count(Filled(8, 30, bias=False), torch.ones(5, 8))
    one = 2 * 5 * 8 * 30
    assert flops.forward({"weight": 0.75}) == one + one // 4
    assert flops.training_step({"weight": 0.75}) == 3 * (one + one // 4)
    assert {layer.operation for layer in flops.layers} == {"product", "linear"}


def test_weights_that_are_added_used_in_part_or_filled_by_the_model():
    class Sum(Joined):
        def forward(self, x):
            return F.linear(x, self.q.weight + self.k.weight[:10])

    flops = count(Sum(), torch.ones(5, 8))
    assert flops.forward({"q.weight": 0.75}) == flops.forward() == 2 * 5 * 8 * 10

    class Half(nn.Linear):
        def forward(self, x):
            return F.linear(x, self.weight[: self.out_features // 2])

    flops = count(Half(8, 6, bias=False), torch.ones(5, 8))
    assert flops.forward() == 2 * 5 * 8 * 3
    assert flops.forward({"weight": 0.5}) == 5 * 8 * 3

    class Lower(nn.Linear):
        def forward(self, x):
            return F.linear(x, self.weight.masked_fill(torch.ones(30, 8).bool().triu(1), 0))

    assert count(Lower(8, 30), torch.ones(5, 8)).forward({"weight": 0.5}) == 5 * 8 * 30


def test_only_products_beside_a_softmax_are_attention():
    class Scan(nn.Module):
        def forward(self, state, x):
            return state @ x

    class Attention(Scan):
        def forward(self, state, x):
            return super().forward(state.softmax(-1), x)

    inputs = torch.ones(2, 3, 4), torch.ones(2, 4, 5)
    for kind, make in (("product", Scan), ("attention", Attention)):
        (layer,) = count(make(), inputs).layers
        assert (layer.operation, layer.dense_flops) == (kind, 2 * 2 * 3 * 4 * 5)


class Prototypes(nn.Module):
    def __init__(self):
        super().__init__()
        self.prototypes = nn.Parameter(torch.rand(10, 32))
        self.body = nn.Linear(784, 32)

    def forward(self, x):
        return self.body(x) @ self.prototypes.T


def test_inputs_are_made_up_for_the_first_layer_or_asked_for():
    expected = 2 * 3 * (784 * 32 + 32 * 10)
    assert count(Prototypes(), batch_size=3).forward() == expected
    by_name = count(Prototypes(), {"x": torch.ones(3, 784)})
    assert by_name.forward() == expected and by_name.batch_size == 3

    class Backwards(nn.Sequential):
        def forward(self, x):
            return self[0](self[1](x))

    model = Backwards(nn.Linear(4, 2), nn.Linear(3, 4))
    with pytest.raises(ValueError, match=r"give it inputs: .* shape \(1, 4\)"):
        count(model, batch_size=1)
    assert count(model, torch.ones(1, 3)).forward() == 2 * (12 + 8)
    with pytest.raises(ValueError, match="needs inputs"):
        count(model)

    class Routed(nn.Linear):
        def forward(self, x):
            return super().forward(x[x.sum(1).nonzero()[:, 0]])

    class Repeated(nn.Linear):
        def forward(self, x):
            return [super(Repeated, self).forward(x) for _ in range(int(x.max()))][-1]

    for kind in (Routed, Repeated):
        with pytest.raises(ValueError, match="depends on the values of its input"):
            count(kind(3, 2), torch.ones(1, 3))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: count(nn.Linear(3, 3), batch_size=1).forward({"nope": 0.5}), "nope"),
        (lambda: count(nn.Linear(3, 3), batch_size=1).forward({"weight": 1.5}), "1.5"),
        (lambda: count(nn.Linear(3, 3), batch_size=1).forward({"weight": "0.5"}), "not '0.5'"),
        (lambda: count(nn.Linear(3, 3), batch_size=1).forward([0.5]), "by name of a weight"),
        (lambda: count(nn.Linear(3, 3), batch_size=0), "batch_size"),
        (lambda: count(nn.Linear(3, 3), batch_size=10**30), "batch_size is 10+; it must be below"),
        (lambda: count(nn.Linear(3, 3), batch_size=True), "batch_size must be an integer"),
        (lambda: count(gpt2(), batch_size=1, sequence_length=4, image_size=4), "not both"),
        (lambda: count(nn.Conv2d(3, 3, 1), image_size=1.5), "image_size must be an integer"),
        (lambda: count(nn.Linear(3, 3), 4), "inputs are a tensor, .* not 4"),
    ],
)
def test_wrong_settings_are_named(call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        call()


# The ledger of what is executed, against closed forms, to the last digit


@pytest.mark.parametrize("layer_type", ["basic", "bottleneck"])
def test_resnet_equals_the_closed_form_but_for_the_gradient_of_the_images(layer_type):
    model = tiny_models.resnet(layer_type=layer_type)
    flops = count(model, batch_size=2, image_size=32)
    images = torch.randn(2, 3, 32, 32, requires_grad=True)
    with Ledger() as ledger:
        model(images).logits.sum().backward()
    assert ledger.executed_flops == flops.training_step()
    with Ledger() as ledger:
        model(images.detach()).logits.sum().backward()
    assert ledger.executed_flops == flops.training_step() - flops.layers[0].dense_flops


@pytest.mark.parametrize(
    ("layer", "multiply_adds"),
    [
        (nn.Conv2d(4, 6, 3, stride=2, padding=1), 5 * 5 * 6 * 4 * 9),
        (nn.Conv2d(4, 6, 3, groups=2, dilation=2), 5 * 5 * 6 * 2 * 9),
        (nn.Conv2d(4, 8, (3, 1), groups=4, stride=(1, 2)), 7 * 5 * 8 * 1 * 3),
        (nn.Conv2d(4, 6, 1, bias=False), 9 * 9 * 6 * 4),
        (nn.Conv2d(4, 6, 1, stride=2), 5 * 5 * 6 * 4),
        (nn.ConvTranspose2d(4, 6, 3, stride=2), 9 * 9 * 4 * 6 * 9),
        (nn.ConvTranspose2d(4, 4, 3, groups=4), 9 * 9 * 4 * 9),
    ],
    ids=lambda value: str(value) if isinstance(value, nn.Module) else "",
)
def test_convolutions_by_hand(layer, multiply_adds):
    x = torch.ones(2, 4, 9, 9, requires_grad=True)
    with Ledger() as ledger:
        layer(x).sum().backward()
    assert ledger.executed_flops == 3 * 2 * 2 * multiply_adds == count(layer, x).training_step()


def test_a_recurrence_by_hand():
    layer, x = nn.LSTM(8, 16, batch_first=True), torch.ones(2, 5, 8, requires_grad=True)
    with Ledger() as ledger:
        layer(x)[0].sum().backward()
    assert ledger.executed_flops == 3 * 2 * 2 * 5 * 4 * 16 * (8 + 16)
    assert count(layer, x).training_step() == ledger.executed_flops


@pytest.mark.parametrize("implementation", ["eager", "batched_mm", "grouped_mm"])
def test_fused_experts_by_hand(implementation):
    """Each token passes two of four experts: 8 -> 2 x 4 and 4 -> 8."""
    model = tiny_models.mixtral(num_experts_per_tok=2, experts_implementation=implementation)
    flops = count(model, batch_size=B, sequence_length=T)
    by_name = {layer.weight_name: layer for layer in flops.layers if "experts" in layer.name}
    up, down = (by_name[f"model.layers.0.mlp.experts.{n}_proj"] for n in ("gate_up", "down"))
    assert (up.dense_flops, down.dense_flops) == (B * T * 2 * 2 * 8 * 8, B * T * 2 * 2 * 4 * 8)
    assert up.forward_flops({up.weight_name: 0.5}) == up.dense_flops // 2
    assert model.config._experts_implementation == implementation
    ids = torch.arange(B * T).view(B, T) % 11
    with Ledger() as ledger:
        model(ids)
    assert ledger.executed_flops == flops.forward()


@pytest.mark.parametrize(
    ("name", "shapes", "flops"),
    [
        # Of a GPU: values of another size than queries.
        ("_scaled_dot_product_efficient_attention", [(2, 5, 8), (2, 7, 8), (2, 7, 4)], 2 * 70 * 12),
        ("bmm", [(2, 5, 1), (2, 1, 7)], 0),  # angles of rotary embeddings: nothing is added up
    ],
)
def test_operators_by_hand(name, shapes, flops):
    assert FORMULAS[getattr(torch.ops.aten, name)](*shapes) == flops


@pytest.mark.skipif(kernels.unavailable() is not None, reason="no kernels here")
def test_rigl_mean_step_emerges_from_a_schedule():
    """Every tenth step of RigL needs the dense weight gradient: delta T is 9."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    run = compile(model, backend("skip", crossover=0))
    algorithm = RigL(sparsity=0.75, update={"freq": 10, "stop": 1000}, drop_fraction=0.3, seed=0)
    optimizer = driven(algorithm, model)
    flops = count(model, batch_size=5)
    steps = []
    for _ in range(30):
        x = torch.ones(5, 8, requires_grad=True)
        with Ledger() as ledger:
            run(x).square().sum().backward()
        steps.append(ledger.executed_flops)
        optimizer.step()
        optimizer.zero_grad()
    sparse = flops.forward({"0.weight": 0.75, "2.weight": 0.75})
    assert steps.count(2 * sparse + flops.forward()) == 3
    assert steps.count(3 * sparse) == 27
    # Evci et al. 2020, appendix H.
    mean = (3 * sparse * 9 + 2 * sparse + flops.forward()) / (9 + 1)
    assert sum(steps) / len(steps) == pytest.approx(mean, rel=1e-12)
