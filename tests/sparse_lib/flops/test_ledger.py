"""The ledger against closed forms, to the last digit, and against masks."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.checkpoint import checkpoint
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    ResNetConfig,
    ResNetForImageClassification,
)

from sparse_lib.algorithms.rigl import RigL
from sparse_lib.execution import kernels
from sparse_lib.execution.backend import backend, compile
from sparse_lib.flops.ledger import MEMORY_COLUMNS, PARTS, Ledger, is_recording, record
from sparse_lib.flops.model import count, rigl_mean_step

B, T = 3, 16


def language_model(family, attention):
    if family == "gpt2":
        config = GPT2Config(
            n_layer=2,
            n_embd=8,
            n_head=2,
            vocab_size=11,
            n_positions=T,
            attn_pdrop=0.0,
            attn_implementation=attention,
        )
        return GPT2LMHeadModel(config)
    return LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=2,
            hidden_size=8,
            intermediate_size=12,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=11,
            attn_implementation=attention,
        )
    )


def language_step(model, run=None, **options):
    ids = torch.arange(B * T).view(B, T) % 11
    with Ledger(model, **options) as ledger:
        (run or model)(ids, labels=ids).loss.backward()
    return ledger


def by_part(ledger, column="executed_flops"):
    return {part: ledger.totals(part)[column] for part in PARTS}


def add_masks(model, sparsity=0.75):
    """Masks that keep a known number of weights, as the algorithms register them."""
    levels = {}
    for name, module in list(model.named_modules()):
        weight = getattr(module, "weight", None)
        if ".mlp." in name and weight is not None:
            keep = round((1 - sparsity) * weight.numel())
            mask = torch.arange(weight.numel()).view_as(weight) < keep
            module.register_buffer("weight_mask", mask)
            levels[f"{name}.weight"] = sparsity
    return levels


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_language_models_equal_the_closed_form_exactly(family, attention):
    model = language_model(family, attention)
    ledger = language_step(model)
    assert by_part(ledger) == count(model, batch_size=B, sequence_length=T).parts()


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_every_layer_is_booked_under_its_name(family):
    model = language_model(family, "sdpa")
    ledger = language_step(model)
    forward = {
        (row["name"], row["operation"]): row["dense_flops"]
        for row in ledger.records()
        if row["part"] == "forward"
    }
    flops = count(model, batch_size=B, sequence_length=T)
    assert forward == {(row.name, row.operation): row.dense_flops for row in flops.layers}
    for row in ledger.records():
        factor = 2 if row["operation"] == "attention" and row["part"] != "forward" else 1
        assert row["dense_flops"] == factor * forward[row["name"], row["operation"]]


def test_fused_attention_recomputes_its_scores_in_a_column_of_its_own():
    totals = language_step(language_model("llama", "sdpa")).totals()
    assert totals["recomputed_flops"] == 2 * B * 2 * T * T * 8
    assert language_step(language_model("llama", "eager")).totals()["recomputed_flops"] == 0


@pytest.mark.parametrize("layer_type", ["basic", "bottleneck"])
def test_resnet_equals_the_closed_form_but_for_the_gradient_of_the_images(layer_type):
    config = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type=layer_type, num_labels=3
    )
    model = ResNetForImageClassification(config)
    flops = count(model, batch_size=2, image_size=32)
    expected = flops.parts()
    images = torch.randn(2, 3, 32, 32, requires_grad=True)
    with Ledger(model) as ledger:
        model(images).logits.sum().backward()
    assert by_part(ledger) == expected
    with Ledger(model) as ledger:
        model(images.detach()).logits.sum().backward()
    expected["input_gradient"] -= flops.layers[0].dense_flops
    assert by_part(ledger) == expected


@pytest.mark.parametrize("dense_weight_grad", [False, True])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_masks_leave_the_closed_form_though_dense_operators_run_all(family, dense_weight_grad):
    model = language_model(family, "sdpa")
    flops = count(model, batch_size=B, sequence_length=T)
    levels = add_masks(model)
    ledger = language_step(model, dense_weight_gradient=lambda: dense_weight_grad)
    assert by_part(ledger, "sparse_flops") == flops.parts(
        levels, dense_weight_grad=dense_weight_grad
    )
    assert by_part(ledger) == by_part(ledger, "dense_flops") == flops.parts()
    assert ledger.totals()["skipped_flops"] == 0


@pytest.mark.skipif(kernels.unavailable() is not None, reason="no kernels here")
@pytest.mark.parametrize("dense_weight_grad", [False, True])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_skipping_kernels_execute_the_closed_form(family, dense_weight_grad):
    model = language_model(family, "sdpa")
    flops = count(model, batch_size=B, sequence_length=T)
    levels = add_masks(model)
    for name, parameter in model.named_parameters():
        parameter._needs_dense_gradient = dense_weight_grad and name in levels
    ledger = language_step(model, run=compile(model, backend("skip", crossover=0)))
    expected = flops.parts(levels, dense_weight_grad=dense_weight_grad)
    assert by_part(ledger) == by_part(ledger, "sparse_flops") == expected
    assert by_part(ledger, "dense_flops") == flops.parts()
    totals = ledger.totals()
    assert totals["skipped_flops"] == totals["dense_flops"] - totals["executed_flops"] > 0
    assert {row["name"] for row in ledger.records()} == {row.name for row in flops.layers}


@pytest.mark.parametrize(
    ("layer", "multiply_adds"),
    [
        (nn.Conv2d(4, 6, 3, stride=2, padding=1), 5 * 5 * 6 * 4 * 9),
        (nn.Conv2d(4, 6, 3, groups=2, dilation=2), 5 * 5 * 6 * 2 * 9),
        (nn.Conv2d(4, 8, (3, 1), groups=4, stride=(1, 2)), 7 * 5 * 8 * 1 * 3),
        (nn.Conv2d(4, 6, 1, bias=False), 9 * 9 * 6 * 4),
        (nn.Conv2d(4, 6, 1, stride=2), 5 * 5 * 6 * 4),
        (nn.ConvTranspose2d(4, 6, 3, stride=2), 9 * 9 * 4 * 6 * 9),
    ],
    ids=lambda value: str(value) if isinstance(value, nn.Module) else "",
)
def test_convolutions_by_hand(layer, multiply_adds):
    x = torch.ones(2, 4, 9, 9, requires_grad=True)
    with Ledger(layer) as ledger:
        layer(x).sum().backward()
    assert by_part(ledger) == dict.fromkeys(PARTS, 2 * 2 * multiply_adds)
    assert by_part(ledger) == count(layer, batch_size=2, inputs={"input": x}).parts()


def test_a_changed_mask_is_seen():
    model = nn.Linear(4, 4, bias=False)
    model.register_buffer("weight_mask", torch.zeros(4, 4, dtype=torch.bool))
    with Ledger(model) as ledger:
        model(torch.ones(1, 4))
        model.weight_mask[0] = True
        model(torch.ones(1, 4))
    assert ledger.totals()["sparse_flops"] == 2 * 4


def test_masked_and_cast_weights_are_still_their_layer():
    model = nn.Linear(4, 6, bias=False)
    mask = torch.ones(6, 4)
    with Ledger(model) as ledger, torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(3):
            F.linear(torch.ones(2, 4), model.weight * mask).sum().backward()
    assert {row["weight_name"] for row in ledger.records()} == {"weight"}
    assert by_part(ledger) == {"forward": 288, "input_gradient": 0, "weight_gradient": 288}


def test_checkpointing_books_the_second_forward_pass():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    with Ledger(model) as ledger:
        x = torch.ones(3, 4, requires_grad=True)
        checkpoint(model, x, use_reentrant=False).sum().backward()
    cost = 2 * 3 * (4 * 8 + 8 * 2)
    # The last layer need not be repeated: its output is saved nowhere.
    assert 2 * cost >= ledger.totals("forward")["dense_flops"] > cost
    assert ledger.totals("weight_gradient")["dense_flops"] == cost
    assert ledger.totals("input_gradient")["dense_flops"] == cost


@pytest.mark.parametrize(
    ("column", "execution"), [("sparse_flops", "dense"), ("executed_flops", "skip")]
)
def test_rigl_mean_step_emerges_from_a_schedule(column, execution):
    """Every tenth step of RigL needs the dense weight gradient: delta T is 9."""
    if execution == "skip" and kernels.unavailable():
        pytest.skip("no kernels here")
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    run = compile(model, backend(execution, crossover=0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    algorithm = RigL(sparsity=0.75, update={"freq": 10, "stop": 1000}, drop_fraction=0.3, seed=0)
    algorithm.apply(model)
    algorithm.apply(optimizer)
    flops = count(model, batch_size=5)
    with Ledger(model) as ledger:
        for _ in range(30):
            x = torch.ones(5, 8, requires_grad=True)
            run(x).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            ledger.end_step()
    sparse = flops.forward({"0.weight": 0.75, "2.weight": 0.75})
    steps = [step[column] for step in ledger.steps]
    dense_steps = [number for number, value in enumerate(steps) if value > 3 * sparse]
    assert len(dense_steps) == 3 and set(steps) == {3 * sparse, 2 * sparse + flops.forward()}
    assert sum(steps) / len(steps) == pytest.approx(
        rigl_mean_step(sparse, flops.forward(), 9), rel=1e-12
    )
    assert sum(steps) == ledger.totals()[column]


def test_each_step_is_booked_by_layer():
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    with Ledger(model) as ledger:
        for batch_size in (1, 3):
            model(torch.ones(batch_size, 4)).sum().backward()
            ledger.end_step()
        model(torch.ones(5, 4))
    assert ledger.num_steps == 2
    forward = {
        (row["step"], row["name"]): row["executed_flops"]
        for row in ledger.step_records()
        if row["part"] == "forward"
    }
    assert forward == {(0, "0"): 64, (0, "1"): 32, (1, "0"): 192, (1, "1"): 96}
    whole = sum(row["executed_flops"] for row in ledger.records())
    steps = sum(row["executed_flops"] for row in ledger.step_records())
    assert whole - steps == 5 * (64 + 32)


def test_kernels_report_their_own_work():
    model = nn.Linear(4, 4)
    record(model.weight, "forward", dense_flops=8, executed_flops=2)
    assert not is_recording()
    with Ledger(model) as ledger:
        assert is_recording()
        record(model.weight, "forward", dense_flops=8, executed_flops=2)
        record(torch.ones(3), "forward", dense_flops=8, executed_flops=2)
        with pytest.raises(ValueError, match="backward"):
            record(model.weight, "backward", dense_flops=8, executed_flops=2)
    assert ledger.totals()["skipped_flops"] == 6


def test_nothing_is_booked_outside_and_hooks_are_gone():
    model = nn.Linear(4, 4)
    with Ledger(model) as ledger:
        pass
    model(torch.ones(1, 4))
    assert ledger.records() == []
    assert not torch.nn.modules.module._global_forward_hooks


def test_memory_of_weights_masks_activations_and_optimizer():
    model = nn.Sequential(nn.Linear(8, 4, bias=False), nn.Tanh(), nn.Linear(4, 3))
    model[0].register_buffer("weight_mask", torch.arange(32).view(4, 8) < 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with Ledger(model) as ledger:
        for batch_size in (2, 5, 1):
            model(torch.ones(batch_size, 8)).sum().backward()
        optimizer.step()
    rows = {row.pop("name"): row for row in ledger.memory_records(optimizer)}
    # AdamW keeps two moments of the weight's shape and one float that counts steps.
    assert rows["0.weight"] == {
        "weight_bytes": 128,
        "nonzero_weight_bytes": 32,
        "activation_bytes": 5 * 8 * 4,
        "optimizer_bytes": 2 * 128 + 4,
        "nonzero_optimizer_bytes": 2 * 32 + 4,
    }
    assert rows["2.weight"]["activation_bytes"] == 5 * 4 * 4
    assert ledger.memory(optimizer) == {
        column: sum(row[column] for row in rows.values()) for column in MEMORY_COLUMNS
    }
    assert ledger.memory()["optimizer_bytes"] == 0


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_empty_weights_cost_nothing():
    model = nn.Sequential(nn.Linear(8, 0), nn.Linear(0, 8))
    with Ledger(model) as ledger:
        model(torch.ones(2, 8)).sum().backward()
    assert set(ledger.totals().values()) == {0}
    assert ledger.memory()["weight_bytes"] == 8 * 4


def test_kept_activations_equal_the_closed_form_and_a_hand_count():
    """Per block: inputs of attention and its output (1 + 1 widths), queries, keys and values (3),
    inputs of the feed-forward layers (1 + 4); then the head's input."""
    model = language_model("gpt2", "sdpa")
    model.config.use_cache = False
    flops = count(model, batch_size=B, sequence_length=T)
    by_hand = 4 * B * T * 8 * (2 * 10 + 1)
    assert 4 * sum(layer.num_kept for layer in flops.layers) == by_hand
    assert language_step(model).memory()["activation_bytes"] == by_hand


