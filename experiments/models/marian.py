"""Encoder-decoder transformer of transformers, built from a config (Vaswani et al. 2017).

Sinusoidal positions, normalisation after each block, one embedding for both sides and the head.
Weights start with a variance of one over the width, so that scaled embeddings are as large as
positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TASK = "translation"


class Config(BaseModel):
    """Sizes of the encoder, which are those of the decoder too."""

    model_config = ConfigDict(extra="forbid")

    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_layers: PositiveInt = Field(description="of the encoder, and as many of the decoder")
    num_heads: PositiveInt
    dropout: float = Field(0.1, ge=0, lt=1)

    @model_validator(mode="after")
    def heads_divide_width(self) -> Config:
        """Each head has as many channels, and sines and cosines share them."""
        if self.hidden_size % self.num_heads or self.hidden_size % 2:
            raise ValueError(
                f"hidden_size is {self.hidden_size}; it must be even and a multiple of "
                f"num_heads = {self.num_heads}"
            )
        return self


def build(config: Config, *, vocab_size: int, context: int, eos_id: int) -> PreTrainedModel:
    """A randomly initialised ``MarianMTModel``; draws from torch's global generator.

    Args:
        config: sizes.
        vocab_size: rows of the embedding.
        context: longest sentence in tokens.
        eos_id: id of the end-of-document token, which pads and begins a translation too.
    """
    from transformers import MarianConfig, MarianMTModel

    return MarianMTModel(
        MarianConfig(
            vocab_size=vocab_size,
            max_position_embeddings=context,
            d_model=config.hidden_size,
            encoder_layers=config.num_layers,
            decoder_layers=config.num_layers,
            encoder_attention_heads=config.num_heads,
            decoder_attention_heads=config.num_heads,
            encoder_ffn_dim=config.intermediate_size,
            decoder_ffn_dim=config.intermediate_size,
            activation_function="relu",
            dropout=config.dropout,
            attention_dropout=0.0,
            scale_embedding=True,
            init_std=config.hidden_size**-0.5,
            pad_token_id=eos_id,
            eos_token_id=eos_id,
            decoder_start_token_id=eos_id,
            forced_eos_token_id=None,
            use_cache=False,
        )
    )
