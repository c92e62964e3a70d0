"""Exports, imports and smaller models: every form says the same, and dense models are dense."""

import copy
import math
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import sparse_lib as sl
from sparse_lib import checkpoint
from sparse_lib.masks.makers import make_mask_topk_sparsity
from tests.cases import descend, driven, fit, same

INPUTS = (torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8),)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
    ).eval()


def masked_network() -> nn.Sequential:
    model = network()
    for index in (0, 4):
        mask = make_mask_topk_sparsity(torch.rand_like(model[index].weight), 0.75)
        model[index].register_buffer("weight_mask", mask)
        model[index].weight.data.masked_fill_(~mask, 0)
    model[4].weight.data[model[4].weight_mask.nonzero()[0].unbind()] = 0.0  # a present zero
    return model


def test_finalize_leaves_the_dense_model_or_part():
    model, dense = masked_network(), network()
    sl.Group({"[04].weight": sl.Static(0.1)}).apply(model)  # keeps the masks
    expected, masks = model(*INPUTS), checkpoint.masks_of(model)
    assert list(masks) == ["0.weight", "4.weight"] and checkpoint.is_sparse(model)
    assert checkpoint.finalize(model).keys() == masks.keys()
    assert torch.equal(model(*INPUTS), expected)
    assert model.state_dict().keys() == dense.state_dict().keys()
    assert not checkpoint.is_sparse(model) and checkpoint.finalize(model) == {}
    assert not model[0]._forward_pre_hooks and not model[0]._load_state_dict_post_hooks
    assert vars(model[0]).keys() == vars(dense[0]).keys()
    sl.Static(0.9).apply(model)
    assert int(model[0].weight_mask.sum()) == 11
    model = network()
    algorithm = sl.Static(sparsity=0.5)
    optimizer = driven(algorithm, model)
    checkpoint.finalize(model[4])
    assert set(checkpoint.masks_of(model)) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert set(algorithm.sparse_params) == set(checkpoint.masks_of(model))
    fit(model, optimizer, INPUTS, torch.sum)
    assert int(model[4].weight.count_nonzero()) > 720  # half of it, until then
    assert not model[0].weight[~model[0].weight_mask].any()


@pytest.mark.parametrize("grouped", [False, True])
def test_a_densified_run_is_a_dense_run_from_the_same_point(grouped):
    def go(model, optimizer):
        fit(model, optimizer, 3 * INPUTS, torch.sum)

    model = network().train()
    algorithm = sl.RigL(sparsity=0.5, update=1)
    algorithm = sl.Group({"*weight": algorithm}) if grouped else algorithm
    optimizer = driven(algorithm, model, torch.optim.AdamW, 0.01)
    go(model, optimizer)
    dense = network().train()
    dense.load_state_dict(checkpoint.export_dense(model))
    dense_optimizer = torch.optim.AdamW(dense.parameters(), lr=0.01)
    dense_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert checkpoint.densify(model) is model
    assert algorithm.num_sparse_params == 0 and not optimizer._optimizer_step_post_hooks
    go(model, optimizer)  # one call, and the optimizer is kept
    go(dense, dense_optimizer)
    assert same({**model.state_dict()}, {**dense.state_dict()})
    assert int(model[4].weight.count_nonzero()) > 720 and int(model[0].weight.count_nonzero()) > 54


def tied():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    model[1].weight = model[0].weight
    return model


def own_module():
    """A model that calls a part of itself ``module``."""
    torch.manual_seed(0)
    return nn.Sequential(OrderedDict(first=nn.Linear(6, 6), module=nn.Linear(6, 6)))


@pytest.mark.parametrize("layout", ["dense", "masks", "nan", "bitmask"])
@pytest.mark.parametrize("wrap", [lambda model: model, nn.DataParallel, torch.compile])
@pytest.mark.parametrize("make", [tied, own_module, network])
def test_tied_and_wrapped_models_go_out_and_come_back(make, layout, wrap, tmp_path):
    model = make()
    inputs = INPUTS[0] if make is network else torch.linspace(-1, 1, 12).reshape(2, 6)
    sl.Static(sparsity=0.5, seed=1).apply(model)
    before = copy.deepcopy(model.state_dict())
    path = checkpoint.export_safetensors(wrap(model), tmp_path / "tied", layout=layout)
    weights, masks = checkpoint.read_safetensors(path)
    assert same(weights, {name: before[name] for name in make().state_dict()})
    assert same(masks, {} if layout == "dense" else checkpoint.masks_of(model))
    assert same({**before}, {**model.state_dict()})
    target = make()
    state = weights | {f"{name}_mask": mask for name, mask in masks.items()}
    checkpoint.load_checkpoint(target, state)
    assert torch.equal(target(inputs), model(inputs))
    assert make is not tied or target[1].weight is target[0].weight


