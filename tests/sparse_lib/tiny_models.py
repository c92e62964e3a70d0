"""Tiny models of transformers, one of each family, whose sizes a test may change."""

import torch
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    ResNetConfig,
    ResNetForImageClassification,
)


def gpt2(**sizes):
    known = {"n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 11, "n_positions": 16}
    no_dropout = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(**{**known, **no_dropout, **sizes}))


def llama(**sizes):
    known = {"num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 12, "vocab_size": 11}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**{**known, **heads, **sizes}))


def mixtral(**sizes):
    known = {"num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 4, "vocab_size": 11}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 4}
    return MixtralForCausalLM(MixtralConfig(**{**known, **heads, **sizes}))


def gpt_on_meta(num_layers=2, hidden_size=64, num_heads=2):
    """GPT-2 for 2,048 tokens of the published vocabulary, without memory."""
    sizes = {"n_layer": num_layers, "n_embd": hidden_size, "n_head": num_heads}
    with torch.device("meta"):
        return GPT2LMHeadModel(GPT2Config(**sizes, n_positions=2048))


def resnet(*, cifar=False, **sizes):
    """Two stages; with ``cifar``, the stem for images of 32 x 32."""
    known = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
    config = ResNetConfig(**{**known, "layer_type": "basic", "num_labels": 5, **sizes})
    model = ResNetForImageClassification(config)
    if cifar:
        width = config.embedding_size
        model.resnet.embedder.embedder.convolution = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        model.resnet.embedder.pooler = nn.Identity()
    return model
