"""Damaged and hand-made checkpoints end in one sentence, or are read as they were written."""

import math
import random

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils import prune

import sparse_lib as sl
from sparse_lib.checkpoint import export_safetensors, read_safetensors, split_state
from tests.cases import same

LAYOUTS = ("dense", "masks", "nan", "bitmask")


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(27, 4), nn.BatchNorm1d(4))


def masked() -> nn.Sequential:
    model = network()
    sl.Static(0.75, seed=0).apply(model)
    return model


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_cut_or_flipped_export_is_refused_or_unharmed(layout, tmp_path):
    path = export_safetensors(masked(), tmp_path / "model.safetensors", layout=layout)
    content = path.read_bytes()
    weights, masks = read_safetensors(path)
    draw = random.Random(0)
    refused = 0
    for trial in range(150):
        damaged = bytearray(content)
        if trial % 3 == 0:
            del damaged[draw.randrange(len(damaged)) :]
        else:
            damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        try:
            again, masks_again = read_safetensors(path)
        except ValueError as error:
            assert str(path) in str(error)
            refused += 1
        else:
            assert same(again, weights) and same(masks_again, masks)
    assert refused > 100


def bit_file(folder, **changes):
    """A file by hand: [[1, 0, 2], [0, 3, 0]], whose mask is 1 + 4 + 16 in bits."""
    parts = {
        "compressed": torch.tensor([1.0, 2.0, 3.0]),
        "bitmask": torch.tensor([21], dtype=torch.uint8),
        "shape": torch.tensor([2, 3]),
    }
    tensors = {f"w.{part}": tensor for part, tensor in {**parts, **changes}.items()}
    path = folder / "bits.safetensors"
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)
    return path


@pytest.mark.parametrize("values", [(1.0, 2.0, 3.0), (1.0, math.nan, 0.0)])  # present, though zero
def test_a_bitmask_by_hand_is_read_and_written(values, tmp_path):
    path = bit_file(tmp_path, compressed=torch.tensor(values))
    weights, masks = read_safetensors(path)
    expected = torch.tensor([[values[0], 0, values[1]], [0, values[2], 0]])
    torch.testing.assert_close(weights["w"], expected, equal_nan=True)
    assert masks["w"].tolist() == [[True, False, True], [False, True, False]]
    model = nn.Linear(3, 2, bias=False)
    model.weight.data = expected
    model.register_buffer("weight_mask", masks["w"])
    state = sl.checkpoint.export_bitmask(model)
    for name, tensor in load_file(path).items():
        own = state[name.replace("w.", "weight.")]
        assert own.dtype is tensor.dtype and own.tolist() == pytest.approx(
            tensor.tolist(), nan_ok=True
        )


def test_bits_of_a_scalar_are_read(tmp_path):
    model = nn.Module()
    model.weight = nn.Parameter(torch.tensor(2.0))
    model.register_buffer("weight_mask", torch.tensor(True))
    save_file(sl.checkpoint.export_bitmask(model), path := tmp_path / "scalar.safetensors")
    weights, masks = read_safetensors(path)
    assert weights["weight"] == 2 and masks["weight"].item() is True


@pytest.mark.parametrize("two_of_four", [False, True])
def test_checkpoints_of_compressed_tensors_are_read(two_of_four):
    # sparse-bitmask and sparse-24-bitmask: bits of each row alone, under the module's name.
    values = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    bits = torch.tensor([[0b00101, 0b1], [0b00011, 0b1]], dtype=torch.uint8)
    state = {"0.bitmask": bits, "0.bias": torch.ones(2)}
    if two_of_four:
        state |= {"0.compressed": values.reshape(2, 3), "0.shape": torch.tensor([[2], [9]])}
    else:
        state |= {"0.compressed": values, "0.shape": torch.tensor([2, 9])}
        state["0.row_offsets"] = torch.tensor([0, 3])
    model = nn.Sequential(nn.Linear(9, 2))
    sl.load_checkpoint(model, state)
    assert model[0].weight.tolist() == [[1, 0, 2, 0, 0, 0, 0, 0, 3], [4, 5, 0, 0, 0, 0, 0, 0, 6]]
    assert torch.equal(model[0].weight_mask, model[0].weight != 0)


