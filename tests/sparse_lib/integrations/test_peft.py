"""LoRA of peft on a pruned transformers model: what is merged is what was trained, and sparse."""

import gc

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("peft", reason="peft is not installed")

from peft import (
    AdaLoraConfig,
    LoHaConfig,
    LoraConfig,
    get_peft_model,
)

import sparse_lib as sl
from sparse_lib.integrations.peft import keep_zeros
from tests.sparse_lib.integrations.test_transformers import make_mixtral, make_model


def pruned():
    model = make_model()
    sl.configure({"sparsity": 0.7, "init_method": "topk"}).apply(model)
    sl.finalize(model)
    return model


def adapted(model, **options):
    torch.manual_seed(1)
    config = LoraConfig(r=2, target_modules=["q_proj", "up_proj", "down_proj"], **options)
    return get_peft_model(model, config)


def test_merged_adapters_keep_the_zeros_and_the_function():
    base = pruned()
    zeros = {n: p == 0 for n, p in base.named_parameters() if "proj" in n}
    model = adapted(base)
    group = keep_zeros(model)
    assert len(group.sparse_params) == 7 and not any("lora_" in n for n in group.sparse_params)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 0.05)
    tokens = torch.randint(0, 24, (4, 8), generator=torch.Generator().manual_seed(2))
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.1
    model.eval()
    with torch.no_grad():
        before = model(input_ids=tokens).logits
        merged = model.merge_and_unload()
        after = merged(input_ids=tokens).logits
    torch.testing.assert_close(before, after)
    moved = 0
    for name, param in merged.named_parameters():
        if name in zeros:
            assert not param[zeros[name]].any(), name
            moved += not torch.equal(param, dict(pruned().named_parameters())[name])
    assert moved == 3


def zeros_of(model):
    return {n: p == 0 for n, p in model.named_parameters() if "proj" in n}


def kept(merged, zeros):
    """Whether a merged model has the zeros of its base."""
    found = dict(merged.named_parameters())
    return all(not found[name][where].any() for name, where in zeros.items())


def test_masks_that_the_base_has_already_are_kept():
    base = pruned()
    zeros = zeros_of(base)
    group = sl.keep_zeros(base)
    model = adapted(base, init_lora_weights=False)
    assert keep_zeros(model) is group
    assert kept(model.merge_and_unload(), zeros)


@pytest.mark.parametrize("forgets", [False, True])
def test_an_adapter_that_is_added_later_is_masked_by_another_call(forgets):
    base = pruned()
    zeros = zeros_of(base)
    model = adapted(base)
    group = keep_zeros(model)
    model.add_adapter(
        "later", LoraConfig(r=2, target_modules=["gate_proj"], init_lora_weights=False)
    )
    if forgets:
        del group
        gc.collect()
    keep_zeros(model)
    model.set_adapter("later")
    tokens = torch.arange(8)[None]
    model.eval()
    with torch.no_grad():
        before, merged = model(input_ids=tokens).logits, model.merge_and_unload()
        torch.testing.assert_close(before, merged(input_ids=tokens).logits)
    assert kept(merged, zeros)


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("loha", LoHaConfig(r=2, target_modules=["up_proj"])),
        ("adalora", AdaLoraConfig(target_modules=["up_proj"], total_step=10)),
    ],
)
def test_adapters_of_other_kinds_are_refused(kind, config):
    model = get_peft_model(pruned(), config)
    with pytest.raises(ValueError, match=f"an adapter of the kind '{kind}' cannot be masked"):
        keep_zeros(model)
    assert not sl.is_sparse(model)


def test_adapters_of_dense_weights_are_left_alone():
    base = pruned()
    with torch.no_grad():
        base.model.embed_tokens.weight[0] = 0  # as of a token for padding
    config = LoHaConfig(r=2, target_modules=["v_proj"])
    base.model.layers[0].self_attn.v_proj.weight.data.fill_(1.0)
    model = get_peft_model(base, config)
    assert len(keep_zeros(model).sparse_params) == 6
    config = LoraConfig(r=2, target_modules=["embed_tokens", "up_proj"])
    assert len(keep_zeros(get_peft_model(pruned(), config)).sparse_params) == 7


