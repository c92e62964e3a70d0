"""Compiled twins against masked dense execution, layer by layer and as whole models."""

import copy
import io
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from sparse_lib.algorithms.static import Static
from sparse_lib.execution import kernels
from sparse_lib.execution.backend import backend, compile
from sparse_lib.execution.costs import COSTS_VARIABLE, Costs, Images, default_costs, worth_skipping
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
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    layer, source = make(), torch.randn(shape)
    add_mask(layer, sparsity)
    reference = copy.deepcopy(layer)
    expected = step(reference, source)
    expected[2] = expected[2] * layer.weight_mask
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


@pytest.mark.parametrize("name", ("linear", "conv1d", "3x3"))
@pytest.mark.parametrize("execution", ("skip", "dense"))
def test_dense_gradient_only_when_asked_for(name, execution):
    torch.manual_seed(2)
    make, shape = LAYERS[name]
    layer, source = make(), torch.randn(shape)
    add_mask(layer, 0.8)
    expected = step(copy.deepcopy(layer), source)
    layer.weight._needs_dense_gradient = True
    for value, truth in zip(step(compile(layer, always(execution)), source), expected, strict=True):
        assert relative_error(value, truth) < TOLERANCE
    layer.weight._needs_dense_gradient = False
    step(compile(layer, always(execution)), source)
    assert not layer.weight.grad[~layer.weight_mask].any()


def test_frozen_parts_get_no_gradient():
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


def test_masks_may_come_late_and_change():
    layer = nn.Linear(16, 16)
    twin, source = compile(layer, always()), torch.randn(4, 16)
    assert torch.equal(twin(source), layer(source))
    for seed in range(3):
        add_mask(layer, 0.5, seed)
        layer.weight.data.normal_()
        expected = source @ (layer.weight * layer.weight_mask).T + layer.bias
        assert relative_error(twin(source), expected) < TOLERANCE
    layer.weight_mask[0] = False
    assert torch.equal(twin(source)[:, 0], layer.bias[0].expand(4))
    layer.weight_mask.data[1] = False  # unseen by the version counter
    assert torch.equal(twin(source)[:, 1], layer.bias[1].expand(4))


def test_backward_uses_the_mask_of_its_forward():
    layer = nn.Linear(6, 6)
    add_mask(layer, 0.5)
    before = layer.weight_mask.clone()
    target = compile(layer, always())(torch.ones(1, 6))
    layer.weight_mask.logical_not_()
    target.sum().backward()
    assert torch.equal(layer.weight.grad, before.float())


def test_twin_and_original_share_everything():
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8))
    model.tied = model[0]
    twin = compile(model)
    assert isinstance(twin, nn.Sequential) and isinstance(twin[0], nn.Linear)
    assert twin.tied is twin[0] and model.tied is model[0]
    assert [n for n, _ in twin.named_parameters()] == [n for n, _ in model.named_parameters()]
    assert all(a is b for a, b in zip(twin.parameters(), model.parameters(), strict=True))
    twin.eval()
    assert not model.training and not model[1].training
    model.train()
    assert twin.training and twin[1].training
    add_mask(model[0], 0.9)
    assert twin[0].weight_mask is model[0].weight_mask
    assert list(twin.state_dict()) == list(model.state_dict())
    twin.double()
    assert model[2].weight.dtype == torch.float64 and type(model[0]) is nn.Linear
    copy.deepcopy(twin)


def test_repeated_backward_and_accumulation():
    layer = nn.Linear(10, 10)
    add_mask(layer, 0.8)
    loss = compile(layer, always())(torch.ones(3, 10)).sum()
    loss.backward(retain_graph=True)
    once = layer.weight.grad.clone()
    loss.backward()
    assert torch.equal(layer.weight.grad, 2 * once)


def test_no_grad_and_inference_mode():
    layer = nn.Linear(10, 10)
    add_mask(layer, 0.8)
    twin, source = compile(layer, always()), torch.randn(3, 10)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert relative_error(twin(source), layer(source)) < TOLERANCE