@pytest.mark.parametrize(
    ("dtype", "bitmask", "masks"), [(torch.float32, 0.53, 1.03), (torch.bfloat16, 0.56, 1.06)]
)
def test_files_are_as_small_as_values_and_bits(dtype, bitmask, masks, tmp_path):
    model = nn.Linear(1024, 1024, bias=False).to(dtype)
    sl.Static(sparsity=0.5, seed=0).apply(model)
    dense = 1024 * 1024 * dtype.itemsize
    for layout, share in (("dense", 1.0), ("bitmask", bitmask), ("masks", masks)):
        path = checkpoint.export_safetensors(model, tmp_path / layout, layout=layout)
        assert path.stat().st_size / dense == pytest.approx(share, abs=0.005)
        assert torch.equal(checkpoint.read_safetensors(path)[0]["weight"], model.weight)


def peer_forms(model):
    """The same model as each relative would have saved it."""
    masks = {name: mask.clone() for name, mask in checkpoint.masks_of(model).items()}
    dense = checkpoint.export_dense(model)
    buffers = dict(model.state_dict())
    in_optimizer = {"sparsity": {"state": {name: {"mask": m} for name, m in masks.items()}}}
    pruned = {n: t for n, t in dense.items() if n not in masks}
    for name, mask in masks.items():
        pruned[f"{name}_orig"] = dense[name].masked_fill(~mask, 7.0)
        pruned[f"{name}_mask"] = mask.float()
    return {
        "own": buffers,
        "2.2": {"model": buffers, "optimizer": {"state": {}}},
        "2.1": {"model": dense, "optimizer": in_optimizer},
        "sideband": {"model": checkpoint.export_nan(model)},
        "torch.prune": pruned,
        "wrapped": {f"module.{name}": tensor for name, tensor in buffers.items()},
        "compiled": {f"_orig_mod.{name}": tensor for name, tensor in buffers.items()},
    }


@pytest.mark.parametrize("form", peer_forms(masked_network()))
@pytest.mark.parametrize("wrapped", [False, True])
def test_peer_checkpoints_load(form, wrapped):
    source = masked_network()
    target = network()
    target[0].weight.data.fill_(3.0)
    checkpoint.load_checkpoint(
        nn.DataParallel(target) if wrapped else target, peer_forms(source)[form]
    )
    assert torch.equal(target(*INPUTS), source(*INPUTS))
    # An algorithm applied afterwards keeps these masks instead of drawing its own.
    sl.Static(sparsity=0.1).apply(target)
    masks = checkpoint.masks_of(target)
    assert all(torch.equal(masks[name], m) for name, m in checkpoint.masks_of(source).items())


def test_dense_checkpoint_into_a_sparse_model():
    target = masked_network()
    with pytest.raises(ValueError, match=r"which weights are masked: \['0.weight', '4.weight'\]"):
        checkpoint.load_checkpoint(target, network().state_dict())
    checkpoint.load_checkpoint(target, network().state_dict(), strict=False)
    assert all(mask.all() for mask in checkpoint.masks_of(target).values())
    assert torch.equal(target(*INPUTS), network()(*INPUTS))


def pruned_network():
    model = network()
    pairs = [(model[0], "weight"), (model[0], "bias")]
    prune.l1_unstructured(model[4], "weight", amount=0.5)
    prune.ln_structured(model[4], "weight", amount=2, n=2, dim=0)
    prune.global_unstructured(pairs, prune.L1Unstructured, amount=9)
    return model, [*pairs, (model[4], "weight")]


def test_import_of_repeated_and_structured_pruning():
    (model, _), (truth, pairs) = pruned_network(), pruned_network()
    for module, name in pairs:
        prune.remove(module, name)
    original = model[4].weight_orig
    assert checkpoint.import_torch_prune(model) and not prune.is_pruned(model)
    assert model[4].weight is original and checkpoint.import_torch_prune(model) == {}
    checkpoint.finalize(model)  # the same as torch's own remove
    assert same({**model.state_dict()}, {**truth.state_dict()})


@pytest.mark.parametrize("suffix", ["", "_mask"])
def test_masks_alone_are_put_on_a_model_by_name(suffix):
    masks, model = checkpoint.masks_of(masked_network()), network()
    dense = copy.deepcopy(model.state_dict())
    given = {f"{name}{suffix}": mask.float() for name, mask in masks.items()}
    assert checkpoint.load_masks(nn.DataParallel(model), given).keys() == masks.keys()
    for name, mask in masks.items():
        assert torch.equal(model.get_buffer(f"{name}_mask"), mask)
        assert torch.equal(model.get_parameter(name), dense[name] * mask)
    sl.Static(sparsity=0.1).apply(model)  # keeps them
    assert all(torch.equal(checkpoint.masks_of(model)[name], mask) for name, mask in masks.items())
    twin = copy.deepcopy(model)
    checkpoint.load_masks(twin, {"4.weight": torch.ones_like(masks["4.weight"])})
    assert twin.state_dict()["4.weight_mask"].all()  # not taken back from the original
    for wrong, words in (
        ({"4.wieght": given[f"4.weight{suffix}"]}, "no weight '4.wieght'; did you mean '4.weight'"),
        ({"4.weight": torch.ones(3)}, "mask of '4.weight' must be a tensor of shape"),
        ({"4.bias": torch.full((10,), 0.5)}, "the mask of '4.bias' has values besides 0 and 1"),
    ):
        with pytest.raises(ValueError, match=words):
            checkpoint.load_masks(network(), wrong)
    with pytest.raises(ValueError, match="load_masks takes masks alone" if suffix else "lacks"):
        checkpoint.load_checkpoint(network(), given)


