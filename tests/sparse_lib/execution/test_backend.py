"""Compiled twins against masked dense execution, layer by layer and as whole models."""

import copy
import io
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import sparse_lib as sl
from sparse_lib.execution import kernels
from sparse_lib.execution.backend import backend, compile
from sparse_lib.execution.costs import COSTS_VARIABLE, Costs, worth_skipping
from sparse_lib.flops.ledger import Ledger

TOLERANCE = 1e-5


def add_mask(layer, sparsity, seed=0):
    mask = torch.rand(layer.weight.shape, generator=torch.Generator().manual_seed(seed)) >= sparsity
    layer.register_buffer("weight_mask", mask)
    layer.weight.data.mul_(mask)


def always(name="skip"):
    """Layers of any size skip."""
    return backend(name, strict=True, crossover=0.0)


def relative_error(result, expected):
    return ((result - expected).abs().max() / expected.abs().max().clamp(min=1e-20)).item()


def conv1d(inputs, outputs):
    from transformers.pytorch_utils import Conv1D

    return Conv1D(outputs, inputs)


LAYERS = {
    "linear": (lambda: nn.Linear(33, 21), (3, 17, 33)),
    "linear without bias": (lambda: nn.Linear(33, 21, bias=False), (5, 33)),
    "linear on one vector": (lambda: nn.Linear(33, 21), (33,)),
    "linear on nothing": (lambda: nn.Linear(33, 21), (0, 33)),
    "conv1d": (lambda: conv1d(33, 21), (2, 9, 33)),
    "1x1": (lambda: nn.Conv2d(12, 10, 1), (2, 12, 5, 7)),
    "1x1 stride 2": (lambda: nn.Conv2d(12, 10, 1, stride=2, bias=False), (2, 12, 5, 7)),
    "3x3": (lambda: nn.Conv2d(12, 10, 3, padding=1), (3, 12, 6, 7)),
    "3x3 unbatched": (lambda: nn.Conv2d(12, 10, 3, stride=2, padding=1), (12, 6, 7)),
}


def step(module, source, gradient=None):
    """Output and all gradients of one pass."""
    source = source.clone().requires_grad_()
    module.zero_grad()
    target = module(source)
    target.backward(torch.ones_like(target) if gradient is None else gradient)
    return [target.detach(), source.grad, *(p.grad for p in module.parameters())]


@pytest.mark.parametrize("sparsity", (0.0, 0.1, 0.6, 0.95, 1.0))
@pytest.mark.parametrize("name", LAYERS)
def test_layers_equal_masked_dense(name, sparsity):
    make, shape = LAYERS[name]
    layer, source = make(), torch.randn(shape)
    add_mask(layer, sparsity)
    reference = copy.deepcopy(layer)
    expected = step(reference, source)
    expected[2] = expected[2] * layer.weight_mask
    layer.weight.data[~layer.weight_mask] = torch.nan  # it never leaks
    for options in ({"name": "skip", "strict": True}, {"name": "dense"}):
        result = step(compile(layer, backend(crossover=0.0, **options)), source)
        for value, truth in zip(result, expected, strict=True):
            assert value.shape == truth.shape
            assert value.numel() == 0 or relative_error(value, truth) < TOLERANCE
        assert not layer.weight.grad[~layer.weight_mask].any()


def test_non_contiguous_inputs_gradients_and_weights():
    torch.manual_seed(1)
    layer = nn.Linear(20, 30)
    layer.weight = nn.Parameter(torch.randn(20, 30).T)
    add_mask(layer, 0.7)
    source = torch.randn(20, 8, 5).permute(2, 1, 0)
    gradient = torch.randn(30, 1, 5).permute(2, 1, 0).expand(5, 8, 30)
    expected = step(copy.deepcopy(layer), source, gradient)
    expected[2] = expected[2] * layer.weight_mask
    for value, truth in zip(
        step(compile(layer, always()), source, gradient), expected, strict=True
    ):
        assert relative_error(value, truth) < TOLERANCE


def test_backward_uses_the_mask_of_its_forward_and_leaves_out_frozen_parts():
    layer = nn.Linear(8, 8)
    add_mask(layer, 0.5)
    twin, source = compile(layer, always()), torch.randn(4, 8)
    layer.weight.requires_grad_(False)
    twin(source.requires_grad_()).sum().backward()
    assert layer.weight.grad is None
    expected = (layer.weight * layer.weight_mask).sum(0).expand(4, 8)
    assert relative_error(source.grad, expected) < TOLERANCE
    layer.weight.requires_grad_(True)
    twin(source.detach()).sum().backward()
    assert layer.weight.grad is not None
    layer = nn.Linear(6, 6)
    add_mask(layer, 0.5)
    before = layer.weight_mask.clone()
    target = compile(layer, always())(torch.ones(1, 6))
    layer.weight_mask.logical_not_()
    target.sum().backward()
    assert torch.equal(layer.weight.grad, before.float())