def test_float64_falls_back_with_one_notice_and_passes_gradcheck():
    layer = nn.Linear(5, 4).double()
    add_mask(layer, 0.5)
    twin = compile(nn.Sequential(layer))
    source = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    with pytest.warns(RuntimeWarning, match="layer '0' runs masked dense: .*float64"):
        twin(source)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.autograd.gradcheck(twin, source)
    with pytest.raises(ValueError, match="layer '0' runs masked dense: .*float64"):
        compile(nn.Sequential(layer), backend("skip", strict=True))(source)


@pytest.mark.parametrize(
    ("layer", "reason"),
    (
        (nn.Conv2d(4, 4, 3, groups=2), "groups=2"),
        (nn.Conv2d(4, 4, 3, padding="same"), "padding='same'"),
        (nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), "padding_mode='circular'"),
    ),
)
def test_unsupported_convolutions_run_dense(layer, reason):
    add_mask(layer, 0.5)
    source = torch.randn(2, 4, 6, 6)
    with pytest.warns(RuntimeWarning, match=reason):
        result = compile(layer)(source)
    assert torch.equal(result, layer(source))


def test_unsupported_layer_is_named():
    model = nn.Sequential(nn.Conv1d(4, 4, 3))
    add_mask(model[0], 0.5)
    with pytest.warns(RuntimeWarning, match="layer '0' .* Conv1d is not supported"):
        compile(model)
    with pytest.raises(ValueError, match="Conv1d is not supported"):
        compile(model, backend("skip", strict=True))


def test_autocast_to_float16_runs_dense():
    layer = nn.Linear(8, 8)
    add_mask(layer, 0.5)
    with pytest.warns(RuntimeWarning, match="autocast"), torch.autocast("cpu", torch.float16):
        assert compile(layer)(torch.randn(2, 8)).dtype == torch.float16


def in_bfloat16(name, layer, source, *, autocast):
    """Output and gradients of a training step, all but the masked dense truth in bfloat16."""
    layer.zero_grad()
    source = source.detach().requires_grad_()
    twin = compile(layer, "dense" if name == "dense" else always())
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        target = twin(source)
    target.square().mean().backward()
    return [target, source.grad, layer.weight.grad, layer.bias.grad]


@pytest.mark.parametrize("autocast", (True, False))
@pytest.mark.parametrize(
    ("layer", "shape"),
    ((nn.Linear(64, 48), (9, 64)), (nn.Conv2d(6, 8, 3, padding=1), (2, 6, 5, 5))),
    ids=("linear", "conv"),
)
def test_bfloat16_is_as_near_to_the_truth_as_dense_bfloat16(layer, shape, autocast, monkeypatch):
    calls = []
    original = kernels.Structure.multiply
    monkeypatch.setattr(kernels.Structure, "multiply", lambda *a: calls.append(a) or original(*a))
    torch.manual_seed(3)
    layer = copy.deepcopy(layer)
    add_mask(layer, 0.8)
    source = torch.randn(shape).bfloat16()
    layer = layer.bfloat16().float() if autocast else layer.bfloat16()
    truth = in_bfloat16("dense", copy.deepcopy(layer).double(), source.double(), autocast=False)
    dense = in_bfloat16("dense", layer, source, autocast=autocast)
    assert not calls
    skip = in_bfloat16("skip", layer, source, autocast=autocast)
    assert calls
    for own, other, exact in zip(skip, dense, truth, strict=True):
        assert own.dtype is other.dtype and own.shape == other.shape
        error = relative_error(own.double(), exact)
        assert error < 0.02 and error < 2 * relative_error(other.double(), exact) + 1e-4
    assert not skip[2][~layer.weight_mask].any()


def test_bfloat16_counts_as_fast_as_the_processor_makes_it():
    costs = Costs(1.0, 1.0, 1.0, half=3.0)
    assert worth_skipping(512, 512, 0.5, costs=costs)
    assert not worth_skipping(512, 512, 0.6, half=True, costs=costs)
    assert worth_skipping(512, 512, 0.7, half=True, costs=costs)
    assert worth_skipping(512, 512, 0.6, half=True, multiplies_half=True, costs=costs)
    assert not worth_skipping(512, 512, 0.5, half=True, multiplies_half=True, costs=costs)


