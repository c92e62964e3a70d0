"""The kernels within graphs of `torch.compile`, against the same layers without a compiler."""

import copy
import shutil

import pytest
import torch
from torch import nn

import sparse_lib as sl
from sparse_lib.execution import kernels, operators
from sparse_lib.execution.backend import backend, compile
from sparse_lib.execution.products import ROWS, Windows
from tests.sparse_lib.execution.test_backend import (
    LAYERS,
    TOLERANCE,
    Tied,
    add_mask,
    always,
    relative_error,
    step,
)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def products(monkeypatch):
    """Counts what the kernels multiply."""
    calls = []
    for owner, name in ((kernels.Structure, "multiply"), (kernels, "gradients")):
        original = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda *a, _f=original, **k: calls.append(a) or _f(*a, **k)
        )
    return calls


def with_compiler(module, how="aot_eager", **options):
    return torch.compile(module, backend=how, fullgraph=True, **options)


@pytest.mark.parametrize("name", LAYERS)
def test_a_compiled_layer_has_the_bits_of_one_that_skips(name, products):
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    layer, source = make(), torch.randn(shape)
    add_mask(layer, 0.8)
    expected = step(compile(copy.deepcopy(layer), always()), source)
    count = len(products)
    result = step(with_compiler(compile(layer, always())), source)
    assert len(products) == 2 * count > 0
    assert all(torch.equal(a, b) for a, b in zip(result, expected, strict=True))


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_that_is_not_worth_skipping_runs_dense_within_the_operator(name, products):
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    layer, source = make(), torch.randn(shape)
    add_mask(layer, 0.5)
    expected = step(compile(copy.deepcopy(layer), "dense"), source)
    twin = compile(layer, backend("skip", crossover=0.9))
    result = step(with_compiler(twin), source)
    assert not products
    for one, other in zip(result, expected, strict=True):
        assert one.shape == other.shape
        assert one.numel() == 0 or relative_error(one, other) < TOLERANCE


def test_masks_that_change_are_not_compiled_again(products):
    model = nn.Sequential(nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 40))
    for layer in (model[0], model[2]):
        add_mask(layer, 0.5)
    run = with_compiler(compile(model, backend("skip", crossover=0.7)))
    source = torch.randn(6, 40)
    torch.testing.assert_close(run(source), model(source))
    assert not products
    with torch.compiler.set_stance("fail_on_recompile"):
        for seed in (1, 2):
            add_mask(model[0], 0.9, seed)
            torch.testing.assert_close(run(source), model(source))
    assert len(products) == 2


@pytest.mark.parametrize("half", (True, False))
@pytest.mark.parametrize("precision", ("float32", "bfloat16", "autocast"))
@pytest.mark.parametrize("name", ("rigl", "set"))
def test_a_compiled_training_has_the_bits_of_one_that_skips(name, precision, half, monkeypatch):
    """Masks move, gradients are dense at RigL's updates, and the weights end the same."""
    if not half:
        monkeypatch.setattr(kernels, "takes_half", lambda: False)
    ends = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 48))
        if precision == "bfloat16":
            model = model.bfloat16()
        kind = {"rigl": sl.RigL, "set": sl.SET}[name]
        algorithm = kind(0.8, update={"freq": 2}, drop_fraction=0.3, seed=0)
        algorithm.apply(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        algorithm.apply(optimizer)
        twin = compile(model, always())
        run = with_compiler(twin) if compiled else twin
        first = model[0].weight_mask.clone()
        for seed in range(6):
            source = torch.randn(8, 48, generator=torch.Generator().manual_seed(seed))
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
                loss = run(source.to(model[0].weight.dtype)).float().square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert not torch.equal(first, model[0].weight_mask)
        ends.append(copy.deepcopy(model.state_dict()))
    assert all(torch.equal(tensor, ends[1][key]) for key, tensor in ends[0].items())


def language_model(name):
    import transformers

    common = {"vocab_size": 50, "use_cache": False}
    if name == "gpt2":
        config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=32, **common)
        return transformers.GPT2LMHeadModel(config)
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, **common
    )
    return transformers.LlamaForCausalLM(config)


@pytest.mark.parametrize("name", ("gpt2", "llama"))
def test_a_language_model_compiles_with_its_kernels(name, products):
    torch.manual_seed(0)
    model = language_model(name).eval()
    blocks = {"gpt2": "*.h.*", "llama": "*.layers.*"}[name]
    sl.Group({blocks: sl.Static(0.8, seed=0)}).apply(model)
    tokens = torch.randint(50, (2, 16))
    expected = model(input_ids=tokens).logits.square().mean()
    expected.backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    run = with_compiler(compile(model, always()))
    loss = run(input_ids=tokens).logits.square().mean()
    loss.backward()
    assert products
    torch.testing.assert_close(loss, expected)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert relative_error(parameter.grad, gradient) < 1e-4