def test_worth_skipping_grows_with_sparsity_size_and_the_speed_of_bfloat16():
    costs = Costs(1.0, 1.0, 1.0, half=3.0)
    assert worth_skipping(512, 512, 0.5, costs=costs)
    assert not worth_skipping(512, 512, 0.6, half=True, costs=costs)
    assert worth_skipping(512, 512, 0.7, half=True, costs=costs)
    assert worth_skipping(512, 512, 0.6, half=True, multiplies_half=True, costs=costs)
    assert not worth_skipping(512, 512, 0.5, half=True, multiplies_half=True, costs=costs)
    levels, costs = [i / 100 for i in range(101)], Costs(1.4, 12, 1000)
    first = []
    for width in (32, 64, 128, 512, 4096):
        worth = [worth_skipping(width, width, sparsity, costs=costs) for sparsity in levels]
        assert worth == sorted(worth)
        first.append(levels[worth.index(True)] if any(worth) else 1.0)
    assert first == sorted(first, reverse=True) and first[0] == 1.0
    assert 0.2 < first[-1] < first[-2] < 0.45


@pytest.mark.parametrize(
    ("lanes", "processor", "level"),
    [
        (16, ("AuthenticAMD", 25), 0.33),
        (16, ("GenuineIntel", 6), 0.41),
        (8, ("GenuineIntel", 6), 0.33),
        (8, ("AuthenticAMD", 26), 0.33),
        (4, ("", 0), 0.77),
    ],
)
def test_the_processor_decides_what_is_worth_skipping(lanes, processor, level, monkeypatch):
    monkeypatch.setattr(kernels, "num_lanes", lambda: lanes)
    monkeypatch.setattr(kernels, "processor", lambda: processor)
    assert not worth_skipping(512, 512, level - 0.02)
    assert worth_skipping(512, 512, level)
    # Whatever it is, an argument decides first, and the environment before the processor.
    monkeypatch.setenv(COSTS_VARIABLE, "10, 12, 1000")
    assert not worth_skipping(512, 512, 0.89)
    assert worth_skipping(512, 512, 0.91)
    assert worth_skipping(512, 512, 0.1, costs=Costs(1, 1, 1))


def masked_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 16))
    add_mask(model[0], 0.8)
    add_mask(model[2], 0.8)
    return model


TRACES = {
    "make_fx": lambda model, x: make_fx(model)(x),
    "make_fx before dispatch": lambda model, x: make_fx(model, pre_dispatch=True)(x),
    "symbolic_trace": lambda model, _: torch.fx.symbolic_trace(model),
    "jit.trace": lambda model, x: torch.jit.load(
        io.BytesIO(torch.jit.trace(model, x).save_to_buffer())
    ),
    "vmap": lambda model, _: torch.func.vmap(model),
    "export": lambda model, x: torch.export.export(model, (x,)).module(),
    "compile": lambda model, _: torch.compile(model, backend="aot_eager", fullgraph=True),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("execution", ("skip", "dense"))
@pytest.mark.parametrize("name", TRACES)
def test_traces_are_right_for_inputs_they_have_not_seen(name, execution):
    model = masked_model()
    first, second = torch.randn(5, 32), torch.randn(5, 32)
    expected = model(second)
    result = TRACES[name](compile(model, always(execution)), first)(second)
    assert relative_error(result, expected) < TOLERANCE


def tied_layers():
    model = nn.Sequential(nn.Linear(40, 40, bias=False), nn.ReLU(), nn.Linear(40, 40, bias=False))
    model[2].weight = model[0].weight
    return model


def test_masks_may_come_late_and_change():
    layer = nn.Linear(16, 16)
    twin, source = compile(layer, always()), torch.randn(4, 16)
    assert torch.equal(twin(source), layer(source))
    for seed, mode in enumerate((torch.enable_grad, torch.no_grad, torch.inference_mode)):
        add_mask(layer, 0.5, seed)
        layer.weight.data.normal_()
        expected = source @ (layer.weight * layer.weight_mask).T + layer.bias
        with mode():
            assert relative_error(twin(source), expected) < TOLERANCE
    layer.weight_mask[0] = False
    assert torch.equal(twin(source)[:, 0], layer.bias[0].expand(4))
    layer.weight_mask.data[1] = False  # unseen by the version counter
    assert torch.equal(twin(source)[:, 1], layer.bias[1].expand(4))


def test_twin_and_original_share_everything():
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8))
    model.tied = model[0]
    twin = compile(model)
    assert isinstance(twin[0], nn.Linear) and twin.tied is twin[0]
    assert all(a is b for a, b in zip(twin.parameters(), model.parameters(), strict=True))
    twin.eval()
    assert not model.training and not model[1].training
    add_mask(model[0], 0.9)
    assert twin[0].weight_mask is model[0].weight_mask
    assert list(twin.state_dict()) == list(model.state_dict())
    assert twin.double()[2] and model[2].weight.dtype == torch.float64