def test_without_compiler_one_notice(monkeypatch):
    monkeypatch.setattr(kernels, "_load", lambda: kernels.KernelError("no C compiler was found"))
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    for layer in model:
        add_mask(layer, 0.5)
    with pytest.warns(RuntimeWarning, match="no C compiler") as notices:
        twin = compile(model)
        step(twin, torch.randn(2, 8))
    assert len(notices) == 1
    with pytest.raises(ValueError, match="no C compiler"):
        compile(model, backend("skip", strict=True))


def test_masked_nan_never_leaks():
    layer = nn.Linear(8, 8)
    add_mask(layer, 0.5)
    layer.weight.data[~layer.weight_mask] = torch.nan
    for name in ("skip", "dense"):
        assert all(
            value.isfinite().all() for value in step(compile(layer, always(name)), torch.ones(2, 8))
        )


def test_errors_name_the_key():
    with pytest.raises(ValueError, match="backend must be one of dense, skip, .*cs2, .*'fast'"):
        backend("fast")
    with pytest.raises(ValueError, match="execution must be one of dense, skip, got 'fast'"):
        backend("cs2", execution="fast")
    with pytest.raises(ValueError, match="execution must be 'dense' for backend 'dense'"):
        backend("dense", execution="skip")
    with pytest.raises(ValueError, match="backend 'skip' has no timing model; take cs2, "):
        backend("skip").simulate(nn.Linear(1, 1), batch_size=1)
    with pytest.raises(ValueError, match=r"crossover must be in \[0, 1\], got 2"):
        backend("skip", crossover=2)
    with pytest.raises(TypeError, match="backend must be a Backend or a name, got int"):
        compile(nn.Linear(1, 1), 3)


def test_a_device_adds_its_timing_model_to_either_execution():
    from sparse_lib.device import simulate

    model = tiny_language_model("gpt2")
    for name, layer in model.named_modules():
        if "c_fc" in name:
            add_mask(layer, 0.9)
    sizes = {"batch_size": 2, "sequence_length": 16, "sparsity": 0.75}
    assert backend("cs2").execution == "skip" and backend("h100").execution == "dense"
    tokens = torch.randint(0, 64, (2, 16))
    outputs = []
    for execution in ("dense", "skip"):
        device = backend("cs2", execution=execution)
        twin = compile(model, device)
        outputs.append(twin(tokens).logits)
        assert device.simulate(twin, **sizes).step_s == simulate(model, "cs2", **sizes).step_s
    assert relative_error(*outputs) < TOLERANCE


def test_a_convolution_is_judged_by_its_images(monkeypatch):
    monkeypatch.setattr("sparse_lib.execution.costs.default_costs", lambda: Costs(1.4, 12, 1000))
    monkeypatch.setattr(kernels, "unavailable", lambda: None)

    def level(channels, width, stride=1):
        """The lowest sparsity, in steps of 5%, at which a 3 x 3 convolution is skipped."""
        images = Images(channels, width, stride)
        shape = (channels, 9 * channels)
        worth = [worth_skipping(*shape, s / 100, images=images) for s in range(0, 100, 5)]
        assert worth == sorted(worth)  # never less at a higher sparsity
        return worth.index(True) * 5 if any(worth) else 100

    # Small images have more borders per window, and few channels more packing per weight.
    assert level(64, 32) < level(64, 16) < level(64, 8) < level(64, 4)
    assert level(256, 8) < level(128, 8) < level(64, 8) < level(32, 8) <= 100
    assert level(64, 16, stride=4) > level(64, 16)


def test_a_layer_decides_again_for_images_of_another_size():
    layer = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1, bias=False))
    Static(sparsity=0.6).apply(layer)
    layer = compile(layer, "skip")
    with torch.no_grad():
        for width in (32, 4, 32):
            layer(torch.randn(2, 64, width, width))
            images = layer[0]._execution._decision[0][2]
            assert (images.width, images.channels) == (width, 64)