@pytest.mark.parametrize("steps", [10, 20])
def test_finalize_tells_of_a_target_that_was_not_reached(steps, recwarn):
    layer = nn.Linear(10, 10)
    level = {"type": "polynomial", "init": 0.0, "final": 0.8, "start": 0, "stop": 20, "power": 1}
    optimizer = driven(sl.GMP(level, update=5), layer, torch.optim.SGD, 0.1)
    for _ in range(steps):
        descend(optimizer, layer(torch.ones(1, 10)).sum())
    sl.finalize(layer)
    told = [str(w.message) for w in recwarn if "goes on to 0.80" in str(w.message)]
    assert [("sparsity of 0.40" in text, "step 10 of 10" in text) for text in told] == (
        [(True, True)] if steps == 10 else []
    )


def test_finalize_selects_where_a_product_would_spread_nan_and_tells_of_what_it_drops():
    model = masked_network()
    model[0].weight.data.masked_fill_(~model[0].weight_mask, math.nan)
    model[4].weight.data.fill_(1.0)
    with pytest.warns(UserWarning, match="1 parameters, such as '4.weight', had other values"):
        checkpoint.finalize(model)
    assert model[0].weight.isfinite().all() and int(model[4].weight.sum()) == 360


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *[
            (lambda call=call: call(3), "torch module, not int")
            for call in (sl.finalize, sl.densify, sl.is_sparse, checkpoint.export_bitmask)
        ],
        (lambda: sl.load_checkpoint(3, {}), "torch module, not int"),
        *[
            (lambda state=state: sl.load_checkpoint(network(), state), "must be a mapping")
            for state in (None, 3, [1, 2], "text", torch.ones(2), {"model": 3})
        ],
        (
            lambda: checkpoint.export_safetensors(masked_network(), "x", layout="csc"),
            "'csc'.*bitmask, dense, masks, nan",
        ),
    ],
)
def test_what_is_no_model_or_checkpoint_is_refused(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def network_with_dead_units():
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
    model, images = network_with_dead_units(), torch.randn(5, 3, 12, 12)
    small = checkpoint.shrink(model)
    torch.testing.assert_close(small(images), model(images), rtol=1e-5, atol=1e-5)
    assert sizes(small) == [(5, 3, 3, 3), (5, 5, 3, 3), (7, 80), (4, 7)]
    assert small[1].num_features == 5 and small[9].in_features == 7
    assert sizes(model)[0] == (8, 3, 3, 3)  # the model is as it was
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4))
    sl.configure(sl.Static(0.98, "topk")).apply(model)
    small, data = checkpoint.shrink(model), torch.randn(3, 16)
    assert small[0].out_features < 64 and not sl.is_sparse(small) and sl.is_sparse(model)
    torch.testing.assert_close(small(data), model(data))


def test_constants_stay_where_padding_reads_them_and_layers_empty_in_turn():
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3, padding=1))
    with torch.no_grad():
        model[0].weight[:2] = 0
        model[0].bias.copy_(torch.tensor([1.0, -1.0, 0.0, 0.0]))  # after the ReLU 1 and 0
    small, images = checkpoint.shrink(model), torch.randn(1, 2, 8, 8)
    assert sizes(small) == [(3, 2, 3, 3), (2, 3, 3, 3)]
    torch.testing.assert_close(small(images), model(images), rtol=1e-5, atol=1e-5)
    # Nobody reads the second unit of the middle layer, which alone reads the first's second.
    model = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(3)))
    with torch.no_grad():
        for layer, weight in zip(model, ([[1, 1], [1, 1]], [[1, 0], [1, 1]], [[1, 0], [1, 0]])):
            layer.weight.copy_(torch.tensor(weight))
    assert sizes(checkpoint.shrink(model)) == [(1, 2), (1, 1), (2, 1)]


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
        checkpoint.shrink(nn.Sequential(*modules))
    layer = nn.Linear(4, 4)
    with pytest.raises(ValueError, match="'0' and '1' are one module"):
        checkpoint.shrink(nn.Sequential(layer, layer))
    norm = nn.BatchNorm1d(4)
    with pytest.raises(ValueError, match="'1' and '3' are one module"):
        checkpoint.shrink(nn.Sequential(layer, norm, nn.Linear(4, 4), norm))
    with pytest.raises(TypeError, match="not Transformer; give it a part"):
        checkpoint.shrink(nn.Transformer(8, 2, 1, 1, 8))


def test_a_users_buffer_of_another_shape_is_no_mask():
    model = network()
    model[4].register_buffer("weight_mask", torch.ones(3) > 0)
    assert not sl.is_sparse(model) and checkpoint.masks_of(model) == {}
