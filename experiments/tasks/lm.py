"""Causal language modelling on packed sequences.

Shape suffixes: B sequences, T tokens of context.
"""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, field_validator

from experiments import data as datasets
from experiments import models, tasks
from experiments.data.base import MAX_VOCABULARY, MIN_VOCABULARY
from experiments.errors import UserError
from experiments.strict import Betas

if TYPE_CHECKING:
    import torch

    from experiments.data import Corpus
    from experiments.specs.run import RunSpec

EVALUATION = "experiments.evaluation.lm.evaluate"

#: Of one forward pass of a validation: windows, and logits (half a gigabyte in float32).
MOST_WINDOWS, MOST_LOGITS = 32, 2**27


class Data(tasks.Data):
    """A registered dataset and how it is cut into tokens."""

    vocab_size: int = Field(
        ge=MIN_VOCABULARY, le=MAX_VOCABULARY, description="tokens in the vocabulary"
    )
    context: int = Field(ge=2, description="tokens per training sequence")
    tokenizer: str | None = Field(
        None,
        description="name of a text dataset whose own it shares; else one is trained on the data",
        exclude_if=lambda value: value is None,
    )

    KIND = "text"

    @field_validator("tokenizer")
    @classmethod
    def is_of_a_dataset(cls, tokenizer: str | None) -> str | None:
        """The name is that of a text dataset."""
        if tokenizer is not None:
            try:
                datasets.get(tokenizer, cls.KIND)
            except ValueError:
                raise UserError(
                    f"data.tokenizer is {tokenizer!r}, but must be the name of a text dataset"
                ) from None
        return tokenizer

    @property
    def label(self) -> str:
        """Folder name under ``resources/data``."""
        own = f"{self.name}-v{self.vocab_size}"
        return f"{own}-{self.tokenizer}" if self.tokenizer else own


class Recipe(tasks.Recipe):
    """AdamW, warm-up, cosine decay, clipping, on a number of tokens."""

    tokens: PositiveInt = Field(description="training tokens of a run")
    betas: Betas = (0.9, 0.95)
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.1
    clip_norm: PositiveFloat = 1.0
    validation_tokens: PositiveInt = Field(
        65536, description="tokens of each validation pass on the way"
    )
    final_validation_tokens: PositiveInt | None = Field(
        None, description="tokens of the last pass; None takes the whole split"
    )

    BUDGET = "tokens"

    def num_steps(self, data: Data, batch_size: int) -> int:
        """As many steps as the tokens allow."""
        steps = self.tokens // (batch_size * data.context)
        if steps < 1:
            raise UserError(
                f"recipe.tokens is {self.tokens}, but one step takes "
                f"{batch_size * data.context} tokens"
            )
        return steps


def prepare(data: Data, *, out: Path, offline: bool) -> None:
    """Turn text into tokens."""
    datasets.prepare(
        data.name, out=out, offline=offline, vocab_size=data.vocab_size, tokenizer=data.tokenizer
    )


class Task(tasks.Task):
    """Packed windows of one token stream; next-token cross-entropy."""

    unit = "tokens"
    recipe: Recipe

    def __init__(self, spec: RunSpec, data_dir: Path) -> None:
        super().__init__(spec, data_dir)
        self.corpus = cast("Corpus", datasets.load(data_dir))
        data: Data = spec.data  # type: ignore[assignment]
        self.data = {"name": data.name, "hash": self.corpus.meta["hash"]}
        self.context = data.context
        self.input_size = {"sequence_length": self.context}
        self.units_per_step = self.batch_size * self.context
        self._train = self.corpus.tokens("train")
        for split, name in (("train", "training"), ("validation", "validation")):
            if (num_tokens := len(self.corpus.tokens(split))) <= self.context:
                raise UserError(
                    f"data.context is {self.context}, but the {name} split of {data.name} has "
                    f"only {num_tokens} tokens"
                )
        num_windows = (len(self._train) - 1) // self.context
        self._order = tasks.EpochOrder(num_windows, seed=spec.seed)

    def build_model(self) -> torch.nn.Module:
        """The model with fresh weights from torch's global generator."""
        return models.get(self.spec.model.name).build(
            self.spec.model.config,
            vocab_size=self.corpus.meta["vocab_size"],
            context=self.context,
            eos_id=self.corpus.meta.get("eos_id", 0),
        )

    def check_start(self, folder: Path) -> None:
        """The vocabularies must be equal."""
        files = (folder / "tokenizer.json", Path(self.corpus.tokenizer_dir) / "tokenizer.json")
        if all(file.is_file() for file in files) and len({f.read_bytes() for f in files}) > 1:
            assert self.spec.starts_from is not None
            raise UserError(
                f"data.name is {self.spec.data.name}, whose tokenizer differs from that of the run "
                f"{self.spec.starts_from.run}, with which {self.spec.id} starts"
            )

    def batch(self, step: int) -> torch.Tensor:
        """Token windows of optimizer step ``step`` (from 0), shape (B, T + 1), int64."""
        import numpy as np
        import torch

        first = step * self.batch_size
        chosen = [self._order[index] for index in range(first, first + self.batch_size)]
        starts = np.array(chosen)[:, None] * self.context
        return torch.from_numpy(self._train[starts + np.arange(self.context + 1)].astype(np.int64))

    def loss(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        """Mean next-token cross-entropy in nats, a scalar."""
        from torch.nn.functional import cross_entropy

        logits = model(input_ids=batch[:, :-1]).logits
        return cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    def validate(self, model: torch.nn.Module, *, full: bool) -> dict[str, float]:
        """Loss (nats per token) and perplexity on the head of the validation split.

        Windows of T tokens without overlap.
        """
        import numpy as np
        import torch
        from torch.nn.functional import cross_entropy

        tokens = self.corpus.tokens("validation")
        num_windows = (len(tokens) - 1) // self.context
        recipe = self.recipe
        limit = recipe.final_validation_tokens if full else recipe.validation_tokens
        if limit is not None:
            num_windows = min(num_windows, max(1, limit // self.context))
        total, device = 0.0, next(model.parameters()).device
        logits_per_window = self.context * int(self.corpus.meta["vocab_size"])
        at_once = max(1, min(MOST_WINDOWS, MOST_LOGITS // logits_per_window))
        for first in range(0, num_windows, at_once):
            last = min(first + at_once, num_windows)
            chunk = np.asarray(tokens[first * self.context : last * self.context + 1], np.int64)
            ids = torch.from_numpy(chunk).to(device)
            inputs, targets = ids[:-1].view(last - first, -1), ids[1:]
            logits = model(input_ids=inputs).logits.flatten(0, 1)
            total += cross_entropy(logits, targets, reduction="sum").item()
        loss = total / (num_windows * self.context)
        return {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}

    def export(self, model: torch.nn.Module, folder: Path) -> None:
        """A folder that ``AutoModelForCausalLM`` and ``AutoTokenizer`` load."""
        tasks.save_pretrained(model, folder)
        for path in Path(self.corpus.tokenizer_dir).iterdir():
            shutil.copy(path, folder / path.name)