def test_on_zen_5_linear_layers_nearly_always_skip_and_convolutions_as_elsewhere(monkeypatch):
    monkeypatch.setattr(kernels, "num_lanes", lambda: 16)
    monkeypatch.setattr(kernels, "processor", lambda: ("AuthenticAMD", 26))
    # Its instructions for bfloat16, whatever those of the processor that the test runs on.
    monkeypatch.setattr(kernels.library(), "half_units", lambda: 1)
    assert worth_skipping(512, 512, 0.0) and worth_skipping(64, 64, 0.5)
    # Against dense bfloat16, which is four times as fast, they need the same or bfloat16 kernels.
    assert not worth_skipping(512, 512, 0.5, half=True)
    assert worth_skipping(512, 512, 0.6, half=True, multiplies_half=True)
    # As measured: 3 x 3 windows of 64 channels gain from 80% on, of 32 hardly ever.
    wide, narrow = Images(64, 8), Images(32, 16)
    assert not worth_skipping(64, 576, 0.7, images=wide)
    assert worth_skipping(64, 576, 0.9, images=wide)
    assert not worth_skipping(32, 288, 0.8, images=narrow)
    assert default_costs().half == 4.1
    monkeypatch.setattr(kernels.library(), "half_units", lambda: 3)  # with AMX
    assert default_costs().half == 8.0
    assert not worth_skipping(512, 512, 0.6, half=True, multiplies_half=True)


def test_worth_skipping_grows_with_sparsity_and_size(monkeypatch):
    monkeypatch.setattr(kernels, "processor", lambda: ("AuthenticAMD", 25))
    levels = [i / 100 for i in range(101)]
    first = []
    for width in (32, 64, 128, 512, 4096):
        worth = [worth_skipping(width, width, sparsity) for sparsity in levels]
        assert worth == sorted(worth)
        first.append(levels[worth.index(True)] if any(worth) else 1.0)
    assert first == sorted(first, reverse=True) and first[0] == 1.0
    assert 0.2 < first[-1] < first[-2] < 0.45
    monkeypatch.setattr(kernels, "_load", lambda: kernels.KernelError("no C compiler was found"))
    assert not worth_skipping(4096, 4096, 0.99)


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


@pytest.mark.parametrize(
    "text", ["1", "1,2", "1,2,x", "1,2,0", "1,nan,2", "1,2,3,4,5,6,7", "1,2,inf"]
)
def test_costs_that_are_no_numbers_are_named(text, monkeypatch):
    monkeypatch.setenv(COSTS_VARIABLE, text)
    with pytest.raises(
        ValueError, match="SPARSE_LIB_SKIP_COSTS must be three to six numbers above 0"
    ):
        worth_skipping(64, 64, 0.9)


def test_a_backend_brings_its_costs(monkeypatch):
    calls = []
    original = kernels.Structure.multiply
    monkeypatch.setattr(kernels.Structure, "multiply", lambda *a: calls.append(a) or original(*a))
    layer = nn.Linear(256, 320)
    add_mask(layer, 0.6)
    for per_weight, skips in ((1.0, True), (3.0, False)):
        twin = compile(layer, backend("skip", costs=Costs(per_weight, 1, 1)))
        calls.clear()
        twin(torch.randn(4, 256))
        assert bool(calls) is skips


def test_layers_not_worth_it_run_dense(monkeypatch):
    monkeypatch.setattr(kernels, "processor", lambda: ("AuthenticAMD", 25))
    calls = []
    original = kernels.Structure.multiply
    monkeypatch.setattr(
        kernels.Structure, "multiply", lambda *a: calls.append(a[0].rows) or original(*a)
    )
    model = nn.Sequential(nn.Linear(256, 320), nn.Linear(320, 16), nn.Linear(16, 16))
    for layer, sparsity in zip(model, (0.6, 0.1, 0.6), strict=True):
        add_mask(layer, sparsity)
    compile(model, backend("skip", strict=True))(torch.randn(4, 256))
    assert calls == [320]


