"""Dead rows and columns go, the function stays, and what is no chain is refused by name."""

import pytest
import torch
from torch import nn

import sparse_lib as sl
from sparse_lib.checkpoint import shrink


def make_network():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Sequential(nn.Conv2d(8, 6, 3), nn.SiLU()), nn.Flatten(),
        nn.Linear(6 * 16, 10), nn.Softplus(), nn.Dropout(), nn.Linear(10, 4),
    )  # fmt: skip
    norm = model[1]
    with torch.no_grad():
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        norm.bias.normal_().add_(2)
        model[0].weight[[1, 4]] = 0  # constants, of which the last moves to the next bias
        model[4][0].weight[:, 2] = 0  # unread
        model[4][0].weight[3] = 0
        model[6].weight[[0, 5]] = 0
        model[9].weight[:, 7] = 0
    return model.eval()


def sizes(model):
    return [tuple(m.weight.shape) for m in model.modules() if type(m) in (nn.Linear, nn.Conv2d)]


def test_the_function_stays_and_dead_units_and_masks_go():
    model, images = make_network(), torch.randn(5, 3, 12, 12)
    small = shrink(model)
    torch.testing.assert_close(small(images), model(images), rtol=1e-5, atol=1e-5)
    assert sizes(small) == [(5, 3, 3, 3), (5, 5, 3, 3), (7, 80), (4, 7)]
    assert small[1].num_features == 5 and small[9].in_features == 7
    assert sizes(model)[0] == (8, 3, 3, 3)  # the model is as it was
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4))
    sl.configure(sl.Static(0.98, "topk")).apply(model)
    small, data = shrink(model), torch.randn(3, 16)
    assert small[0].out_features < 64 and not sl.is_sparse(small) and sl.is_sparse(model)
    torch.testing.assert_close(small(data), model(data))


def test_constants_stay_where_padding_reads_them_and_layers_empty_in_turn():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3, padding=1))
    with torch.no_grad():
        model[0].weight[:2] = 0
        model[0].bias.copy_(torch.tensor([1.0, -1.0, 0.0, 0.0]))  # after the ReLU 1 and 0
    small, images = shrink(model), torch.randn(1, 2, 8, 8)
    assert sizes(small) == [(3, 2, 3, 3), (2, 3, 3, 3)]
    torch.testing.assert_close(small(images), model(images), rtol=1e-5, atol=1e-5)
    # Nobody reads the second unit of the middle layer, which alone reads the first's second.
    model = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(3)))
    with torch.no_grad():
        for layer, weight in zip(model, ([[1, 1], [1, 1]], [[1, 0], [1, 1]], [[1, 0], [1, 0]])):
            layer.weight.copy_(torch.tensor(weight))
    assert sizes(shrink(model)) == [(1, 2), (1, 1), (2, 1)]


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        ([nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4)], "'1' between '0' and '2' is Layer"),
        ([nn.Linear(4, 4), nn.Softmax(1), nn.Linear(4, 4)], "'1' between '0' and '2' is Softmax"),
        ([nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1, groups=2)], "layer '1' has groups=2"),
        ([nn.Conv2d(4, 4, 1), nn.ReLU(), nn.Linear(4, 4)], "'2' reads a convolution without"),
        ([nn.Linear(4, 4), nn.Conv2d(4, 4, 1)], "'1' is a convolution after a linear layer"),
        ([nn.Linear(4, 4), nn.Flatten(), nn.Linear(8, 4)], "'2' reads 8 features, not the 4 out"),
        ([nn.Linear(4, 4), nn.BatchNorm1d(2), nn.Linear(4, 4)], "'1' between '0' and '2' is Batch"),
        ([nn.Linear(4, 4), nn.MaxPool1d(3, 1, 1), nn.Linear(4, 4)], "'1' between '0' and '2' is M"),
        ([nn.Conv2d(4, 4, 1), nn.AvgPool2d(2, divisor_override=3), nn.Conv2d(4, 4, 1)], "is AvgPo"),
    ],
)
def test_what_is_no_chain_is_refused_by_name(modules, words):
    with pytest.raises(ValueError, match=words):
        shrink(nn.Sequential(*modules))
    layer = nn.Linear(4, 4)
    with pytest.raises(ValueError, match="'0' and '1' are one module"):
        shrink(nn.Sequential(layer, layer))
    with pytest.raises(TypeError, match="not Transformer; give it a part"):
        shrink(nn.Transformer(8, 2, 1, 1, 8))
