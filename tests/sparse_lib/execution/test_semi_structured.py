"""2:4 execution: compression against torch's own decoder, gradients against masked dense.

Sparse tensor cores are absent here. What they multiply is decoded from the compressed form by
torch, so all but the kernels themselves is tested.
"""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.sparse._semi_structured_conversions import sparse_semi_structured_to_dense_cutlass

import sparse_lib as sl
from sparse_lib.device import backend, compile
from sparse_lib.execution import semi_structured
from sparse_lib.execution.semi_structured import Compressed, is_two_of_four

ROWS, COLUMNS = 64, 128


def two_of_four(rows=ROWS, columns=COLUMNS, *, kept=2, transposable=False):
    generator = torch.Generator().manual_seed(3)
    if transposable:
        tile = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0], [0, 1, 0, 1]]).bool()
        return tile.repeat(rows // 4, columns // 4)
    order = torch.rand(rows, columns // 4, 4, generator=generator).argsort(2)
    return (order < kept).view(rows, columns)


@pytest.fixture
def decoded(monkeypatch):
    """The products that would run on sparse tensor cores; their operands are decoded."""
    seen = []

    def matrix(weight, compressed, dtype):
        packed = compressed.pack(weight).to(dtype)
        found = sparse_semi_structured_to_dense_cutlass(packed, compressed.meta)
        seen.append(found)
        return found

    monkeypatch.setattr(semi_structured, "unavailable", lambda: None)
    monkeypatch.setattr(semi_structured, "sparse_matrix", matrix)
    return seen


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_compressed_weights_decode_to_the_masked_ones(kept):
    mask = two_of_four(kept=kept)
    weight = torch.randn(ROWS, COLUMNS).to(torch.bfloat16)  # drawn in bfloat16, some are zero
    form = Compressed.of(mask)
    packed = form.pack(weight)
    assert packed.shape == (ROWS, COLUMNS // 2)
    assert packed.count_nonzero() == mask.sum()
    found = sparse_semi_structured_to_dense_cutlass(packed, form.meta)
    assert torch.equal(found, weight.where(mask, 0))


def test_two_of_four_is_told_from_other_masks():
    assert is_two_of_four(two_of_four()) and is_two_of_four(two_of_four(kept=1))
    assert not is_two_of_four(two_of_four(kept=3))
    assert not is_two_of_four(torch.zeros(4, 6, dtype=torch.bool))


@pytest.mark.parametrize("transposable", [False, True])
def test_outputs_and_gradients_are_those_of_masked_dense(decoded, transposable):
    torch.manual_seed(0)
    layer = nn.Linear(COLUMNS, ROWS).bfloat16()
    layer.register_buffer("weight_mask", two_of_four(transposable=transposable))
    source = torch.randn(3, 5, COLUMNS, dtype=torch.bfloat16)
    twin = copy.deepcopy(layer)
    ours, theirs = source.clone().requires_grad_(), source.clone().requires_grad_()
    output = compile(layer, "semi_structured")(ours)
    expected = F.linear(theirs, twin.weight * twin.weight_mask, twin.bias)
    torch.testing.assert_close(output, expected, rtol=2e-2, atol=1e-2)
    output.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=2e-2, atol=0.5)
    torch.testing.assert_close(layer.weight.grad, twin.weight.grad, rtol=2e-2, atol=0.5)
    assert not layer.weight.grad[~layer.weight_mask].any()
    # The input's gradient runs sparse where the transposed mask is 2:4 too.
    assert len(decoded) == (2 if transposable else 1)


def test_a_training_by_rigl_meets_masked_dense(decoded):
    """The mask moves on the way, and grows where the dense gradient says."""

    def trained(execution):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(COLUMNS, ROWS, bias=False), nn.ReLU(), nn.Linear(ROWS, 8))
        model = model.bfloat16()
        algorithm = sl.RigL(0.5, update={"freq": 2}, score_shaper="2:4", seed=2)
        algorithm.apply(model[0])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        algorithm.apply(optimizer)
        runner = compile(model, execution)
        first = model[0].weight_mask.clone()
        for step in range(5):
            source = torch.randn(16, COLUMNS, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            runner(source.bfloat16()).float().square().mean().backward()
            optimizer.step()
        assert not torch.equal(first, model[0].weight_mask)
        return model

    sparse, dense = trained("semi_structured"), trained("dense")
    assert decoded and is_two_of_four(sparse[0].weight_mask)
    assert torch.equal(sparse[0].weight_mask, dense[0].weight_mask)
    torch.testing.assert_close(sparse[0].weight, dense[0].weight, rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize(
    ("layer", "kept", "words"),
    [
        (nn.Linear(COLUMNS, ROWS), 2, "its product is in torch.float32"),
        (nn.Linear(COLUMNS, 40).bfloat16(), 2, "its weight is 40 x 128, and 2:4 needs multiples"),
        (nn.Linear(COLUMNS, ROWS).bfloat16(), 3, "more than two of four consecutive inputs"),
    ],
)
def test_what_cannot_run_sparse_says_so_once_and_runs_dense(decoded, layer, kept, words):
    mask = two_of_four(layer.out_features, kept=kept)
    layer.register_buffer("weight_mask", mask)
    source = torch.randn(2, COLUMNS).to(layer.weight.dtype)
    runner = compile(layer, "semi_structured")
    with pytest.warns(RuntimeWarning, match=words):
        output = runner(source)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(runner(source), output)
    assert not decoded
    torch.testing.assert_close(output, F.linear(source, layer.weight * mask, layer.bias))
    strict = compile(layer, backend("semi_structured", strict=True))
    with pytest.raises(ValueError, match=words):
        strict(source)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_notice_says_that_all_layers_run_masked_dense():
    layer = nn.Linear(COLUMNS, ROWS).bfloat16()
    layer.register_buffer("weight_mask", two_of_four())
    model = nn.Sequential(layer, nn.ReLU())
    with pytest.warns(RuntimeWarning, match="runs masked dense: .* sees no CUDA GPU") as caught:
        runner = compile(model, "semi_structured")
    assert len(caught) == 1
    source = torch.randn(2, COLUMNS).bfloat16()
    expected = F.linear(source, layer.weight * layer.weight_mask, layer.bias).relu()
    torch.testing.assert_close(runner(source), expected, rtol=2e-2, atol=1e-2)
    with pytest.raises(ValueError, match="cannot run here: .* no CUDA GPU"):
        compile(model, backend("semi_structured", strict=True))
