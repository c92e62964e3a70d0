"""Multilayer perceptrons on images: what masks leave of them, by hand."""

import pytest
import torch
from transformers import AutoModelForImageClassification

from experiments.models import _networks, mlp
from sparse_lib.configure import configure
from sparse_lib.flops.model import count


def network(size: int, hidden: list[int], classes: int = 2, **config):
    torch.manual_seed(0)
    names = [str(number) for number in range(classes)]
    made = mlp.Config(hidden_sizes=hidden, **config)
    return mlp.build(made, classes=names, num_channels=1, image_size=size)


def masked(model, *masks):
    for layer, mask in zip(model.linears, masks, strict=False):
        layer.register_buffer("weight_mask", torch.tensor(mask, dtype=torch.bool))
    return model


def test_a_dense_network_has_no_such_facts():
    assert mlp.facts(network(10, [3])) == {}


def test_units_on_no_way_to_an_output_are_dead_with_all_that_leads_to_them_alone():
    """Nine border pixels and one inside of a picture of 9; pixel 40 is the middle."""
    first = torch.zeros(3, 81, dtype=torch.int)
    first[0, 40], first[1, 0], first[2, [40, 3]] = 1, 1, 1
    # Unit 0 leads to unit 0 of layer 2; unit 1, with pixel 0, to nothing; unit 2 to unit 1.
    second = [[1, 0, 0], [0, 0, 1], [0, 0, 0]]
    model = masked(network(9, [3, 3]), first.tolist(), second)
    model.linears[2].register_buffer("weight_mask", torch.tensor([[1, 0, 0], [0, 0, 0]]).bool())
    found = mlp.facts(model)
    # Unit 1 of layer 2 leads nowhere, so neither does unit 2 of layer 1, nor pixel 3.
    assert (found["inputs_kept"], found["units_1_kept"], found["units_2_kept"]) == (1, 1, 1)
    assert found["centre_dropped"] == 0.0 and found["border_dropped"] == 1.0
    # Present weights over those between what is left: 1 of 1, 1 of 1, and 1 of 2 to the outputs.
    assert found["compressed_sparsity"] == pytest.approx(0.25)
    assert [found[f"kept_row_{row:02}"] for row in range(9)] == [0, 0, 0, 0, 1 << 4, 0, 0, 0, 0]


def test_flops_are_those_of_its_layers_and_pixels_are_flattened():
    assert count(network(10, [5], classes=3), batch_size=2, image_size=10).forward() == 2 * 2 * (
        100 * 5 + 5 * 3
    )


def test_export_loads_again_with_its_activation(tmp_path):
    model = network(4, [6], activation="srelu", dropout=0.5).eval()
    configure({"sparsity": 0.5, "seed": 0}).apply(model)
    weights = {k: v for k, v in model.state_dict().items() if not k.endswith("_mask")}
    model.save_pretrained(tmp_path, state_dict=weights)
    again = AutoModelForImageClassification.from_pretrained(tmp_path).eval()
    images = torch.rand(3, 1, 4, 4)
    assert torch.equal(model(images).logits, again(images).logits)


def test_srelu_is_the_identity_between_its_thresholds_and_has_slopes_outside():
    unit = _networks.SReLU(1)
    with torch.no_grad():
        unit.left.fill_(-1), unit.right.fill_(2)
        unit.left_slope.fill_(0.5), unit.right_slope.fill_(0.25)
    inputs = torch.tensor([-3.0, -1.0, 0.5, 2.0, 6.0])[:, None]
    # -1 + 0.5 * -2 = -2; 2 + 0.25 * 4 = 3.
    assert unit(inputs)[:, 0].tolist() == [-2.0, -1.0, 0.5, 2.0, 3.0]
    assert torch.equal(_networks.SReLU(1)(inputs), inputs.relu())