def tiny_language_model(kind):
    import transformers

    torch.manual_seed(0)
    if kind == "llama":
        config = transformers.LlamaConfig(
            vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
        )  # fmt: skip
        return transformers.LlamaForCausalLM(config)
    config = transformers.GPT2Config(
        vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=32, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


@pytest.mark.parametrize("kind", ("llama", "gpt2"))
def test_language_models_train_alike(kind):
    model = tiny_language_model(kind)
    for name, module in model.named_modules():
        if getattr(module, "weight", None) is not None and module.weight.dim() == 2:
            if not any(part in name for part in ("embed", "wte", "wpe", "lm_head")):
                add_mask(module, 0.8)
    reference = copy.deepcopy(model)
    losses = []
    for runner in (compile(model, always()), compile(reference, "dense")):
        optimizer = torch.optim.AdamW(runner.parameters(), lr=1e-2)
        tokens = torch.randint(0, 64, (3, 16), generator=torch.Generator().manual_seed(1))
        for _ in range(4):
            loss = runner(input_ids=tokens, labels=tokens).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[:4] == pytest.approx(losses[4:], rel=1e-4)
    assert losses[3] < losses[0]
    assert compile(model).generate(tokens[:, :4], max_new_tokens=3, do_sample=False).shape == (3, 7)


def test_skip_really_calls_the_kernels(monkeypatch):
    calls = []
    for owner, name in ((kernels.Structure, "multiply"), (kernels, "gradients")):
        original = getattr(owner, name)

        def counted(*args, _name=name, _original=original):
            calls.append(_name)
            return _original(*args)

        monkeypatch.setattr(owner, name, counted)
    layer = nn.Linear(8, 8)
    add_mask(layer, 0.5)
    step(compile(layer, always()), torch.randn(2, 8))
    assert calls == ["multiply", "gradients"]
    calls.clear()
    step(compile(layer, backend("skip", crossover=1.0)), torch.randn(2, 8))
    assert calls == []


@pytest.mark.parametrize("dense_gradient", (False, True))
def test_ledger_hears_what_the_kernels_executed(dense_gradient):
    model = nn.Sequential(nn.Linear(12, 8), nn.Conv2d(2, 3, 3, padding=1))
    for layer in model:
        add_mask(layer, 0.6)
        layer.weight._needs_dense_gradient = dense_gradient
    twin = compile(model, always())
    for layer, source, tokens in (
        (0, torch.randn(5, 12), 5),
        (1, torch.randn(4, 2, 6, 7), 4 * 6 * 7),
    ):
        with Ledger() as ledger:
            step(twin[layer], source)
        mask = model[layer].weight_mask
        kept, size = 2 * tokens * int(mask.sum()), 2 * tokens * mask.numel()
        gradient = size if dense_gradient else kept
        assert ledger.get_flop_counts()["Global"] == {
            "skipping forward": kept,
            "skipping input_gradient": kept,
            "skipping weight_gradient": gradient,
        }
        assert ledger.dense_flops == 3 * size
        assert ledger.skipped_flops == 3 * size - 2 * kept - gradient


@pytest.mark.parametrize(
    ("make", "shape"),
    (
        (lambda: nn.Linear(512, 512), (2, 300)),
        (lambda: nn.Linear(512, 512), (64, 8192)),
        (lambda: nn.Linear(8, 8), ()),
        (lambda: conv1d(16, 8), (2, 8)),
        (lambda: nn.Conv2d(64, 64, 3), (2, 64, 2, 2)),
        (lambda: nn.Conv2d(16, 8, 3), (2, 8, 9, 9)),
        (lambda: nn.Conv2d(16, 8, 3), (9, 9)),
        (lambda: nn.Conv2d(16, 8, 3), (1, 2, 16, 9, 9)),
        (lambda: nn.Conv2d(16, 8, 3), (8, 9, 9)),
    ),
)
def test_inputs_of_wrong_shape_raise_the_error_of_torch(make, shape):
    layer = make()
    add_mask(layer, 0.9)
    source = torch.ones(shape)
    with pytest.raises(RuntimeError) as error:
        compile(layer, always())(source)
    with pytest.raises(RuntimeError) as truth:
        F.linear(source, layer.weight.T) if hasattr(layer, "nf") else layer(source)
    assert str(error.value) == str(truth.value)


@pytest.mark.parametrize(
    ("layer", "changes"),
    (
        (nn.Linear(8, 4), {"weight": nn.Parameter(torch.ones(4, 9))}),
        (nn.Linear(8, 4), {"bias": nn.Parameter(torch.ones(3))}),
        (nn.Linear(8, 4), {"weight_mask": torch.ones(3, 8, dtype=torch.bool)}),
        (nn.Conv2d(8, 4, 3), {"stride": (0, 1)}),
        (nn.Conv2d(8, 4, 3), {"dilation": (1, 0)}),
    ),
)
def test_layers_that_do_not_fit_together_raise_the_error_of_torch(layer, changes):
    add_mask(layer, 0.5)
    for name, value in changes.items():
        setattr(layer, name, value)
    source = torch.ones(2, 8) if isinstance(layer, nn.Linear) else torch.ones(2, 8, 6, 6)
    with pytest.raises(RuntimeError):
        compile(layer, always())(source)


def test_a_weight_of_another_kernel_size_is_convolved_by_torch():
    layer = nn.Conv2d(4, 6, (3, 5))
    layer.weight = nn.Parameter(torch.randn(6, 4, 5, 3))
    add_mask(layer, 0.5)
    source = torch.randn(2, 4, 9, 9)
    assert torch.equal(compile(layer, always())(source), layer(source))


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("sizes", ((0, 5), (5, 0)))
def test_empty_layers_compute_what_torch_does(sizes):
    layer = nn.Linear(*sizes)
    add_mask(layer, 0.5)
    source = torch.ones(3, sizes[0])
    for value, truth in zip(step(compile(layer, always()), source), step(layer, source)):
        assert torch.equal(value, truth)


def masked_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 16))
    add_mask(model[0], 0.8)
    add_mask(model[2], 0.8)
    return model


