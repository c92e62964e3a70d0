"""A small GPT."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

LINEARS = ("qkv", "out", "up", "down")


class Block(nn.Module):
    """A transformer block with 64 features per head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, context, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(batch, context, 3, -1, 64)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).reshape(batch, context, width))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Gpt(nn.Module):
    """Four blocks between byte embeddings and a head."""

    def __init__(self, width: int, context: int = 128) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(4)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.bytes(ids) + self.places.weight
        return self.head(self.norm(self.blocks(x)))
