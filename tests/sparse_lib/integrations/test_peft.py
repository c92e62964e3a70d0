"""LoRA of peft on a pruned transformers model: what is merged is what was trained, and sparse."""

import gc

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("peft", reason="peft is not installed")

from peft import AdaLoraConfig, LoHaConfig, LoraConfig, get_peft_model

import sparse_lib as sl
from sparse_lib.integrations.peft import keep_zeros
from tests.cases import descend
from tests.sparse_lib import tiny_models
from tests.sparse_lib.integrations.test_transformers import make_mixtral, make_model


def pruned(model=None):
    model = make_model() if model is None else model
    sl.configure({"sparsity": 0.7, "init_method": "topk"}).apply(model)
    sl.finalize(model)
    return model


def adapted(model, **options):
    torch.manual_seed(1)
    config = LoraConfig(r=2, target_modules=["q_proj", "up_proj", "down_proj"], **options)
    return get_peft_model(model, config)


def zeros_of(model):
    return {n: p == 0 for n, p in model.named_parameters() if "proj" in n}


def kept(merged, zeros):
    """Whether a merged model has the zeros of its base."""
    found = dict(merged.named_parameters())
    return all(not found[name][where].any() for name, where in zeros.items())


TOKENS = torch.randint(0, 24, (4, 8), generator=torch.Generator().manual_seed(2))


def merged_alike(model):
    """The merged model, which computes what the model does."""
    model.eval()
    with torch.no_grad():
        before, merged = model(input_ids=TOKENS).logits, model.merge_and_unload()
        torch.testing.assert_close(before, merged(input_ids=TOKENS).logits)
    return merged


def trained(model, steps):
    """The losses of some steps of the adapters."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 0.05)
    losses = []
    for _ in range(steps):
        descend(optimizer, loss := model(input_ids=TOKENS, labels=TOKENS).loss)
        losses.append(loss.item())
    return losses


def test_merged_adapters_keep_the_zeros_and_the_function():
    base = pruned()
    zeros = zeros_of(base)
    model = adapted(base)
    group = keep_zeros(model)
    assert len(group.sparse_params) == 7 and not any("lora_" in n for n in group.sparse_params)
    losses = trained(model, 8)
    assert losses[-1] < losses[0] - 0.1
    merged = merged_alike(model)
    assert kept(merged, zeros)
    before, after = (dict(m.named_parameters()) for m in (pruned(), merged))
    assert sum(not torch.equal(after[name], before[name]) for name in zeros) == 3


def test_masks_of_the_base_are_kept_and_adapters_of_dense_weights_left_alone():
    base = pruned()
    zeros = zeros_of(base)
    group = sl.keep_zeros(base)
    model = adapted(base, init_lora_weights=False)
    assert keep_zeros(model) is group
    assert kept(model.merge_and_unload(), zeros)
    base = pruned()
    with torch.no_grad():
        base.model.embed_tokens.weight[0] = 0  # as of a token for padding
    config = LoHaConfig(r=2, target_modules=["v_proj"])
    base.model.layers[0].self_attn.v_proj.weight.data.fill_(1.0)
    model = get_peft_model(base, config)
    assert len(keep_zeros(model).sparse_params) == 6
    config = LoraConfig(r=2, target_modules=["embed_tokens", "up_proj"])
    assert len(keep_zeros(get_peft_model(pruned(), config)).sparse_params) == 7


@pytest.mark.parametrize("drives", [False, True])
def test_dense_adapters_of_masked_weights_are_told(drives):
    base = make_model()
    group = sl.configure({"sparsity": 0.7, "seed": 0})
    group.apply(base)
    if drives:
        group.apply(torch.optim.SGD(base.parameters(), 0.1))
    base(input_ids=TOKENS)
    model = adapted(base, init_lora_weights=False)
    with pytest.warns(UserWarning, match=r"adapters of 'model\.layers\.0.* are dense"):
        model(input_ids=TOKENS)
    assert keep_zeros(model) is group
    merged = merged_alike(model)
    assert kept(merged, {n: ~s.mask for n, s in group.sparse_params.items()})


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
    assert kept(merged_alike(model), zeros)


LOHA = LoHaConfig(r=2, target_modules=["up_proj"])
ADALORA = AdaLoraConfig(target_modules=["up_proj"], total_step=10)


@pytest.mark.parametrize(
    ("adapt", "words"),
    [
        (lambda base: get_peft_model(base, LOHA), "of the kind 'loha' cannot be masked"),
        (lambda base: get_peft_model(base, ADALORA), "of the kind 'adalora' cannot be"),
        (lambda base: adapted(base, init_lora_weights="pissa"), "'pissa' .*zeros too"),
        (lambda base: adapted(base, use_dora=True), "of the variant Dora cannot be"),
        (lambda base: adapted(base, alora_invocation_tokens=[1]), "variant ALora cannot"),
        (lambda _: adapted(make_model()), "no weight of the model has zeros"),
    ],
)
def test_what_cannot_be_masked_is_refused(adapt, words):
    model = adapt(pruned())
    for mask in (keep_zeros, sl.keep_zeros):
        said = words if mask is keep_zeros else r"use sparse_lib\.integrations\.peft\.keep_z"
        with pytest.raises(ValueError, match=said):
            mask(model)
    assert not sl.is_sparse(model)


@pytest.mark.parametrize("bias", [False, True])
def test_adapters_of_gpt2_are_masked_too(bias):
    base = pruned(tiny_models.gpt2(vocab_size=24, n_embd=16))
    zeros = base.transformer.h[0].attn.c_attn.weight == 0
    options = {"fan_in_fan_out": True, "init_lora_weights": False, "lora_bias": bias}
    model = get_peft_model(base, LoraConfig(r=2, target_modules=["c_attn"], **options)).eval()
    with torch.no_grad():
        unmasked = model(input_ids=TOKENS).logits
        keep_zeros(model)
        assert not torch.allclose(unmasked, model(input_ids=TOKENS).logits)
    weight = merged_alike(model).transformer.h[0].attn.c_attn.weight
    assert zeros.any() and torch.equal(weight == 0, zeros)


def test_adapters_of_fused_experts_keep_the_zeros_and_the_function():
    base = pruned(make_mixtral())
    zeros = {name: zero for name, zero in zeros_of(base).items() if "experts" in name}
    names = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    config = LoraConfig(r=2, target_modules=["q_proj"], target_parameters=names)
    model = get_peft_model(base, config)
    keep_zeros(model)
    trained(model, 3)
    assert len(zeros) == 2 and kept(merged_alike(model), zeros)


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
    plan = sl.plan(plain, {"sparsity": 0.5, "param_filter": "*weight"})
    assert {p.name: p.sparsity for p in plan.parameters if "weight" in p.name} == {
        "0.weight": 0.0,
        "1.weight": 0.5,
    }
    sl.Static(0.5).apply(plain[1:])
    with pytest.raises(ValueError, match="'weight' has a mask, .*finalize.* before .* quantized"):
        plain[1].weight = Coded(torch.zeros(4, 4))