def save_and_load(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def save_and_load_script(script):
    file = io.BytesIO()
    torch.jit.save(script, file)
    file.seek(0)
    return torch.jit.load(file)


TRACES = {
    "make_fx": lambda model, x: make_fx(model)(x),
    "make_fx before dispatch": lambda model, x: make_fx(model, pre_dispatch=True)(x),
    "symbolic_trace": lambda model, _: torch.fx.symbolic_trace(model),
    "jit.trace": lambda model, x: save_and_load_script(torch.jit.trace(model, x)),
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


@pytest.mark.parametrize("execution", ("skip", "dense"))
def test_functional_gradients_equal_those_of_autograd(execution):
    model, source = masked_model(), torch.randn(5, 32)
    model(source).square().sum().backward()
    twin = compile(model, always(execution))

    def loss(parameters):
        return torch.func.functional_call(twin, parameters, (source,)).square().sum()

    gradients = torch.func.grad(loss)({k: p.detach() for k, p in twin.named_parameters()})
    for name, parameter in model.named_parameters():
        mask = getattr(model[int(name[0])], "weight_mask", None) if "weight" in name else True
        assert relative_error(gradients[name], parameter.grad * mask) < TOLERANCE


def test_fake_tensors_never_reach_the_kernels():
    with FakeTensorMode(allow_non_fake_inputs=True):
        result = compile(masked_model(), always())(torch.ones(5, 32))
    assert isinstance(result, FakeTensor) and result.shape == (5, 16)


def test_tensor_subclasses_run_dense_with_a_notice():
    class Named(torch.Tensor):
        pass

    model, source = masked_model(), torch.randn(5, 32)
    with pytest.warns(RuntimeWarning, match="its input is a Named, the kernels need a"):
        result = compile(model)(source.as_subclass(Named))
    assert type(result) is Named and torch.equal(result.as_subclass(torch.Tensor), model(source))


def test_a_ledger_does_not_keep_layers_from_skipping(monkeypatch):
    calls = []
    original = kernels.Structure.multiply
    monkeypatch.setattr(kernels.Structure, "multiply", lambda *a: calls.append(a) or original(*a))
    twin = compile(masked_model(), always())
    with Ledger(), Ledger():
        twin(torch.ones(5, 32))
    assert len(calls) == 2


@pytest.mark.parametrize("execution", ("skip", "dense"))
@pytest.mark.parametrize(
    "clone", (save_and_load, copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)))
)
def test_twins_can_be_pickled_and_copied(clone, execution):
    model, source = masked_model(), torch.randn(5, 32)
    twin = compile(model, always(execution))
    expected = twin(source)
    for again in (clone(twin), clone(compile(twin, always(execution)))):
        assert type(again) is type(twin) and type(again[0]) is type(twin[0])
        assert torch.equal(again(source), expected)
        assert again[0].weight_mask is again._original[0].weight_mask
        assert again[0].weight is again._original[0].weight is not model[0].weight
    assert torch.equal(clone(twin[:2])(source), twin[:2](source))


