"""Damaged and hand-made checkpoints end in one sentence, or are read as they were written."""

import json
import math
import random
import struct

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import prune

import sparse_lib as sl
from sparse_lib.checkpoint import (
    check_agrees,
    export_csr,
    export_safetensors,
    import_torch_prune,
    read_safetensors,
    split_state,
)

LAYOUTS = ("dense", "masks", "nan", "csr")


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(27, 4), nn.BatchNorm1d(4))


def masked() -> nn.Sequential:
    model = network()
    sl.Static(0.75, seed=0).apply(model)
    return model


def written(folder, layout, *, keep_metadata=True):
    """Path and bytes of an export; as of another program without our metadata but shapes."""
    path = export_safetensors(masked(), folder / "model.safetensors", layout=layout)
    if not keep_metadata:
        header, data = parts(path.read_bytes())
        ours = header["__metadata__"]
        header["__metadata__"] = {k: v for k, v in ours.items() if k in ("format", "sparse_shapes")}
        path.write_bytes(joined(header, data))
    return path, path.read_bytes()


def parts(content):
    (size,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def joined(header, data):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def sentence(error, path):
    message = str(error.value)
    assert str(path) in message and "\n" not in message
    return message


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_cut_or_flipped_export_is_refused_or_unharmed(layout, tmp_path):
    path, content = written(tmp_path, layout)
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
            assert again.keys() == weights.keys() and masks_again.keys() == masks.keys()
            assert all(torch.equal(again[name], weights[name]) for name in weights)
            assert all(torch.equal(masks_again[name], masks[name]) for name in masks)
    assert refused > 100


@pytest.mark.parametrize("layout", LAYOUTS)
def test_headers_of_other_programs_never_end_in_a_bare_error(layout, tmp_path):
    path, content = written(tmp_path, layout, keep_metadata=False)
    draw = random.Random(1)
    header, data = parts(content)
    for _ in range(150):
        changed = json.loads(json.dumps(header))
        names = [name for name in changed if name != "__metadata__"]
        name, other = draw.choice(names), draw.choice(names)
        kind = draw.randrange(6)
        if kind == 0:
            del changed[name]
        elif kind == 1:
            changed[name]["dtype"] = draw.choice(["I32", "I64", "F32", "F16", "U8", "BOOL"])
        elif kind == 2:
            changed[name]["shape"] = [math.prod(changed[name]["shape"])]
        elif kind == 3:
            changed[name], changed[other] = changed[other], changed[name]
        elif kind == 4:
            changed["__metadata__"]["sparse_shapes"] = draw.choice(
                ["", "3", "[]", "null", '{"0.weight": 3}', '{"x": [2, 2]}', '{"0.weight": [3, -8]}',
                 '{"0.weight": [3, 8000000000000000000000]}', '{"0.weight": [3, 9]}', "[" * 9999]
            )  # fmt: skip
        else:
            changed[f"module.{name}"] = changed.pop(name)
        body = bytearray(data)
        body[draw.randrange(len(body))] ^= 1 << draw.randrange(8)
        path.write_bytes(joined(changed, body))
        try:
            state, masks = read_safetensors(path)
            buffers = {f"{name}_mask": mask for name, mask in masks.items()}
            sl.load_checkpoint(masked(), {**state, **buffers})
        except ValueError as error:
            assert "\n" not in str(error)


CSR = {
    "crow_indices": torch.tensor([0, 2, 3]),
    "col_indices": torch.tensor([0, 2, 1]),
    "values": torch.tensor([1.0, 2.0, 3.0]),
}


def csr_file(folder, shape="[2, 3]", **changes):
    tensors = {f"w.{part}": tensor for part, tensor in {**CSR, **changes}.items()}
    tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    path = folder / "csr.safetensors"
    save_file(tensors, path, metadata={"sparse_shapes": f'{{"w": {shape}}}'})
    return path


def test_a_csr_file_by_hand_is_read(tmp_path):
    for integer in (torch.int32, torch.int64):
        indices = {name: CSR[name].to(integer) for name in ("crow_indices", "col_indices")}
        weights, masks = read_safetensors(csr_file(tmp_path, **indices))
        assert weights["w"].tolist() == [[1, 0, 2], [0, 3, 0]]
        assert masks["w"].tolist() == [[True, False, True], [False, True, False]]
    values = torch.tensor([1.0, math.nan, 3.0])
    weights, masks = read_safetensors(csr_file(tmp_path, values=values))
    assert weights["w"].isnan().tolist() == [[False, False, True], [False, False, False]]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"crow_indices": torch.tensor([0, 3, 2])}, "'w.crow_indices' must be 3 ascending"),
        ({"crow_indices": torch.tensor([1, 2, 3])}, "'w.crow_indices' must be 3 ascending"),
        ({"crow_indices": torch.tensor([0, 2])}, "'w.crow_indices' must be 3 ascending"),
        ({"crow_indices": torch.tensor([0, 2, 2**40])}, "'w.crow_indices' ends at 1099511627776"),
        ({"crow_indices": torch.tensor([0.0, 2, 3])}, "'w.crow_indices' must be int32 or int64"),
        ({"crow_indices": torch.tensor([[0, 2, 3]])}, "'w.crow_indices' must have one dimension"),
        ({"crow_indices": torch.tensor([], dtype=torch.int64)}, "'w.crow_indices' must be 3"),
        ({"crow_indices": None}, "'w.crow_indices' is missing"),
        ({"col_indices": torch.tensor([0, 3, 1])}, r"'w.col_indices' must lie in \[0, 3\)"),
        ({"col_indices": torch.tensor([0, -1, 1])}, r"'w.col_indices' must lie in \[0, 3\)"),
        ({"col_indices": torch.tensor([0, 2**40, 1])}, "'w.col_indices' must lie in"),
        ({"col_indices": torch.tensor([2, 0, 1])}, "'w.col_indices' must ascend"),
        ({"col_indices": torch.tensor([2, 2, 1])}, "'w.col_indices' must ascend"),
        ({"col_indices": torch.tensor([0, 2])}, "3, but there are 2 column indices and 3 values"),
        ({"col_indices": torch.tensor([0, 2, 1], dtype=torch.int16)}, "must be int32 or int64"),
        ({"values": torch.ones(4)}, "3, but there are 3 column indices and 4 values"),
        ({"values": torch.ones(3, 1)}, "'w.values' must have one dimension"),
        ({"values": None}, "'w.values' is missing"),
        ({"shape": "[3, 2]"}, "'w.crow_indices' must be 4 ascending"),
        ({"shape": "[2]"}, "'w.crow_indices' must be 2 ascending"),
        ({"shape": "[2, -3]"}, "'w' must have a shape of sizes"),
        ({"shape": '"ab"'}, "'w' must have a shape of sizes"),
        ({"shape": "[2, 1e3]"}, "'w' must have a shape of sizes"),
        ({"shape": "[2, 3], 3"}, "'sparse_shapes' is no JSON"),
    ],
)
def test_csr_arrays_that_are_no_matrix_are_named(changes, words, tmp_path):
    path = csr_file(tmp_path, **changes)
    with pytest.raises(ValueError, match=words) as error:
        read_safetensors(path)
    sentence(error, path)


