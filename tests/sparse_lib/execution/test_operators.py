"""The kernels within graphs of `torch.compile`, against the same layers without a compiler."""

import copy
import shutil

import pytest
import torch
from torch import nn

import sparse_lib as sl
from sparse_lib.execution import kernels
from sparse_lib.execution.backend import backend, compile
from tests.cases import descend, driven
from tests.sparse_lib import tiny_models
from tests.sparse_lib.execution.test_backend import (
    LAYERS,
    TOLERANCE,
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


#: Layers, and the share of zeros from which on they skip: all, or none.
CASES = {(name, at): (*case, at) for name, case in LAYERS.items() for at in (0.0, 0.9)}
CASES["groups", 0.0] = lambda: nn.Conv2d(4, 4, 3, groups=2), (2, 4, 4, 4), 0.0


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_compiled_layer_has_the_bits_of_one_that_skips_or_is_masked_dense(case, products):
    make, shape, crossover = CASES[case]
    layer, source = make(), torch.randn(shape)
    add_mask(layer, 0.8)
    skips = case[0] != "groups" and crossover == 0
    expected = step(compile(copy.deepcopy(layer), always() if skips else "dense"), source)
    count = len(products)
    layer.weight.data[~layer.weight_mask] = torch.nan  # is never read
    result = step(with_compiler(compile(layer, backend("skip", crossover=crossover))), source)
    assert len(products) == 2 * count and (count > 0) == skips
    for one, other in zip(result, expected, strict=True):
        assert one.shape == other.shape
        assert torch.equal(one, other) or (not skips and relative_error(one, other) < TOLERANCE)


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
        optimizer = driven(algorithm, model, momentum=0.9)
        twin = compile(model, always())
        run = with_compiler(twin) if compiled else twin
        first = model[0].weight_mask.clone()
        for seed in range(6):
            source = torch.randn(8, 48, generator=torch.Generator().manual_seed(seed))
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
                loss = run(source.to(model[0].weight.dtype)).float().square().mean()
            descend(optimizer, loss)
        assert not torch.equal(first, model[0].weight_mask)
        ends.append(copy.deepcopy(model.state_dict()))
    assert all(torch.equal(tensor, ends[1][key]) for key, tensor in ends[0].items())


@pytest.mark.parametrize(
    ("make", "blocks"),
    ((tiny_models.gpt2, "*.h.*"), (tiny_models.llama, "*.layers.*")),
    ids=("gpt2", "llama"),
)
def test_a_language_model_compiles_with_its_kernels(make, blocks, products):
    model = make(use_cache=False).eval()
    sl.Group({blocks: sl.Static(0.8, seed=0)}).apply(model)
    tokens = torch.randint(11, (2, 16))
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


def test_tokens_may_vary_without_a_graph_for_each_number_and_channels_come_last(products):
    layer = nn.Linear(24, 12)
    add_mask(layer, 0.8)
    run = with_compiler(compile(layer, always()), dynamic=True)
    run(torch.randn(5, 24))
    with torch.compiler.set_stance("fail_on_recompile"):
        for tokens in (6, 7, 8):
            source = torch.randn(tokens, 24)
            torch.testing.assert_close(run(source), layer(source))
    assert len(products) == 4
    products.clear()
    model = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 5, 1))
    add_mask(model[0], 0.7)
    add_mask(model[2], 0.2)
    source = torch.randn(2, 4, 6, 6).to(memory_format=torch.channels_last)
    expected = model(source)
    result = with_compiler(compile(model, backend("skip", crossover=0.5)))(source)
    torch.testing.assert_close(result, expected)
    assert len(products) == 1
