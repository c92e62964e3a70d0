"""A language model without attention: a multilayer perceptron on the last tokens.

The file imports nothing of this repository: an exported model carries a copy of it, so that
``AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)`` works anywhere.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad, relu
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput


class WindowMLPConfig(PretrainedConfig):
    """Sizes of the model."""

    model_type = "window_mlp"

    def __init__(
        self,
        vocab_size: int = 257,
        window: int = 16,
        embedding_size: int = 32,
        hidden_size: int = 512,
        num_layers: int = 2,
        max_position_embeddings: int = 128,
        **kwargs,
    ) -> None:
        self.vocab_size = vocab_size
        self.window = window
        self.embedding_size = embedding_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.max_position_embeddings = max_position_embeddings
        super().__init__(**kwargs)


class WindowMLPForCausalLM(PreTrainedModel):
    """Embeddings of the last tokens side by side, hidden layers of one width, and a head.

    Layers after the first are residual, each on its normalised input. Tokens before the beginning
    of a sequence count as zero vectors.
    """

    config_class = WindowMLPConfig

    def __init__(self, config: WindowMLPConfig) -> None:
        super().__init__(config)
        width, size = config.hidden_size, config.embedding_size
        self.embed_tokens = nn.Embedding(config.vocab_size, size)
        inputs = [config.window * size] + [width] * (config.num_layers - 1)
        self.layers = nn.ModuleList(nn.Linear(number, width) for number in inputs)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in inputs)
        self.lm_head = nn.Linear(width, config.vocab_size)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        # Linear layers keep what torch draws: uniform, by their number of inputs.
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.5)

    def get_input_embeddings(self) -> nn.Module:
        """The table of tokens."""
        return self.embed_tokens

    def get_output_embeddings(self) -> nn.Module:
        """The head."""
        return self.lm_head

    def forward(self, input_ids: Tensor, labels: Tensor | None = None, **_) -> CausalLMOutput:
        """Logits (B, T, V) of tokens (B, T); with ``labels`` also the mean loss."""
        num_tokens, window = input_ids.shape[1], self.config.window
        embedded = pad(self.embed_tokens(input_ids), (0, 0, window - 1, 0))
        seen = torch.cat([embedded[:, i : i + num_tokens] for i in range(window)], -1)
        hidden = relu(self.layers[0](seen))
        for linear, norm in zip(self.layers[1:], self.norms[:-1], strict=True):
            hidden = hidden + relu(linear(norm(hidden)))
        logits = self.lm_head(self.norms[-1](hidden))
        loss = None
        if labels is not None:
            loss = cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return CausalLMOutput(loss=loss, logits=logits)


AutoConfig.register(WindowMLPConfig.model_type, WindowMLPConfig)
AutoModelForCausalLM.register(WindowMLPConfig, WindowMLPForCausalLM)
WindowMLPConfig.register_for_auto_class()
WindowMLPForCausalLM.register_for_auto_class("AutoModelForCausalLM")
