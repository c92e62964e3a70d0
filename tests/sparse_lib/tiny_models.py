"""Tiny models of transformers, one of each family, whose sizes a test may change."""

from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
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