def test_wrong_types_are_named():
    with pytest.raises(TypeError, match="model must be a torch.nn.Module, got int"):
        compile(3)
    with pytest.raises(TypeError, match="crossover must be a number, not 'a'"):
        backend("skip", crossover="a")


# Masks that come later, or lie elsewhere


@pytest.mark.parametrize(
    "layer", [nn.Conv1d(4, 6, 3), nn.ConvTranspose2d(4, 6, 3), nn.Embedding(4, 6)], ids=str
)
def test_an_unsupported_layer_that_is_masked_after_compiling_is_named(layer):
    model = nn.Sequential(copy.deepcopy(layer))
    source = {nn.Conv1d: torch.ones(2, 4, 9), nn.ConvTranspose2d: torch.ones(2, 4, 5, 5)}.get(
        type(layer), torch.ones(2, dtype=torch.long)
    )
    strict, lenient = compile(model, always()), compile(model, "skip")
    strict(source)
    add_mask(model[0], 0.5)
    kind = type(layer).__name__
    with pytest.raises(ValueError, match=f"layer '0' runs masked dense: its type {kind} is not"):
        strict(source)
    with pytest.warns(RuntimeWarning, match=f"layer '0' runs masked dense: its type {kind} is"):
        lenient(source)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lenient(source).equal(model(source))
    with pytest.warns(RuntimeWarning, match="is not supported"):
        pickle.loads(pickle.dumps(compile(nn.Sequential(layer), "skip")))
        compile(model, "skip")(source)


def test_a_twin_with_an_unsupported_layer_compiles_with_torch():
    model = nn.Sequential(nn.Conv1d(4, 6, 3), nn.Flatten(), nn.Linear(42, 5))
    source = torch.randn(2, 4, 9)
    run = torch.compile(compile(model, "skip"), backend="eager")
    torch.testing.assert_close(run(source), model(source))


class Tied(nn.Module):
    def __init__(self, embedded):
        super().__init__()
        self.first = nn.Embedding(40, 40) if embedded else nn.Linear(40, 40, bias=False)
        self.second = nn.Linear(40, 40, bias=False)
        self.second.weight = self.first.weight

    def forward(self, source):
        return self.second(self.first(source).relu())


@pytest.mark.parametrize("when", ("before", "after"))
def test_a_layer_tied_to_a_masked_one_skips_as_well(when):
    model = Tied(False)
    twin = compile(model, always())
    add_mask(model.first, 0.9)
    twin = compile(model, always()) if when == "before" else twin
    source = torch.randn(7, 40)
    with Ledger() as ledger:
        twin(source).square().sum().backward()
    # Two layers forward and for their weights, one for its input.
    assert ledger.executed_flops == 5 * 2 * 7 * int(model.first.weight_mask.sum())
    skipped = model.first.weight.grad.clone()
    model.zero_grad()
    model(source).square().sum().backward()
    expected = model.first.weight.grad * model.first.weight_mask
    assert relative_error(skipped, expected) < TOLERANCE


def test_a_head_tied_to_a_masked_embedding_skips():
    model = Tied(True)
    twin = compile(model, backend("skip", crossover=0.0))
    add_mask(model.first, 0.9)
    source = torch.arange(40)
    with Ledger() as ledger, pytest.warns(RuntimeWarning, match="type Embedding"):
        result = twin(source)
    kept = int(model.first.weight_mask.count_nonzero())
    assert ledger.executed_flops == 2 * 40 * kept
    assert relative_error(result, model(source)) < TOLERANCE


# The timing model of a backend


def test_a_simulation_reads_the_masks_of_the_model():
    model, cs2 = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512)), backend("cs2")
    dense = cs2.simulate(model, batch_size=1000)
    for layer in model:
        layer.register_buffer("weight_mask", torch.arange(512 * 512).view(512, 512) % 10 == 0)
    share = 1 - int(model[0].weight_mask.sum()) / 512**2
    sparse = cs2.simulate(compile(model, cs2), batch_size=1000)
    names = ("0.weight", "1.weight")
    told = cs2.simulate(model, batch_size=1000, sparsity=dict.fromkeys(names, share))
    assert sparse.step_s == told.step_s < 0.5 * dense.step_s
    assert cs2.simulate(model, batch_size=1000, sparsity=0).step_s == dense.step_s