def test_files_that_are_none(tmp_path):
    path = tmp_path / "x.safetensors"
    for content in (b"", b"abc", b"\0" * 64, b"\xff" * 64, b"{}" * 50):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="is no whole safetensors file") as error:
            read_safetensors(path)
        sentence(error, path)
    with pytest.raises(OSError, match="absent"):
        read_safetensors(tmp_path / "absent")


def test_a_nan_that_is_a_value_stays_one(tmp_path):
    model = masked()
    model[3].running_mean[1] = math.nan
    with torch.no_grad():
        model[0].weight[model[0].weight_mask.nonzero()[0].split(1)] = math.nan
        model[3].bias_mask.fill_(True)
        model[3].bias[2] = math.nan
    for layout in ("dense", "masks", "csr"):
        path = export_safetensors(model, tmp_path / layout, layout=layout)
        weights, _ = read_safetensors(path)
        assert int(weights["0.weight"].isnan().sum()) == 1
        assert weights["3.running_mean"].isnan().tolist() == [False, True, False, False]
    other = sl.checkpoint.export_dense(model)
    other["3.running_mean"][1] = 0.0
    with pytest.raises(ValueError, match="differ in the values of '3.running_mean'"):
        check_agrees(model, other)
    with pytest.raises(ValueError, match="has a present weight that is NaN"):
        export_safetensors(model, tmp_path / "nan", layout="nan")


def bad_csr():
    return torch.sparse_csr_tensor(
        torch.tensor([0, 2, 2**30]), torch.tensor([0, 2, 1]), torch.ones(3), (2, 3)
    )