class Named(torch.Tensor):
    """A subclass that the kernels do not know."""


IMAGES = (2, 4, 6, 6)
DENSE = {
    "groups": (nn.Conv2d(4, 4, 3, groups=2), torch.randn(IMAGES), "groups=2"),
    "padding": (nn.Conv2d(4, 4, 3, padding="same"), torch.randn(IMAGES), "padding='same'"),
    "border": (
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), torch.randn(IMAGES), "circular"
    ),
    "float64": (nn.Linear(5, 4).double(), torch.randn(3, 5).double(), "float64"),
    "subclass": (nn.Linear(5, 4), torch.randn(3, 5).as_subclass(Named), "Named"),
    "conv1d": (nn.Conv1d(4, 6, 3), torch.randn(2, 4, 9), "Conv1d"),
    "transposed": (nn.ConvTranspose2d(4, 6, 3), torch.randn(IMAGES), "ConvTranspose2d"),
    "embedding": (nn.Embedding(4, 6), torch.ones(2, dtype=torch.long), "Embedding"),
}  # fmt: skip


@pytest.mark.parametrize("masked", ("before", "after"))
@pytest.mark.parametrize("name", DENSE)
def test_what_the_kernels_cannot_run_is_dense_and_named_once(name, masked):
    layer, source, reason = DENSE[name]
    model = nn.Sequential(copy.deepcopy(layer))
    if masked == "before":
        add_mask(model[0], 0.5)
    with pytest.warns(RuntimeWarning, match=f"layer '0' runs masked dense: .*{reason}"):
        twin = compile(model)
        add_mask(model[0], 0.5)
        twin(source)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = twin(source)
        assert type(result) is type(source) or name == "embedding"
        assert result.equal(model(source))
    with pytest.raises(ValueError, match=f"layer '0' runs masked dense: .*{reason}"):
        compile(model, always())(source)


def test_autocast_to_float16_and_a_missing_compiler_run_dense(monkeypatch):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    for layer in model:
        add_mask(layer, 0.5)
    with pytest.warns(RuntimeWarning, match="autocast"), torch.autocast("cpu", torch.float16):
        assert compile(model)(torch.randn(2, 8)).dtype == torch.float16
    monkeypatch.setattr(kernels, "unavailable", lambda: "no C compiler was found")
    with pytest.warns(RuntimeWarning, match="no C compiler") as notices:
        step(compile(model), torch.randn(2, 8))
    assert len(notices) == 1
    with pytest.raises(ValueError, match="no C compiler"):
        compile(model, backend("skip", strict=True))


def in_bfloat16(name, layer, source, *, autocast):
    """Output and gradients of a training step, and whether it left work out."""
    layer.zero_grad()
    source = source.detach().requires_grad_()
    twin = compile(layer, always(name))
    with Ledger() as ledger:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            target = twin(source)
        target.square().mean().backward()
    assert (ledger.skipped_flops > 0) == (name == "skip")
    return [target, source.grad, layer.weight.grad, layer.bias.grad]