def test_files_that_are_none(tmp_path):
    path = tmp_path / "x.safetensors"
    for content in (b"", b"abc", b"\0" * 64, b"\xff" * 64, b"{}" * 50):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"^{path}.* is no whole safetensors file.*$"):
            read_safetensors(path)
    with pytest.raises(OSError, match="absent"):
        read_safetensors(tmp_path / "absent")
    with pytest.raises(OSError, match="is a folder, not a safetensors file"):
        read_safetensors(tmp_path)
    for target, why in ((tmp_path, "directory"), (tmp_path / "absent" / "file", "No such file")):
        with pytest.raises(OSError, match=f"{target} cannot be written: .*{why}"):
            export_safetensors(torch.nn.Linear(2, 2), target)


def test_a_nan_that_is_a_value_stays_one(tmp_path):
    model = masked()
    model[3].running_mean[1] = math.nan
    with torch.no_grad():
        model[0].weight[model[0].weight_mask.nonzero()[0].split(1)] = math.nan
        model[3].bias_mask.fill_(True)
        model[3].bias[2] = math.nan
    for layout in ("dense", "masks", "bitmask"):
        path = export_safetensors(model, tmp_path / layout, layout=layout)
        weights, _ = read_safetensors(path)
        assert int(weights["0.weight"].isnan().sum()) == 1
        assert weights["3.running_mean"].isnan().tolist() == [False, True, False, False]
    with pytest.raises(ValueError, match="has a present weight that is NaN"):
        export_safetensors(model, tmp_path / "nan", layout="nan")


WEIGHT = torch.ones(2, 3)
PEER = {"state": {"x": {"mask": WEIGHT}}}


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({3: WEIGHT}, "its key 3 is no name"),
        ({"weight": [1, 2]}, r"no tensor at its top, only \['weight'\]"),
        ({"weight": WEIGHT.to_sparse_coo()}, "'weight' is torch.sparse_coo"),
        ({"weight": WEIGHT, "_orig_mod.weight": WEIGHT}, "has 'weight' more than once"),
        ({"weight": WEIGHT, "weight_orig": WEIGHT, "weight_mask": WEIGHT}, "both 'weight' and"),
        ({"weight_orig": WEIGHT, "weight_mask": WEIGHT * 0.5}, "values besides 0 and 1"),
        ({"weight": WEIGHT, "weight_mask": torch.ones(3, dtype=torch.bool)}, "of its shape"),
        ({"weight": WEIGHT.int()}, "'weight' is torch.int32, the model's torch.float32"),
        ({"weight": torch.ones(3, 2)}, r"'weight' has shape \(3, 2\)"),
        ({"weight": WEIGHT, "other": WEIGHT}, r"has \['other'\] besides"),
        ({"other": WEIGHT}, r"lacks \['weight'\]"),
        ({"weight": WEIGHT, "optimizer": {"sparsity": PEER}}, "the mask of 'x' has no weight"),
    ],
)
def test_states_that_are_none_are_named_and_change_nothing(state, words):
    model = nn.Linear(3, 2, bias=False)
    before = model.weight.clone()
    with pytest.raises(ValueError, match=words):
        sl.load_checkpoint(model, state)
    assert torch.equal(model.weight, before) and not dict(model.named_buffers())
    prune.custom_from_mask(model, "weight", WEIGHT * 0.5)
    with pytest.raises(ValueError, match="the mask of 'weight' has values besides 0 and 1"):
        sl.checkpoint.import_torch_prune(model)
    assert hasattr(model, "weight_orig") and model._forward_pre_hooks


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bitmask": torch.tensor([53], dtype=torch.uint8)}, "3 values, and its mask 4"),
        ({"compressed": None}, "w.compressed and w.shape"),
        ({"shape": torch.tensor([9, 9])}, "11 bytes"),
    ],
)
def test_bits_that_fit_nothing_are_named(changes, words, tmp_path):
    with pytest.raises(ValueError, match=words) as caught:
        read_safetensors(bit_file(tmp_path, **changes))
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2],
)
@pytest.mark.parametrize("export", [sl.checkpoint.export_nan, sl.checkpoint.export_bitmask])
def test_numbers_of_each_type_keep_every_bit(dtype, export):
    model = nn.Linear(2, 2, bias=False)
    model.weight.data = torch.tensor([[-0.0, 0.0], [0.0, -2.0]]).to(dtype)
    model.register_buffer("weight_mask", torch.eye(2, dtype=torch.bool))
    weights, masks = split_state(export(model))
    assert torch.equal(masks["weight"], model.weight_mask)
    bits = torch.view_as_real(model.weight) if dtype.is_complex else model.weight
    found = torch.view_as_real(weights["weight"]) if dtype.is_complex else weights["weight"]
    assert torch.equal(found.contiguous().view(torch.uint8), bits.data.view(torch.uint8))
