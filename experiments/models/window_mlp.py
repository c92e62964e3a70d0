"""Language model of the last tokens alone: their embeddings, then a multilayer perceptron.

After Bengio et al., "A neural probabilistic language model" (JMLR 2003), with ReLU, layer norms and
residual hidden layers. Nearly all of its step are matrix products, so it is fast where a
transformer's other operations would take most of the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, PositiveInt

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Config(BaseModel):
    """Sizes of the model."""

    model_config = ConfigDict(extra="forbid")

    window: PositiveInt
    embedding_size: PositiveInt
    hidden_size: PositiveInt
    num_layers: PositiveInt

    @property
    def block_weights(self) -> int:
        """Weights of the matrices between embedding and head: all that studies make sparse."""
        inputs = self.window * self.embedding_size + (self.num_layers - 1) * self.hidden_size
        return inputs * self.hidden_size


def build(config: Config, *, vocab_size: int, context: int, eos_id: int) -> PreTrainedModel:
    """A randomly initialised ``WindowMLPForCausalLM``; draws from torch's global generator.

    Args:
        config: sizes.
        vocab_size: rows of the embedding and of the head.
        context: longest sequence in tokens; the window ends at each of them.
        eos_id: id of the end-of-document token.
    """
    from experiments.models._window_mlp import WindowMLPConfig, WindowMLPForCausalLM

    return WindowMLPForCausalLM(
        WindowMLPConfig(
            vocab_size=vocab_size,
            window=config.window,
            embedding_size=config.embedding_size,
            hidden_size=config.hidden_size,
            num_layers=config.num_layers,
            max_position_embeddings=context,
            bos_token_id=eos_id,
            eos_token_id=eos_id,
        )
    )