@pytest.mark.skipif(not shutil.which("g++"), reason="inductor needs a C++ compiler")
def test_inductor_runs_the_kernels(products):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 64), nn.GELU(), nn.Linear(64, 40))
    for layer in (model[0], model[2]):
        add_mask(layer, 0.9)
    twin, source = compile(model, always()), torch.randn(8, 40)
    expected = step(twin, source)
    count = len(products)
    result = step(with_compiler(twin, "inductor"), source)
    assert len(products) == 2 * count
    for one, other in zip(result, expected, strict=True):
        assert relative_error(one, other) < TOLERANCE


def test_tokens_may_vary_without_a_graph_for_each_number(products):
    layer = nn.Linear(24, 12)
    add_mask(layer, 0.8)
    run = with_compiler(compile(layer, always()), dynamic=True)
    run(torch.randn(5, 24))
    with torch.compiler.set_stance("fail_on_recompile"):
        for tokens in (6, 7, 8):
            source = torch.randn(tokens, 24)
            torch.testing.assert_close(run(source), layer(source))
    assert len(products) == 4


def test_images_with_channels_last_are_read_right(products):
    model = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 5, 1))
    add_mask(model[0], 0.7)
    add_mask(model[2], 0.2)
    source = torch.randn(2, 4, 6, 6).to(memory_format=torch.channels_last)
    expected = model(source)
    result = with_compiler(compile(model, backend("skip", crossover=0.5)))(source)
    torch.testing.assert_close(result, expected)
    assert len(products) == 1


def test_a_tied_head_gets_the_dense_gradient_that_an_algorithm_asks_for():
    model = Tied(False)
    add_mask(model.first, 0.8)
    source = torch.randn(7, 40)
    run = with_compiler(compile(model, always()))
    for asked in (False, True):
        model.first.weight._needs_dense_gradient = asked
        model.zero_grad()
        run(source).square().sum().backward()
        gradient = model.first.weight.grad.clone()
        model.zero_grad()
        model(source).square().sum().backward()
        expected = model.first.weight.grad
        expected = expected if asked else expected * model.first.weight_mask
        assert relative_error(gradient, expected) < TOLERANCE


def test_a_mapped_function_is_compiled_masked_dense(products):
    layer = nn.Linear(24, 12)
    add_mask(layer, 0.8)
    twin, source = compile(layer, always()), torch.randn(3, 5, 24)
    run = torch.compile(lambda x: torch.func.vmap(twin)(x), backend="aot_eager")
    torch.testing.assert_close(run(source), layer(source))
    assert not products


def test_layers_that_the_kernels_cannot_run_are_compiled_masked_dense(products):
    model = nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(16, 3))
    add_mask(model[0], 0.5)
    source = torch.randn(2, 4, 4, 4)
    run = with_compiler(compile(model, "skip"))
    torch.testing.assert_close(run(source), model(source))
    assert not products


def test_a_copy_of_a_compiled_twin_reads_its_own_masks(products):
    layer = nn.Linear(24, 12)
    add_mask(layer, 0.8)
    twin = compile(layer, always())
    run = with_compiler(twin)
    source = torch.randn(5, 24)
    run(source)
    again = copy.deepcopy(run)
    add_mask(again._orig_mod._original, 0.5, seed=1)
    torch.testing.assert_close(again(source), again._orig_mod._original(source))
    torch.testing.assert_close(run(source), layer(source))


@pytest.mark.parametrize("geometry", ("rows", "windows"))
@pytest.mark.parametrize("crossover", (0.0, 1.0))
def test_torch_finds_no_fault_in_the_operators(geometry, crossover):
    if geometry == "rows":
        layer, source, sizes = nn.Linear(20, 9), torch.randn(4, 20), ROWS.sizes
    else:
        layer, source = nn.Conv2d(3, 5, 3, padding=1), torch.randn(2, 3, 6, 6)
        sizes = Windows((3, 3), (1, 1), (1, 1), (1, 1)).sizes
    add_mask(layer, 0.7)
    twin = compile(layer, backend("skip", crossover=crossover))
    arguments = (source.requires_grad_(), layer.weight, layer.weight_mask, layer.bias)
    number = twin._execution.number
    torch.library.opcheck(
        operators.masked_product,
        (*arguments, number, sizes, False, torch.float32),
        atol=1e-4,
        rtol=1e-4,
    )
