"""Layers that hold their unmasked weights alone, against the same layers under masks."""

import copy
import pickle
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize, prune

import sparse_lib as sl
from sparse_lib.device import PackedLayer, pack
from sparse_lib.execution import kernels
from sparse_lib.execution.backend import compile
from sparse_lib.flops.ledger import Ledger
from sparse_lib.flops.model import count
from tests.cases import descend, driven, fit
from tests.sparse_lib import tiny_models
from tests.sparse_lib.execution.test_backend import (
    LAYERS,
    TOLERANCE,
    add_mask,
    always,
    conv1d,
    masked_model,
    relative_error,
    step,
    tied_layers,
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
    fit(model, optimizer, map(images, steps))


def masked_network():
    model = network()
    algorithm = sl.Static(0.9, seed=0)
    algorithm.apply(model)
    return model, algorithm


OPTIMIZERS = {
    "adamw": partial(torch.optim.AdamW, lr=1e-2),
    "fused": partial(torch.optim.AdamW, lr=1e-2, fused=True),
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=1e-4),
    "adagrad": partial(torch.optim.Adagrad, lr=1e-2),
}


@pytest.mark.parametrize("sparsity", (0.0, 0.6, 0.95))
@pytest.mark.parametrize("name", LAYERS)
def test_a_packed_layer_has_the_bits_of_one_that_skips(name, sparsity):
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
def test_a_training_of_packed_layers_has_the_bits_of_one_under_masks(name):
    model, algorithm = masked_network()
    packed = copy.deepcopy(model)
    assert pack(packed) == [f"{i}.weight" for i in (0, 3, 5, 6)]
    optimizer, own = (OPTIMIZERS[name](m.parameters()) for m in (model, packed))
    algorithm.apply(optimizer)
    train(compile(model, always()), optimizer, range(8))
    train(packed, own, range(8))
    # Torch's fused kernels round the last numbers of a tensor otherwise than those before them.
    close = {"rtol": 1e-5, "atol": 1e-7} if name == "fused" else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(packed.state_dict(), model.state_dict(), **close)
    for i in (0, 3, 5, 6):
        states = own.state[packed[i].values]
        for key, state in optimizer.state[model[i].weight].items():
            kept = state[packed[i].mask] if state.numel() > 1 else state
            torch.testing.assert_close(states[key], kept, **close)


def test_a_dynamic_algorithm_is_detached_first():
    model = network()
    algorithm = sl.RigL(0.8, update={"freq": 2}, drop_fraction=0.3, seed=0)
    optimizer = driven(algorithm, model, momentum=0.9)
    train(model, optimizer, range(5))
    masks = {name: tensor.clone() for name, tensor in model.named_buffers()}
    with pytest.raises(ValueError, match="trains '0.weight'.*pack comes before the optimizer"):
        pack(model)
    algorithm.detach()
    pack(model)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), range(5, 9))
    found = model.state_dict()
    assert all(torch.equal(found[name], mask) for name, mask in masks.items())
    assert not any(found[f"{i}.weight"][~masks[f"{i}.weight_mask"]].any() for i in (0, 3, 5, 6))


@pytest.mark.parametrize("autocast", (False, True))
def test_other_precisions_have_the_bits_of_a_twin(autocast):
    model = masked_network()[0][3:].to(torch.float32 if autocast else torch.bfloat16)
    source = torch.randn(16, 8 * 36).to(model[0].weight.dtype)
    twin, packed = compile(copy.deepcopy(model), always()), copy.deepcopy(model)
    pack(packed)
    for run in (twin, packed):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            run(source).float().square().mean().backward()
    assert torch.equal(packed[0].values.grad, twin[0].weight.grad[twin[0].weight_mask])


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


def test_copies_stand_alone():
    model, _ = masked_network()
    pack(model)
    expected = model(images(0))
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(again(images(0)), expected)
        with torch.no_grad():
            again[3].values.zero_()
    assert torch.equal(model(images(0)), expected)
    twin = compile(model)
    assert torch.equal(twin(images(0)), expected)


def test_a_language_model_is_packed_trained_and_saved(tmp_path):
    model = tiny_models.gpt2(n_layer=2, bos_token_id=0, eos_token_id=0).eval()
    sl.Group({"*.h.*": sl.Static(0.8, seed=0)}).apply(model)
    tokens = torch.randint(11, (2, 16))
    expected = model(input_ids=tokens).logits
    names = pack(model)
    assert len(names) == 8 and names[0] == "transformer.h.0.attn.c_attn.weight"
    torch.testing.assert_close(model(input_ids=tokens).logits, expected)
    optimizer = torch.optim.AdamW(model.parameters())
    descend(optimizer, model(input_ids=tokens, labels=tokens).loss)
    expected = model(input_ids=tokens).logits
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    torch.testing.assert_close(again(input_ids=tokens).logits, expected)


