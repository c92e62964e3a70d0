"""The ledger against closed forms, to the last digit, and against masks."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    ResNetConfig,
    ResNetForImageClassification,
)

from sparse_lib.device.ledger import PARTS, Ledger, is_recording, record
from sparse_lib.flops import count, rigl_mean_step

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


def language_step(model):
    ids = torch.arange(B * T).view(B, T) % 11
    with Ledger(model) as ledger:
        model(ids, labels=ids).loss.backward()
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
def test_masks_tell_executed_from_skipped(dense_weight_grad):
    model = language_model("gpt2", "sdpa")
    flops = count(model, batch_size=B, sequence_length=T)
    levels = add_masks(model)
    ids = torch.zeros(B, T, dtype=torch.long)
    with Ledger(model, dense_weight_gradient=lambda: dense_weight_grad) as ledger:
        model(ids, labels=ids).loss.backward()
    assert by_part(ledger) == flops.parts(levels, dense_weight_grad=dense_weight_grad)
    assert by_part(ledger, "dense_flops") == flops.parts()
    totals = ledger.totals()
    assert totals["skipped_flops"] == totals["dense_flops"] - totals["executed_flops"] > 0


def test_dense_operators_can_be_booked_as_they_run():
    model = language_model("gpt2", "sdpa")
    add_masks(model)
    ids = torch.zeros(B, T, dtype=torch.long)
    with Ledger(model, skipping=False) as ledger:
        model(ids)
    assert ledger.totals()["skipped_flops"] == 0


def test_a_changed_mask_is_seen():
    model = nn.Linear(4, 4, bias=False)
    model.register_buffer("weight_mask", torch.zeros(4, 4, dtype=torch.bool))
    with Ledger(model) as ledger:
        model(torch.ones(1, 4))
        model.weight_mask[0] = True
        model(torch.ones(1, 4))
    assert ledger.totals()["executed_flops"] == 2 * 4


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


def test_rigl_mean_step_emerges_from_a_schedule():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    for layer in (model[0], model[2]):
        mask = torch.arange(layer.weight.numel()).view_as(layer.weight) % 4 == 0
        layer.register_buffer("weight_mask", mask)
    flops = count(model, batch_size=5)
    delta_t = 9
    with Ledger(model, dense_weight_gradient=lambda: len(ledger.steps) == delta_t) as ledger:
        for _ in range(delta_t + 1):
            x = torch.ones(5, 8, requires_grad=True)
            model(x).sum().backward()
            ledger.end_step()
    mean = ledger.totals()["executed_flops"] / (delta_t + 1)
    sparse = flops.forward({"0.weight": 0.75, "2.weight": 0.75})
    assert mean == pytest.approx(rigl_mean_step(sparse, flops.forward(), delta_t), rel=1e-12)
    assert len(ledger.steps) == delta_t + 1
    assert sum(s["executed_flops"] for s in ledger.steps) == ledger.totals()["executed_flops"]


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
    model = nn.Sequential(nn.Linear(8, 4, bias=False))
    model[0].register_buffer("weight_mask", torch.arange(32).view(4, 8) < 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with Ledger(model) as ledger:
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    assert ledger.memory(optimizer) == {
        "weight_bytes": 128,
        "nonzero_weight_bytes": 32,
        "activation_bytes": 64,
        "optimizer_bytes": 128,
    }


def test_report_shows_layers_and_total():
    model = language_model("gpt2", "sdpa")
    add_masks(model)
    text = language_step(model).report()
    assert "transformer.h.0.mlp.c_fc" in text
    assert "75.0%" in text
    assert "total" in text
