"""A trained language model behind lm-eval's interface: its own `HFLM`, quick for small models.

`HFLM` runs each request's row whole and takes the softmax at each of its tokens. A small model
spends most of its time there, so `_loglikelihood_tokens` runs equal rows once, sorted by length,
and the output head only where a token is scored.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partialmethod
from pathlib import Path
from typing import Any

import torch
from lm_eval.models.huggingface import HFLM
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from experiments.errors import UserError, refusals
from experiments.evaluation.exported import read_model, read_tokenizer, skipping
from experiments.machine import keep_memory

#: Logits held at once (elements); fewer rows run together where a batch would have more.
MAX_LOGITS = 2**26


class CausalLM(HFLM):
    """A causal language model and its tokenizer.

    Attributes:
        truncated: contexts of requests whose first tokens did not fit the model.
    """

    def __init__(self, model: Any, tokenizer: Any, *, batch_size: int) -> None:
        if tokenizer.bos_token_id is None and tokenizer.eos_token_id is None:
            raise ValueError("the tokenizer has neither bos_token nor eos_token; scoring needs one")
        super().__init__(model, tokenizer=tokenizer, batch_size=batch_size)
        if self.max_length < 1:
            raise ValueError(f"the model takes {self.max_length} tokens at a time, less than one")
        self.truncated: set[str] = set()

    @classmethod
    def load(cls, folder: Path, *, batch_size: int, dtype: str, execution: str) -> CausalLM:
        """Read an exported model onto the GPU if there is one.

        Args:
            execution: ``auto`` skips the work of zeros where that is faster, ``dense`` never does.
        """
        keep_memory()
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = read_model(folder, AutoModelForCausalLM).to(device, getattr(torch, dtype))
        with refusals(str(folder)):
            return cls(skipping(model, execution), read_tokenizer(folder), batch_size=batch_size)

    loglikelihood = partialmethod(HFLM.loglikelihood, disable_tqdm=True)
    loglikelihood_rolling = partialmethod(HFLM.loglikelihood_rolling, disable_tqdm=True)
    generate_until = partialmethod(HFLM.generate_until, disable_tqdm=True)

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[Any, list[int], list[int]]],
        disable_tqdm: bool = False,
        override_bs: int | None = None,
    ) -> list[tuple[float, bool]]:
        """Log-likelihood (nats) of each request's last tokens; whether all are the likeliest."""
        results = [(0.0, True)] * len(requests)
        rows: dict[tuple[int, ...], list[int]] = {}
        for index, (texts, context, targets) in enumerate(requests):
            whole = context + targets
            if len(whole) > self.max_length + 1 and texts is not None:
                self.truncated.add(texts[0])
            rows.setdefault(tuple(whole[-(self.max_length + 1) : -1]), []).append(index)
        ordered = sorted(rows, key=len, reverse=True)
        while ordered:
            most = MAX_LOGITS // (len(ordered[0]) * self.model.config.vocab_size)
            count = max(1, min(self.batch_size, most))
            batch, ordered = ordered[:count], ordered[count:]
            members = [(at, index) for at, row in enumerate(batch) for index in rows[row]]
            ends = [requests[index][2][-len(batch[at]) :] for at, index in members]
            places = [
                at * len(batch[0]) + place
                for (at, _), tokens in zip(members, ends, strict=True)
                for place in range(len(batch[at]) - len(tokens), len(batch[at]))
            ]
            scores = self._score(batch, places, [token for end in ends for token in end])
            parts = scores.split([len(end) for end in ends])
            for (_, index), part in zip(members, parts, strict=True):
                nats, likeliest = part.double().sum(0).tolist()
                results[index] = (nats, likeliest == len(part))
        return results

    @torch.inference_mode()
    def _score(
        self, batch: Sequence[tuple[int, ...]], places: list[int], targets: list[int]
    ) -> torch.Tensor:
        """Of each target its log-likelihood and 1 where it is the likeliest token, (targets, 2).

        Args:
            batch: rows of tokens, the longest first; padded on the right, where no token looks.
            places: of the targets' predictions in the padded rows, one row after another.
        """
        padded = [[*row, *[0] * (len(batch[0]) - len(row))] for row in batch]
        inputs = torch.tensor(padded, device=self.device)
        wanted, which = torch.tensor(places).unique(return_inverse=True)
        wanted, which = wanted.to(self.device), which.to(self.device)
        head = self.model.get_output_embeddings()
        if head is None:
            logits = self.model(inputs, use_cache=False).logits.flatten(0, 1)[wanted]
        else:
            hook = head.register_forward_pre_hook(
                lambda _, hidden: (hidden[0].flatten(0, 1)[wanted][None],)
            )
            with hook:
                logits = self.model(inputs, use_cache=False).logits[0]
        expected = torch.tensor(targets, device=self.device)
        nats = -cross_entropy(logits[which].float(), expected, reduction="none")
        return torch.stack([nats, (logits.argmax(-1)[which] == expected).float()], 1).cpu()

    def tok_encode(self, string: str, *args: Any, **options: Any) -> list[int]:
        """Tokens of a text; raises `UserError` for one that the model has no embedding of."""
        tokens = super().tok_encode(string, *args, **options)
        size = self.model.get_input_embeddings().weight.shape[0]
        if max(tokens, default=0) >= size:
            raise UserError(
                f"the tokenizer makes token {max(tokens)}, but the model knows {size} tokens only"
            )
        return tokens

    def tok_batch_encode(
        self,
        strings: list[str],
        padding_side: str = "left",
        left_truncate_len: int | None = None,
        truncation: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens of prompts and which of them are no padding; notes the prompts that are cut."""
        longest = left_truncate_len or self.max_length
        self.truncated.update(text for text in strings if len(self.tok_encode(text)) > longest)
        return super().tok_batch_encode(strings, padding_side, left_truncate_len, truncation)