SOURCE = torch.randn(5, 32, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("skips", [True, False])
def test_packed_layers_count_as_what_they_were(skips, monkeypatch):
    if skips and kernels.unavailable() is not None:
        pytest.skip("no kernels here")

    def counted(model):
        with Ledger() as ledger:
            model(images(0)).square().mean().backward()
        return ledger.executed_flops, ledger.dense_flops

    model, _ = masked_network()
    expected = counted(compile(model, always()) if skips else model)
    model, _ = masked_network()
    layers = count(model, images(0)).layers
    pack(model, least_sparsity=0.5)
    if not skips:
        monkeypatch.setattr(kernels, "unavailable", lambda: "none here")
    assert counted(model) == expected
    found = [(layer.weight_name, layer.dense_flops) for layer in count(model, images(0)).layers]
    assert found == [(layer.weight_name, layer.dense_flops) for layer in layers]


@pytest.mark.parametrize(
    ("change", "message"),
    (
        (lambda state: {"0.weight_mask": ~state["0.weight_mask"]}, "'0.weight_mask'"),
        (lambda state: {"0.weight": state["0.weight"][:5]}, r"'0.weight'.*\(5, 32\)"),
        (lambda state: {"0.weight": torch.ones(24, 32)}, "'0.weight' has weights where"),
        (lambda _: {"0.bias": None}, "Missing key"),
        (lambda _: {"0.weight": None}, "Missing key"),
        (lambda _: {"0.weight_mask": None}, 'Missing key.*"0.weight_mask"'),
        (lambda _: {"0.bias": torch.ones(5)}, "size mismatch for 0.bias"),
        (lambda _: {"0.values": torch.ones(5)}, 'Unexpected key.*"0.values"'),
    ),
)
def test_a_state_dict_that_does_not_fit_is_refused(change, message):
    model = masked_model()
    pack(model)
    good = copy.deepcopy(model.state_dict())
    state = {key: value for key, value in (good | change(good)).items() if value is not None}
    with pytest.raises(RuntimeError, match=message):
        model.load_state_dict(state)
    doubled = {k: v.double() if v.is_floating_point() else v for k, v in good.items()}
    model.load_state_dict(doubled, assign=True)
    assert model[0].values.dtype is model[0].bias.dtype is torch.float64


def test_layers_that_cannot_be_packed_stay():
    def masked(layer, sparsity=0.9):
        add_mask(layer, sparsity)
        return layer

    tied, parametrized, scaled, pruned, patched, twice = tied_layers(), *(
        masked(nn.Linear(9, 9)) for _ in range(5)
    )  # fmt: skip
    masked(tied[0])
    parametrize.register_parametrization(parametrized, "weight", nn.Identity())
    scaled.register_parameter("scale", nn.Parameter(torch.ones(1)))
    prune.l1_unstructured(pruned, "bias", amount=0.5)
    patched.forward = lambda source: source
    grouped, thin = masked(nn.Conv2d(4, 4, 3, groups=2)), masked(nn.Linear(9, 9), 0.3)
    stay = [tied, parametrized, scaled, pruned, patched, twice, twice, grouped, nn.Linear(9, 9)]
    model = nn.ModuleList([thin, *stay])
    assert pack(model) == []
    assert pack(model, least_sparsity=0.2) == ["0.weight"]


def test_torch_transforms_packed_layers_or_says_why_not():
    model = masked_model()
    reference = copy.deepcopy(model)
    pack(model)
    grad = torch.func.grad(lambda source: model(source).square().sum())(SOURCE)
    expected = torch.func.grad(lambda source: reference(source).square().sum())(SOURCE)
    torch.testing.assert_close(grad, expected)
    with pytest.raises(RuntimeError, match="one gradient at a time"):
        torch.autograd.functional.jacobian(model, SOURCE.clone(), vectorize=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.functional.hvp(lambda x: model(x).square().sum(), SOURCE, SOURCE)
    torch._dynamo.reset()
    assert torch.equal(torch.compile(model, backend="aot_eager")(SOURCE), model(SOURCE))


def test_the_rest_of_the_library_knows_packed_layers():
    model, _ = masked_network()
    pack(model)
    assert model[3].in_features == 288 and model[0].kernel_size == (3, 3) and model[5].nf == 48
    assert not hasattr(model[3], "out_channels") and sl.is_sparse(model)
    for change in (sl.finalize, sl.densify, sl.checkpoint.export_dense, sl.checkpoint.masks_of):
        with pytest.raises(ValueError, match="layer '0' is packed; load"):
            change(model)
    for write in (model[0].reset_parameters, lambda: setattr(model[0], "weight", nn.Parameter())):
        with pytest.raises(AttributeError, match="a packed layer"):
            write()
    with pytest.warns(UserWarning):
        sl.Static(0.5, seed=0).apply(model)
    assert not any("values" in name for name, _ in model.named_buffers())


def hooked(model):
    model[2].weight.register_hook(lambda _: None)
    return model


REFUSED = [
    (lambda: pack([masked_model()]), TypeError, "Module, not list"),
    (lambda: pack(masked_model()[0]), ValueError, "the module that holds this"),
    (lambda: pack(masked_model(), least_sparsity=2), ValueError, r"least_sparsity.*\[0, 1\].*2"),
    (lambda: pack(compile(masked_model())), ValueError, "compile made of it"),
    (lambda: pack(masked_model().to("meta")), ValueError, "meta device"),
    (lambda: pack(hooked(masked_model())), ValueError, "'2.weight' has hooks"),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_what_cannot_be_packed_is_said(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_twins_are_made_afterwards_and_nothing_is_packed_under_inference_mode():
    model = masked_model()
    twin = compile(model)
    with torch.inference_mode(), pytest.raises(ValueError, match="inference_mode"):
        pack(model)
    assert pack(model) == ["0.weight", "2.weight"]
    with pytest.raises(RuntimeError, match="layer '0' was packed after the model was compiled"):
        twin(SOURCE)
