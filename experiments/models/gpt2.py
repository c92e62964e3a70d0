"""GPT-2 of transformers, built from a config (Radford et al. 2019); GPT-3's small sizes too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, PositiveInt, model_validator

from experiments.errors import UserError
from experiments.strict import Strict

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Config(Strict):
    """Sizes of the decoder; ``hidden_size`` must be a multiple of ``num_heads``."""

    hidden_size: PositiveInt
    num_layers: PositiveInt
    num_heads: PositiveInt
    intermediate_size: PositiveInt | None = Field(None, description="None is 4 x hidden_size")
    tie_embeddings: bool = Field(True, description="whether head and embedding share weights")
    init_std: float = Field(0.02, gt=0, le=1, description="deviation of the initial weights")
    positions: Literal["random", "sinusoidal"] = Field("random", description="as training starts")

    @model_validator(mode="after")
    def heads_divide_width(self) -> Config:
        """Each head has the same width."""
        if self.hidden_size % self.num_heads:
            raise UserError(
                f"hidden_size is {self.hidden_size}; it must be a multiple of "
                f"num_heads = {self.num_heads}"
            )
        return self


def build(config: Config, *, vocab_size: int, context: int, eos_id: int) -> PreTrainedModel:
    """A randomly initialised ``GPT2LMHeadModel``; draws from torch's global generator.

    Args:
        context: longest sequence in tokens, the number of learned positions.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    from experiments.models import _initial
    from experiments.models._attention import ATTENTION

    start = {"random": GPT2LMHeadModel, "sinusoidal": _initial.GPT2LMHeadModel}
    model = start[config.positions](
        GPT2Config(
            vocab_size=vocab_size,
            n_positions=context,
            n_embd=config.hidden_size,
            n_layer=config.num_layers,
            n_head=config.num_heads,
            n_inner=config.intermediate_size,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            tie_word_embeddings=config.tie_embeddings,
            initializer_range=config.init_std,
            bos_token_id=eos_id,
            eos_token_id=eos_id,
            use_cache=False,
        )
    )
    model.set_attn_implementation(ATTENTION)
    return model