@pytest.mark.parametrize("autocast", (True, False))
@pytest.mark.parametrize(
    ("layer", "shape"),
    ((nn.Linear(64, 48), (9, 64)), (nn.Conv2d(6, 8, 3, padding=1), (2, 6, 5, 5))),
    ids=("linear", "conv"),
)
def test_bfloat16_is_as_near_to_the_truth_as_dense_bfloat16(layer, shape, autocast):
    torch.manual_seed(3)
    layer = copy.deepcopy(layer)
    add_mask(layer, 0.8)
    source = torch.randn(shape).bfloat16()
    layer = layer.bfloat16().float() if autocast else layer.bfloat16()
    truth = in_bfloat16("dense", copy.deepcopy(layer).double(), source.double(), autocast=False)
    dense = in_bfloat16("dense", layer, source, autocast=autocast)
    skip = in_bfloat16("skip", layer, source, autocast=autocast)
    for own, other, exact in zip(skip, dense, truth, strict=True):
        assert own.dtype is other.dtype and own.shape == other.shape
        error = relative_error(own.double(), exact)
        assert error < 0.02 and error < 2 * relative_error(other.double(), exact) + 1e-4
    assert not skip[2][~layer.weight_mask].any()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: backend("fast"), ValueError, "backend.*'dense' or 'skip'.*'fast'"),
        (lambda: backend("skip", crossover=2), ValueError, r"crossover.*\[0, 1\].*2"),
        (lambda: backend("skip", crossover="a"), TypeError, "crossover.*'a'"),
        (lambda: compile(nn.Linear(1, 1), 3), TypeError, "backend.*int"),
        (lambda: compile(3), TypeError, "model.*int"),
        (lambda: backend("skip", costs=-1), TypeError, "^costs must be "),
        (lambda: backend("skip", strict="no"), TypeError, "^strict must be "),
    ],
)
def test_errors_name_the_key(call, error, message):
    with pytest.raises(error, match=message):
        call()


def skipped(twin, source):
    with Ledger() as ledger:
        twin(source)
    return ledger.skipped_flops > 0


def test_a_layer_decides_by_its_size_sparsity_costs_and_images():
    model = nn.Sequential(nn.Linear(256, 320), nn.Linear(320, 16), nn.Linear(16, 16))
    for layer, sparsity in zip(model, (0.6, 0.1, 0.6), strict=True):
        add_mask(layer, sparsity)
    for costs, skips in (
        (Costs(1.4, 12, 1000), [True, False, False]),
        (Costs(3, 1, 1), [False] * 3),
    ):
        twin = compile(model, backend("skip", strict=True, costs=costs))
        found = [skipped(twin[i], torch.randn(4, model[i].in_features)) for i in range(3)]
        assert found == skips
    convolution = nn.Conv2d(64, 64, 3, padding=1)
    add_mask(convolution, 0.6)
    twin, found = compile(convolution, backend("skip", costs=Costs(1.4, 12, 1000))), []
    for width in (32, 4, 32):  # decides again for images of another size
        found.append(skipped(twin, torch.randn(2, 64, width, width)))
    assert found == [True, False, True]


@pytest.mark.parametrize("text", ["1", "1,2,x", "1,2,0", "1,nan,2", "1,2,3,4,5,6,7", "1,2,inf"])
def test_costs_that_are_no_numbers_are_named(text, monkeypatch):
    monkeypatch.setenv(COSTS_VARIABLE, text)
    with pytest.raises(ValueError, match="SPARSE_LIB_SKIP_COSTS.*three to six numbers"):
        worth_skipping(64, 64, 0.9)


@pytest.mark.parametrize("name", ("linear", "conv1d", "3x3"))
def test_ledger_hears_what_the_kernels_executed(name):
    make, shape = LAYERS[name]
    layer, source = make(), torch.randn(shape)
    add_mask(layer, 0.6)
    with Ledger() as ledger:
        target = step(compile(layer, always()), source)[0]
    channels = {"linear": 21, "conv1d": 21, "3x3": 10}[name]
    tokens = target.numel() // channels
    kept, size = (2 * tokens * int(n) for n in (layer.weight_mask.sum(), layer.weight.numel()))
    parts = ("forward", "input_gradient", "weight_gradient")
    assert ledger.get_flop_counts()["Global"] == {f"skipping {part}": kept for part in parts}
    assert (ledger.dense_flops, ledger.skipped_flops) == (3 * size, 3 * (size - kept))


