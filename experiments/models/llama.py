"""Llama-style decoder of transformers, built from a config (Touvron et al. 2023)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import PositiveInt, model_validator

from experiments.errors import UserError
from experiments.strict import Strict

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Config(Strict):
    """Sizes of the decoder; ``hidden_size`` must be a multiple of ``2 * num_heads``.

    Weights start as transformers has them, normal with a deviation of 0.02, or as PyTorch has them:
    embeddings standard normal, linear layers uniform within ``fan_in ** -0.5``. At these widths the
    former lets a dense model learn nothing but token frequencies for its first hundred steps.
    """

    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_layers: PositiveInt
    num_heads: PositiveInt
    tie_embeddings: bool = False
    initialization: Literal["transformers", "torch"] = "transformers"

    @model_validator(mode="after")
    def heads_divide_width(self) -> Config:
        """Rotary embeddings rotate pairs, so each head's width must be even."""
        if self.hidden_size % (2 * self.num_heads):
            raise UserError(
                f"hidden_size is {self.hidden_size}; it must be a multiple of "
                f"2 * num_heads = {2 * self.num_heads}"
            )
        return self


def build(config: Config, *, vocab_size: int, context: int, eos_id: int) -> PreTrainedModel:
    """A randomly initialised ``LlamaForCausalLM``; draws from torch's global generator.

    Args:
        vocab_size: rows of the embedding and of the head.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    from experiments.models import _initial
    from experiments.models._attention import ATTENTION

    start = {"transformers": LlamaForCausalLM, "torch": _initial.LlamaForCausalLM}
    model = start[config.initialization](
        LlamaConfig(
            vocab_size=vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_heads,
            max_position_embeddings=context,
            tie_word_embeddings=config.tie_embeddings,
            bos_token_id=eos_id,
            eos_token_id=eos_id,
            attention_dropout=0.0,
            use_cache=False,
        )
    )
    model.set_attn_implementation(ATTENTION)
    return model