@pytest.mark.skipif(kernels.unavailable() is not None, reason="no kernels here")
def test_kernels_keep_the_same_activations_as_dense_operators():
    model = language_model("llama", "sdpa")
    dense = language_step(model).memory()["activation_bytes"]
    add_masks(model)
    skipping = language_step(model, run=compile(model, backend("skip", crossover=0)))
    assert skipping.memory()["activation_bytes"] == dense


def test_report_shows_layers_and_total():
    model = language_model("gpt2", "sdpa")
    add_masks(model)
    lines = language_step(model).report().splitlines()
    row = next(line for line in lines if "transformer.h.0.mlp.c_fc" in line)
    assert "75.0%" in row and "0.0%" in row
    dense = count(model, batch_size=B, sequence_length=T).training_step()
    assert f"{dense:.4g}" in next(line for line in lines if "total" in line)


def test_optimizers_are_not_counted_but_their_closures_are():
    class Whitening(torch.optim.SGD):
        """Multiplies matrices in its step, as second-order optimizers do."""

        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.grad = parameter.grad @ torch.eye(parameter.shape[1])
            return super().step(closure)

    model = nn.Linear(4, 4, bias=False)
    x = torch.ones(3, 4)
    with Ledger(model) as ledger:
        for _ in range(2):
            model(x).sum().backward()
            Whitening(model.parameters(), lr=0.1).step()
    assert by_part(ledger) == {"forward": 192, "input_gradient": 0, "weight_gradient": 192}

    def closure():
        loss = model(x).sum()
        loss.backward()
        return loss

    with Ledger(model) as ledger:
        torch.optim.SGD(model.parameters(), lr=0.1).step(closure)
    assert by_part(ledger) == {"forward": 96, "input_gradient": 0, "weight_gradient": 96}