def test_an_adapter_that_changes_the_base_is_refused():
    with pytest.raises(ValueError, match=r"init_lora_weights='pissa' .* changes .*zeros too"):
        keep_zeros(adapted(pruned(), init_lora_weights="pissa"))


def test_what_cannot_be_masked_is_refused():
    with pytest.raises(ValueError, match="an adapter with DoRA cannot be masked"):
        keep_zeros(adapted(pruned(), use_dora=True))
    with pytest.raises(ValueError, match=r"use sparse_lib\.integrations\.peft\.keep_zeros"):
        sl.keep_zeros(adapted(pruned()))
    with pytest.raises(ValueError, match="no weight of the model has zeros"):
        keep_zeros(adapted(make_model()))


def test_adapters_of_gpt2_are_masked_too():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    base = GPT2LMHeadModel(GPT2Config(vocab_size=24, n_positions=8, n_embd=16, n_layer=1, n_head=2))
    sl.configure({"sparsity": 0.7, "init_method": "topk"}).apply(base)
    sl.finalize(base)
    zeros = base.transformer.h[0].attn.c_attn.weight == 0
    config = LoraConfig(
        r=2, target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=False
    )
    model = get_peft_model(base, config).eval()
    tokens = torch.arange(8)[None]
    with torch.no_grad():
        unmasked = model(input_ids=tokens).logits
        keep_zeros(model)
        before = model(input_ids=tokens).logits
        merged = model.merge_and_unload()
        after = merged(input_ids=tokens).logits
    assert not torch.allclose(unmasked, before)
    torch.testing.assert_close(before, after)
    weight = merged.transformer.h[0].attn.c_attn.weight
    assert zeros.any() and torch.equal(weight == 0, zeros)


def test_adapters_of_fused_experts_keep_the_zeros_and_the_function():
    base = make_mixtral()
    sl.configure(sl.Static(0.7, "topk")).apply(base)
    sl.finalize(base)
    zeros = {n: p == 0 for n, p in base.named_parameters() if "experts" in n}
    names = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    model = get_peft_model(
        base, LoraConfig(r=2, target_modules=["q_proj"], target_parameters=names)
    )
    keep_zeros(model)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 0.05)
    tokens = torch.randint(0, 24, (4, 8), generator=torch.Generator().manual_seed(2))
    for _ in range(3):
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
    with torch.no_grad():
        before = model(input_ids=tokens).logits
        merged = model.merge_and_unload()
        torch.testing.assert_close(before, merged(input_ids=tokens).logits)
    after = dict(merged.named_parameters())
    assert len(zeros) == 2 and all(not after[name][zero].any() for name, zero in zeros.items())


class Coded(torch.nn.Parameter):
    """A float by its dtype, which stands for codes, as a weight that torchao has quantized."""

    def dequantize(self):
        raise NotImplementedError

    def count_nonzero(self, *args):
        raise NotImplementedError


def test_quantized_bases_are_refused():
    base = pruned()
    model = adapted(base)
    layer = base.model.layers[0].self_attn.q_proj.get_base_layer()
    layer.weight = torch.nn.Parameter(torch.zeros(64, 1, dtype=torch.uint8), requires_grad=False)
    with pytest.raises(ValueError, match="of a Linear cannot be masked: its weight is quantized"):
        keep_zeros(model)
    plain = torch.nn.Sequential(layer, torch.nn.Linear(4, 4))
    with pytest.raises(ValueError, match="'0.weight' is quantized .Parameter of torch.uint8."):
        sl.keep_zeros(plain)
    layer.weight = Coded(torch.zeros(4, 4))
    with pytest.raises(ValueError, match="'0.weight' is quantized .Coded of torch.float32."):
        sl.keep_zeros(plain)
    with pytest.raises(ValueError, match="its weight is quantized, Coded of torch.float32"):
        keep_zeros(model)
