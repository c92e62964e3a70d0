"""The ledger against closed forms, to the last digit."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from sparse_lib.algorithms.rigl import RigL
from sparse_lib.execution import kernels
from sparse_lib.execution.backend import backend, compile
from sparse_lib.flops.formulas import FORMULAS
from sparse_lib.flops.ledger import Ledger
from sparse_lib.flops.model import count
from tests.cases import driven
from tests.sparse_lib import tiny_models

B, T = 3, 16
MODELS = {
    "gpt2": partial(tiny_models.gpt2, n_layer=2),
    "llama": partial(tiny_models.llama, num_hidden_layers=2),
}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_language_models_equal_the_closed_form_exactly(family, attention):
    model = MODELS[family](attn_implementation=attention)
    flops = count(model, batch_size=B, sequence_length=T)
    ids = torch.arange(B * T).view(B, T) % 11
    with Ledger() as ledger:
        model(ids, labels=ids).loss.backward()
    assert ledger.executed_flops == ledger.dense_flops == flops.training_step()
    with Ledger() as ledger:
        model(torch.zeros(B, T, dtype=torch.long))
    by_module = {
        name.partition(".")[2]: sum(parts.values())
        for name, parts in ledger.get_flop_counts().items()
    }
    for layer in flops.layers:
        if layer.weight_name:  # a block's attention is within it
            assert by_module[layer.name] == layer.dense_flops


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


def test_bilinear_layers_by_hand():
    layer = nn.Bilinear(4, 5, 6)
    x, y = torch.ones(3, 4, requires_grad=True), torch.ones(3, 5, requires_grad=True)
    with Ledger() as ledger:
        layer(x, y)
    assert ledger.executed_flops == 2 * 3 * 4 * 5 * 6 == count(layer, (x, y)).forward()


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


def test_checkpointing_counts_the_second_forward_pass():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    with Ledger() as ledger:
        x = torch.ones(3, 4, requires_grad=True)
        checkpoint(model, x, use_reentrant=False).sum().backward()
    cost = 2 * 3 * (4 * 8 + 8 * 2)
    # The last layer need not be repeated: its output is saved nowhere.
    assert 4 * cost >= ledger.executed_flops > 3 * cost


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