def test_a_failing_optimizer_leaves_no_listener_behind():
    class Failing(torch.optim.SGD):
        def step(self, closure=None):
            raise ArithmeticError

    model = nn.Linear(4, 4, bias=False)
    with pytest.raises(ArithmeticError), Ledger(model):
        Failing(model.parameters(), lr=0.1).step()
    assert _get_current_dispatch_mode() is None


@pytest.mark.parametrize("how", ("replaced", "written past autograd"))
def test_a_mask_that_changes_between_steps_is_counted_anew(how):
    layer = nn.Linear(64, 64)
    layer.register_buffer("weight_mask", torch.ones(64, 64, dtype=torch.bool))
    run = compile(layer, backend("skip", crossover=0.0))
    generator = torch.Generator().manual_seed(0)
    with Ledger(layer) as ledger:
        for _ in range(20):
            mask = torch.rand(64, 64, generator=generator) >= torch.rand((), generator=generator)
            if how == "replaced":
                del layer.weight_mask
                layer.register_buffer("weight_mask", mask.clone())
            else:
                layer.weight_mask.data.copy_(mask)
            run(torch.ones(4, 64))
            step = ledger.end_step()
            assert step["sparse_flops"] == step["executed_flops"] == 8 * int(mask.sum())


def test_operators_in_place_count():
    a, b, out = torch.ones(2, 3, 4), torch.ones(2, 4, 5), torch.ones(2, 3, 5)
    with Ledger(nn.Identity()) as ledger:
        out.baddbmm_(a, b)  # 2 x 2 x 3 x 4 x 5
        out[0].addmm_(a[0], b[0])
        torch.addbmm(out[0], a, b)
    assert ledger.totals()["executed_flops"] == 240 + 120 + 240


def test_a_frame_has_a_row_per_step_layer_and_part():
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    with Ledger(model) as ledger:
        model(torch.ones(2, 3)).sum().backward()
        assert len(ledger.frame()) == 5 and "step" not in ledger.frame()
        for _ in range(2):
            model(torch.ones(2, 3)).sum().backward()
            ledger.end_step()
    frame = ledger.frame()
    assert frame["executed_flops"].sum() == 3 * 240 and set(frame["step"]) == {0, 1}
    # (15 + 5 + 10 + 2) weights and (6 + 10) inputs of four bytes.
    assert "weight bytes 128, nonzero weight bytes 128, activation bytes 64" in ledger.report()


def test_what_is_no_module_has_no_ledger():
    with pytest.raises(TypeError, match="model must be a torch.nn.Module, not None"):
        Ledger(None)