@pytest.mark.parametrize(
    ("make", "shape", "exchanged"),
    (
        (lambda: nn.Linear(512, 512), (64, 8192), {}),
        (lambda: nn.Linear(8, 8), (), {}),
        (lambda: conv1d(16, 8), (2, 8), {}),
        (lambda: nn.Conv2d(64, 64, 3), (2, 64, 2, 2), {}),
        (lambda: nn.Conv2d(16, 8, 3), (2, 8, 9, 9), {}),
        (lambda: nn.Conv2d(16, 8, 3), (9, 9), {}),
        (lambda: nn.Conv2d(16, 8, 3), (1, 2, 16, 9, 9), {}),
        (lambda: nn.Linear(8, 4), (2, 8), {"weight": nn.Parameter(torch.ones(4, 9))}),
        (lambda: nn.Linear(8, 4), (2, 8), {"bias": nn.Parameter(torch.ones(3))}),
        (lambda: nn.Linear(8, 4), (2, 8), {"weight_mask": torch.ones(3, 8, dtype=torch.bool)}),
        (lambda: nn.Conv2d(8, 4, 3), (2, 8, 6, 6), {"stride": (0, 1)}),
    ),
)
def test_wrong_shapes_of_inputs_raise_the_error_of_torch_and_of_exchanged_parts_one(
    make, shape, exchanged
):
    layer = make()
    add_mask(layer, 0.9)
    for name, value in exchanged.items():
        setattr(layer, name, value)
    source = torch.ones(shape)
    with pytest.raises(RuntimeError) as error:
        compile(layer, always())(source)
    if not exchanged:
        with pytest.raises(RuntimeError) as truth:
            F.linear(source, layer.weight.T) if hasattr(layer, "nf") else layer(source)
        assert str(error.value) == str(truth.value)


@pytest.mark.parametrize("execution", ("skip", "dense"))
@pytest.mark.parametrize("clone", (copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))))
def test_twins_can_be_pickled_and_copied(clone, execution):
    model, source = masked_model(), torch.randn(5, 32)
    twin = compile(model, always(execution))
    expected = twin(source)
    for again in (clone(twin), clone(compile(twin, always(execution)))):
        assert type(again) is type(twin) and type(again[0]) is type(twin[0])
        assert torch.equal(again(source), expected)
        assert again[0].weight is not model[0].weight
        assert again[0].weight_mask is not model[0].weight_mask
    assert torch.equal(clone(twin[:2])(source), twin[:2](source))


@pytest.mark.parametrize("when", ("before", "after"))
def test_a_layer_tied_to_a_masked_one_skips_as_well(when):
    model, source = tied_layers(), torch.randn(40, 40)
    twin = compile(model, always())
    add_mask(model[0], 0.9)
    twin = compile(model, always()) if when == "before" else twin
    with Ledger() as ledger:
        result = twin(source)
        assert ledger.executed_flops == 2 * 2 * 40 * int(model[0].weight_mask.sum())
        result.square().sum().backward()
    gradient = model[0].weight.grad.clone()
    model.zero_grad()
    expected = model(source)
    expected.square().sum().backward()
    assert relative_error(result, expected) < TOLERANCE
    assert relative_error(gradient, model[0].weight.grad * model[0].weight_mask) < TOLERANCE


def masked():
    model = nn.Sequential(
        nn.Linear(256, 256),
        nn.Linear(256, 8),
        nn.Conv1d(8, 8, 3),
        nn.Conv2d(8, 8, 3, groups=2),
        nn.Linear(8, 8),
    )
    names = ["0.weight", "1.weight", "2.weight", "3.weight"]
    sl.configure({"sparsity": 0.9, "param_filter": names}).apply(model)
    return model


def test_each_weight_has_its_reason():
    model, costs = masked(), sl.device.Costs(1.4, 12, 1000)
    found = sl.device.explain(model, sl.device.backend("skip", costs=costs))
    assert [(row.name, row.skips, row.reason) for row in found] == [
        ("0.weight", True, ""),
        ("1.weight", False, "dense is faster for 8 x 256 weights at this sparsity"),
        ("2.weight", False, "its type Conv1d is not supported"),
        ("3.weight", False, "it has groups=2, the kernels need groups=1"),
        ("4.weight", False, "it has no mask"),
    ]
    assert [round(row.sparsity, 1) for row in found] == [0.9, 0.9, 0.9, 0.9, 0.0]
    lines = str(found).splitlines()
    assert lines[0].split() == ["weight", "layer", "sparsity", "runs"]
    assert lines[1].split() == ["0.weight", "Linear", "0.90", "skipping"]
    assert {row.reason for row in sl.device.explain(model[:2], "dense")} == {
        "the backend is 'dense'"
    }


@pytest.mark.parametrize("crossover", [0.5, 0.95])
def test_layers_that_skip_are_those_that_leave_work_out(crossover):
    model = masked()[:2]
    chosen = sl.device.backend("skip", crossover=crossover)
    twin = sl.device.compile(model, chosen)
    for number, row in enumerate(sl.device.explain(twin, chosen)):
        source = torch.ones(4, model[number].in_features)
        assert row.skips == skipped(twin[number], source) == (crossover == 0.5)
    sl.device.pack(model)
    found = [(row.name, row.kind, row.skips) for row in sl.device.explain(model)]
    assert found == [(f"{number}.weight", "Linear", True) for number in (0, 1)]
