"""Recurrent language models.

The file imports nothing of this repository: an exported model carries a copy of it, so that
``AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)`` works anywhere.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import relu
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput


class GRUConfig(PretrainedConfig):
    """Sizes of a language model with one gated recurrent unit."""

    model_type = "gru_lm"

    def __init__(
        self,
        vocab_size: int = 257,
        embedding_size: int = 128,
        hidden_size: int = 512,
        readout_sizes=(256, 128),
        max_position_embeddings: int = 512,
        **kwargs,
    ) -> None:
        self.vocab_size = vocab_size
        self.embedding_size = embedding_size
        self.hidden_size = hidden_size
        self.readout_sizes = list(readout_sizes)
        self.max_position_embeddings = max_position_embeddings
        super().__init__(**kwargs)


class GRU(nn.Module):
    """Gated recurrent unit (Cho et al. 2014) as in ``torch.nn.GRU``, made of two linear layers.

    As linear layers its weights can be masked, and what multiplies by them is counted::

        r, z, n = input(x) and recurrent(h), a third each
        h <- (1 - z) * tanh(n_x + r * n_h) + z * h,   r = sigmoid(r_x + r_h), z = sigmoid(z_x + z_h)
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.input = nn.Linear(input_size, 3 * hidden_size)
        self.recurrent = nn.Linear(hidden_size, 3 * hidden_size)

    def forward(self, inputs: Tensor) -> Tensor:
        """States (B, T, H) of inputs (B, T, E); the first state is zero."""
        hidden_size = self.recurrent.in_features
        state, states = inputs.new_zeros(inputs.shape[0], hidden_size), []
        for step in self.input(inputs).unbind(1):
            gates_x, new_x = step.split((2 * hidden_size, hidden_size), 1)
            gates_h, new_h = self.recurrent(state).split((2 * hidden_size, hidden_size), 1)
            reset, update = torch.sigmoid(gates_x + gates_h).chunk(2, 1)
            new = torch.tanh(torch.addcmul(new_x, reset, new_h))
            state = torch.lerp(new, state, update)
            states.append(state)
        return torch.stack(states, 1)


class GRUForCausalLM(PreTrainedModel):
    """Embedding, one GRU, linear layers with ReLU, and a head, as in Evci et al. 2020, section 4.2.

    Weights start uniform within one over the root of their inputs, biases at zero.
    """

    config_class = GRUConfig
    main_input_name = "input_ids"

    def __init__(self, config: GRUConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.embedding_size)
        self.gru = GRU(config.embedding_size, config.hidden_size)
        sizes = [config.hidden_size, *config.readout_sizes]
        self.readout = nn.ModuleList(
            nn.Linear(before, after) for before, after in zip(sizes, sizes[1:], strict=False)
        )
        self.lm_head = nn.Linear(sizes[-1], config.vocab_size)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            bound = module.in_features**-0.5
            nn.init.uniform_(module.weight, -bound, bound)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight)

    def forward(self, input_ids: Tensor, **_) -> CausalLMOutput:
        """Logits (B, T, V) of tokens (B, T), each from the tokens before it."""
        hidden = self.gru(self.embed_tokens(input_ids))
        for layer in self.readout:
            hidden = relu(layer(hidden))
        return CausalLMOutput(logits=self.lm_head(hidden))


AutoConfig.register(GRUConfig.model_type, GRUConfig)
AutoModelForCausalLM.register(GRUConfig, GRUForCausalLM)
GRUConfig.register_for_auto_class()
GRUForCausalLM.register_for_auto_class("AutoModelForCausalLM")