WEIGHT = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({3: WEIGHT}, "its key 3 is no name"),
        ({None: WEIGHT, "weight": WEIGHT}, "its key None is no name"),
        ({"weight": [1, 2]}, r"no tensor at its top, only \['weight'\]"),
        ({"state_dict": {"weight": WEIGHT}}, r"no tensor at its top, only \['state_dict'\]"),
        ({"weight": WEIGHT.to_sparse_coo()}, "'weight' is torch.sparse_coo"),
        ({"weight": WEIGHT.to_sparse_csc()}, "'weight' is torch.sparse_csc"),
        ({"weight": bad_csr}, "'weight.crow_indices' ends at 1073741824"),
        ({"weight": WEIGHT, "_orig_mod.weight": WEIGHT}, "has 'weight' more than once"),
        ({"weight": WEIGHT, "weight_orig": WEIGHT, "weight_mask": WEIGHT}, "both 'weight' and"),
        ({"weight_orig": WEIGHT, "weight_mask": WEIGHT * 0.5}, "values besides 0 and 1"),
        ({"weight_orig": WEIGHT, "weight_mask": WEIGHT * math.nan}, "values besides 0 and 1"),
        ({"weight": WEIGHT, "weight_mask": torch.ones(3, dtype=torch.bool)}, "of its shape"),
        ({"weight": WEIGHT.int()}, "'weight' is torch.int32, the model's torch.float32"),
        ({"weight": WEIGHT.bool()}, "'weight' is torch.bool, the model's torch.float32"),
        ({"weight": WEIGHT.to(torch.complex64)}, "'weight' is torch.complex64"),
        ({"weight": torch.ones(3, 2)}, r"'weight' has shape \(3, 2\)"),
        ({"weight": WEIGHT, "other": WEIGHT}, r"has \['other'\] besides"),
        ({"other": WEIGHT}, r"lacks \['weight'\]"),
        ({"model": {"weight": WEIGHT}, "optimizer": {"sparsity": {"state": [1]}}}, "a mapping"),
        (
            {"weight": WEIGHT, "optimizer": {"sparsity": {"state": {"weight": {"mask": 3}}}}},
            "no mask tensor for 'weight'",
        ),
        (
            {"weight": WEIGHT, "optimizer": {"sparsity": {"state": {"x": {"mask": WEIGHT}}}}},
            "the mask of 'x' has no weight",
        ),
    ],
)
def test_states_that_are_none_are_named_and_change_nothing(state, words):
    state = {key: value() if callable(value) else value for key, value in state.items()}
    model = nn.Linear(3, 2, bias=False)
    before = model.weight.clone()
    with pytest.raises(ValueError, match=words):
        sl.load_checkpoint(model, state)
    assert torch.equal(model.weight, before) and not dict(model.named_buffers())


@pytest.mark.parametrize("state", [3, [1, 2], None, "text", WEIGHT, {"model": [1]}])
@pytest.mark.parametrize("load", [split_state, lambda state: sl.load_checkpoint(network(), state)])
def test_what_is_no_mapping_is_refused(load, state):
    with pytest.raises(TypeError, match="a checkpoint must be a mapping of names to tensors"):
        load(state)


def test_a_parameter_may_be_called_model():
    weights, _ = split_state({"model": WEIGHT, "other": WEIGHT})
    assert weights.keys() == {"model", "other"}


def test_no_module_and_outputs_that_differ():
    with pytest.raises(TypeError, match="expected a torch module, not int"):
        sl.load_checkpoint(3, {})

    class Counting(nn.Linear):
        calls = 0

        def forward(self, data):
            self.calls += 1
            return super().forward(data) + self.calls

    model = Counting(2, 2)
    with pytest.raises(ValueError, match="differ in their outputs"):
        check_agrees(model, model.state_dict(), (torch.ones(1, 2),))
    with pytest.raises(ValueError, match="differ in the values of 'weight'"):
        check_agrees(model, {**model.state_dict(), "weight": torch.ones(5)})


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.complex64])
def test_masks_of_unusual_numbers(dtype):
    mask = torch.tensor([[True, False], [False, True]])
    state = {"w": torch.ones(2, 2).to(dtype), "w_mask": mask}
    weights, masks = split_state(state)
    assert weights["w"].to(torch.complex64).real.tolist() == [[1, 0], [0, 1]]
    assert torch.equal(masks["w"], mask)


def test_csr_keeps_every_bit():
    model = nn.Linear(2, 2, bias=False)
    model.weight.data = torch.tensor([[-0.0, 0.0], [0.0, math.inf]])
    model.register_buffer("weight_mask", torch.eye(2, dtype=torch.bool))
    weights, _ = split_state(export_csr(model))
    assert math.copysign(1, weights["weight"][0, 0]) == -1 and weights["weight"][1, 1] == math.inf


def test_a_pruning_mask_that_scales_is_refused():
    model = nn.Linear(2, 2)
    prune.custom_from_mask(model, "weight", torch.full((2, 2), 0.5))
    with pytest.raises(ValueError, match="the mask of 'weight' has values besides 0 and 1"):
        import_torch_prune(model)
    assert hasattr(model, "weight_orig") and model._forward_pre_hooks
