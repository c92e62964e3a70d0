"""Layers that hold their unmasked weights alone, against the same layers under masks."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import sparse_lib as sl
from sparse_lib.device import PackedLayer, pack, unpack
from sparse_lib.execution import kernels
from sparse_lib.execution.backend import compile
from tests.sparse_lib.execution.test_backend import (
    LAYERS,
    TOLERANCE,
    Tied,
    add_mask,
    always,
    conv1d,
    relative_error,
    step,
)


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 36, 64),
        nn.GELU(),
        conv1d(64, 48),
        nn.Linear(48, 10),
    )


def images(seed):
    return torch.randn(16, 3, 6, 6, generator=torch.Generator().manual_seed(seed))


def train(model, optimizer, steps):
    for seed in steps:
        optimizer.zero_grad()
        model(images(seed)).square().mean().backward()
        optimizer.step()


def masked_network(sparsity=0.9):
    model = network()
    algorithm = sl.Static(sparsity, seed=0)
    algorithm.apply(model)
    return model, algorithm


OPTIMIZERS = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=1e-2),
    "fused": lambda params: torch.optim.AdamW(params, lr=1e-2, fused=True),
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=1e-4),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=1e-2),
}


@pytest.mark.parametrize("sparsity", (0.0, 0.6, 0.95))
@pytest.mark.parametrize("name", LAYERS)
def test_a_packed_layer_has_the_bits_of_one_that_skips(name, sparsity):
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    holder, source = nn.Sequential(make()), torch.randn(shape)
    add_mask(holder[0], sparsity)
    mask = holder[0].weight_mask.clone()
    expected = step(compile(copy.deepcopy(holder), always()), source)
    assert pack(holder, least_sparsity=0.0) == ["0.weight"]
    assert torch.equal(holder[0].mask, mask)
    result = step(holder, source)
    for one, other in zip(result, expected, strict=True):
        assert torch.equal(one, other[mask] if one.shape != other.shape else other)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_packing_in_the_middle_changes_no_bit_of_a_training(name):
    ends = []
    for packs in (False, True):
        model, algorithm = masked_network()
        optimizer = OPTIMIZERS[name](model.parameters())
        algorithm.apply(optimizer)
        twin = compile(model, always())
        train(twin, optimizer, range(4))
        if packs:
            assert pack(model, optimizer) == [f"{i}.weight" for i in (0, 3, 5, 6)]
            assert model[3].values.numel() == model[3].mask.sum() < model[3].weight.numel() / 9
            train(model, optimizer, range(4, 8))
            assert unpack(model, optimizer) == [f"{i}.weight" for i in (0, 3, 5, 6)]
            twin = compile(model, always())
        else:
            train(twin, optimizer, range(4, 8))
        train(twin, optimizer, range(8, 11))
        ends.append((model.state_dict(), optimizer.state_dict()))
    (one, states), (other, other_states) = ends
    assert list(one) == list(other)
    # Torch's fused kernels round the last numbers of a tensor otherwise than those before them.
    close = {"rtol": 1e-5, "atol": 1e-7} if name == "fused" else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(one, other, **close)
    assert states["param_groups"] == other_states["param_groups"]
    torch.testing.assert_close(states["state"], other_states["state"], **close)


def test_states_and_gradients_are_as_small_as_the_weights_that_are_left():
    model, _ = masked_network()
    pack(model)
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, range(1))
    for layer in (model[0], model[3], model[5], model[6]):
        kept = int(layer.mask.sum())
        assert layer.values.shape == layer.values.grad.shape == (kept,)
        assert optimizer.state[layer.values]["exp_avg"].shape == (kept,)
        assert "weight" not in dict(layer.named_parameters())


def test_a_dynamic_algorithm_lets_go_and_may_come_back():
    model = network()
    algorithm = sl.RigL(0.8, update={"freq": 2}, drop_fraction=0.3, seed=0)
    algorithm.apply(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    algorithm.apply(optimizer)
    train(model, optimizer, range(5))
    masks = {name: tensor.clone() for name, tensor in model.named_buffers()}
    pack(model, optimizer)
    assert not algorithm.sparse_params or not any("weight" in n for n in algorithm.sparse_params)
    train(model, optimizer, range(5, 9))
    unpack(model, optimizer)
    for name, tensor in model.named_buffers():
        assert torch.equal(tensor, masks[name])
    algorithm.detach()
    again = sl.RigL(0.8, update={"freq": 2}, drop_fraction=0.3, seed=1, init_method="from_zeros")
    again.apply(model)
    again.apply(optimizer)
    train(model, optimizer, range(9, 14))
    assert not torch.equal(model[3].weight_mask, masks["3.weight_mask"])
    assert not model[3].weight[~model[3].weight_mask].any()


@pytest.mark.parametrize("precision", ("bfloat16", "autocast"))
def test_other_precisions_have_the_bits_of_a_twin(precision):
    model, _ = masked_network()
    model = model[3:]
    model = model.bfloat16() if precision == "bfloat16" else model
    source = torch.randn(16, 8 * 36).to(model[0].weight.dtype)
    twin, packed = compile(copy.deepcopy(model), always()), copy.deepcopy(model)
    pack(packed)
    for run in (twin, packed):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
            run(source).float().square().mean().backward()
    mask = twin[0].weight_mask
    assert torch.equal(packed[0].values.grad, twin[0].weight.grad[mask])


def test_without_kernels_torch_multiplies_a_dense_weight(monkeypatch):
    model, _ = masked_network()
    expected = step(model, images(0))
    masks = [model[i].weight_mask for i in (0, 3, 5, 6)]
    pack(model)
    monkeypatch.setattr(kernels, "unavailable", lambda: "none here")
    monkeypatch.setattr(kernels.Structure, "multiply", None)
    result = step(model, images(0))
    assert relative_error(result[0], expected[0]) < TOLERANCE
    assert relative_error(result[1], expected[1]) < TOLERANCE
    for i, mask in zip((0, 3, 5, 6), masks):
        gradient = model[i].values.grad
        dense = next(g for g in expected[2:] if g.shape == mask.shape)
        assert relative_error(gradient, dense[mask]) < TOLERANCE


def test_state_dicts_are_those_of_the_masked_model():
    model, _ = masked_network()
    expected = copy.deepcopy(model.state_dict())
    packed = copy.deepcopy(model)
    pack(packed)
    found = packed.state_dict()
    assert list(found) == list(expected)
    assert all(torch.equal(tensor, found[key]) for key, tensor in expected.items())
    with torch.no_grad():
        for layer in packed:
            if isinstance(layer, PackedLayer):
                layer.values.zero_()
                layer.bias.zero_()
    assert not packed.load_state_dict(expected).missing_keys
    assert torch.equal(packed(images(1)), compile(model, always())(images(1)))
    model.load_state_dict(found)


def test_states_that_do_not_fit_are_refused():
    model, _ = masked_network()
    state = copy.deepcopy(model.state_dict())
    pack(model)
    for change, message in (
        ({"3.weight_mask": ~state["3.weight_mask"]}, "'3.weight_mask' is not the mask that"),
        ({"3.weight": state["3.weight"][:5]}, r"'3.weight' has the shape \(5, 288\), and must"),
        ({"3.weight": torch.ones(64, 288)}, "'3.weight' has weights where it is packed without"),
        ({"3.bias": None}, "Missing key"),
        ({"3.weight": None}, "Missing key"),
    ):
        wrong = {key: value for key, value in (state | change).items() if value is not None}
        with pytest.raises(RuntimeError, match=message):
            model.load_state_dict(wrong)


def test_layers_that_cannot_be_packed_stay():
    tied = Tied(False)
    add_mask(tied.first, 0.9)
    grouped, parametrized, thin = nn.Conv2d(4, 4, 3, groups=2), nn.Linear(9, 9), nn.Linear(9, 9)
    add_mask(grouped, 0.9)
    add_mask(thin, 0.3)
    add_mask(parametrized, 0.9)
    parametrize.register_parametrization(parametrized, "weight", nn.Identity())
    twice = nn.Linear(9, 9)
    add_mask(twice, 0.9)
    model = nn.ModuleList([tied, grouped, parametrized, thin, nn.Linear(9, 9), twice, twice])
    assert pack(model) == unpack(model) == []
    assert pack(model, least_sparsity=0.2) == ["3.weight"]


def test_copies_stand_alone():
    model, _ = masked_network()
    pack(model)
    expected = model(images(0))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copies = (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(file, weights_only=False),
    )
    for again in copies:
        assert torch.equal(again(images(0)), expected)
        with torch.no_grad():
            again[3].values.zero_()
    assert torch.equal(model(images(0)), expected)
    twin = compile(model)
    assert torch.equal(twin(images(0)), expected)


def test_a_language_model_is_packed_trained_and_saved(tmp_path):
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=50, n_embd=32, n_layer=2, n_head=2, n_positions=32, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config).eval()
    sl.Group({"*.h.*": sl.Static(0.8, seed=0)}).apply(model)
    tokens = torch.randint(50, (2, 16))
    expected = model(input_ids=tokens).logits
    names = pack(model)
    assert len(names) == 8 and names[0] == "transformer.h.0.attn.c_attn.weight"
    torch.testing.assert_close(model(input_ids=tokens).logits, expected)
    optimizer = torch.optim.AdamW(model.parameters())
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    expected = model(input_ids=tokens).logits
    model.save_pretrained(tmp_path)
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(again(input_ids=tokens).logits, expected)


def test_a_packed_model_may_be_compiled_by_torch():
    model, _ = masked_network()
    pack(model)
    torch._dynamo.reset()
    run = torch.compile(model, backend="aot_eager")
    assert torch.equal(run(images(0)), model(images(0)))


def test_an_optimizer_keeps_its_groups():
    model, algorithm = masked_network()
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups)
    algorithm.apply(optimizer)
    pack(model, optimizer)
    packed = {id(layer.values) for layer in model if isinstance(layer, PackedLayer)}
    assert {id(param) for param in optimizer.param_groups[0]["params"]} == packed
    train(model, optimizer, range(2))


def test_the_rest_of_the_library_knows_packed_layers():
    model, _ = masked_network()
    pack(model)
    assert model[3].in_features == 288 and model[0].kernel_size == (3, 3) and model[5].nf == 48
    assert not hasattr(model[3], "out_channels")
    assert sl.is_sparse(model)
    for change in (sl.finalize, sl.densify, sl.checkpoint.export_dense, sl.checkpoint.masks_of):
        with pytest.raises(ValueError, match="layer '0' is packed; sparse_lib.device.unpack"):
            change(model)
    with pytest.warns(UserWarning):
        sl.Static(0.5, seed=0).apply(model)
    assert not any("values" in name for name, _ in model.named_buffers())
    unpack(model)
    assert len(sl.finalize(model)) >= 4


def test_what_cannot_be_packed_is_said():
    model, algorithm = masked_network()
    with pytest.raises(TypeError, match="pack takes a torch.nn.Module, not list"):
        pack([model])
    with pytest.raises(ValueError, match="give it the module that holds this"):
        pack(model[3])
    with pytest.raises(ValueError, match=r"least_sparsity must be in \[0, 1\], got 2"):
        pack(model, least_sparsity=2)
    twin = compile(model)
    with pytest.raises(ValueError, match="not what sparse_lib.device.compile made of it"):
        pack(twin)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    algorithm.apply(optimizer)
    for wrong in (None, torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)):
        with pytest.raises(ValueError, match="'0.weight' is trained by the optimizer that Static"):
            pack(model, wrong)
    algorithm.detach(optimizer)
    packed = copy.deepcopy(model)
    twin = compile(packed)
    pack(packed)
    with pytest.raises(RuntimeError, match="layer '0' was packed after the model was compiled"):
        twin(images(0))
    optimizer = torch.optim.Adafactor(model.parameters())
    train(model, optimizer, range(1))
    with pytest.raises(ValueError, match="state 'row_var' of '0.weight' has the shape"):
        pack(model, optimizer)
    assert not any(isinstance(layer, PackedLayer) for layer in model)
