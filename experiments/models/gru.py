"""Recurrent language model: one GRU between an embedding and a readout (Evci et al. 2020).

The source's has an embedding of 128, 512 units, a readout of 256 and 128, and characters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, PositiveInt

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Config(BaseModel):
    """Sizes of the network."""

    model_config = ConfigDict(extra="forbid")

    embedding_size: PositiveInt
    hidden_size: PositiveInt
    readout_sizes: list[PositiveInt] = []


def build(config: Config, *, vocab_size: int, context: int, eos_id: int) -> PreTrainedModel:
    """A randomly initialised model; draws from torch's global generator.

    Args:
        config: sizes.
        vocab_size: rows of the embedding.
        context: tokens per sequence, each of which starts from a state of zeros.
        eos_id: id of the end-of-document token.
    """
    from experiments.models._recurrent import GRUConfig, GRUForCausalLM

    return GRUForCausalLM(
        GRUConfig(
            vocab_size=vocab_size,
            embedding_size=config.embedding_size,
            hidden_size=config.hidden_size,
            readout_sizes=config.readout_sizes,
            max_position_embeddings=context,
            bos_token_id=eos_id,
            eos_token_id=eos_id,
        )
    )
