"""Translation by an encoder-decoder: sentences of a pair apart, cross-entropy on the second alone.

A document of the dataset is a pair: a line to read and a line to write. Shape suffixes: B pairs, S
tokens of the longest line to read of a batch, its line break included, T of the longest line to
write, its end included.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from experiments import models, tasks
from experiments.errors import UserError
from experiments.tasks import lm

if TYPE_CHECKING:
    import numpy as np
    import torch

    from experiments.specs.run import RunSpec
    from sparse_lib.flops.model import ModelFlops

prepare, EVALUATION = lm.prepare, lm.EVALUATION

#: In place of a token that is not there and not predicted.
ABSENT = -100


class Data(lm.Data):
    """A registered dataset of pairs."""

    context: int = Field(ge=2, description="longest line in tokens; longer ones are left out")


class Recipe(tasks.Recipe):
    """AdamW, warm-up, cosine decay, clipping and label smoothing, on a number of pairs."""

    sentences: PositiveInt = Field(description="training pairs of a run, with repetitions")
    betas: tuple[float, float] = (0.9, 0.98)
    eps: PositiveFloat = 1e-9
    weight_decay: NonNegativeFloat = 0.01
    clip_norm: PositiveFloat = 1.0
    label_smoothing: float = Field(0.1, ge=0, lt=1)

    BUDGET = "sentences"
    #: Encoder-decoders start as their model's file says.
    parameterization: ClassVar[None] = None

    def num_steps(self, data: Data, batch_size: int) -> int:
        """As many steps as the pairs allow."""
        if self.sentences < batch_size:
            raise UserError(
                f"recipe.sentences is {self.sentences}, but one step takes {batch_size} pairs"
            )
        return self.sentences // batch_size


class Task(lm.Task):
    """Pairs of lines, padded to the longest of their batch."""

    unit = "sentences"
    metrics = (
        tasks.Metric("loss", higher_is_better=False, label="loss (nats per token)"),
        tasks.Metric("perplexity", higher_is_better=False, label="perplexity"),
    )
    recipe: Recipe  # type: ignore[assignment]

    def __init__(self, spec: RunSpec, data_dir: Path) -> None:
        super().__init__(spec, data_dir)
        self.input_size = {}
        self.units_per_step = self.batch_size

    def _read_samples(self) -> None:
        """Pairs of the training split, their mean lengths, and their order."""
        import numpy as np

        self._end = int(self.corpus.meta["eos_id"])
        self._pairs = self._short_pairs("train")
        self._short_pairs("validation", 256)
        self._order = tasks.EpochOrder(len(self._pairs), seed=self.spec.seed)
        lengths = np.array([[len(line) for line in pair] for pair in self._pairs])
        self._mean_lengths = [math.ceil(length) for length in lengths.mean(0)]

    def _short_pairs(
        self, split: str, most: int | None = None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Pairs of the first ``most`` (None: of all) that the context holds."""
        found = [p for p in self.pairs(split)[:most] if max(map(len, p)) <= self.context]
        if not found:
            raise UserError(
                f"data.context is {self.context}, but no pair of {self.data_name}'s {split} split "
                "is as short"
            )
        return found

    def pairs(self, split: str) -> list[tuple[np.ndarray, np.ndarray]]:
        """The lines of each pair as tokens: up to the line break, and from there to the end.

        Raises:
            UserError: if a document is no pair of lines.
        """
        import numpy as np

        tokens = np.asarray(self.corpus.tokens(split), np.int64)
        ends = np.flatnonzero(tokens == self._end) + 1
        line_break = self._line_break()
        found = []
        for document in np.split(tokens, ends)[:-1]:
            places = np.flatnonzero(document == line_break)
            if len(places) != 1:
                raise UserError(
                    f"data.name is {self.data_name}, but a document of its {split} split has "
                    f"{len(places) + 1} lines in place of two"
                )
            cut = int(places[0]) + 1
            found.append((document[:cut], document[cut:]))
        return found

    def _line_break(self) -> int:
        from experiments.data import tokenizer

        (token,) = tokenizer.load(Path(self.corpus.tokenizer_dir)).encode("\n").ids
        return token

    def flops(self, model: torch.nn.Module) -> ModelFlops:
        """FLOPs of one optimizer step's batch of pairs of the mean length."""
        import torch

        from sparse_lib.flops.model import count

        size = self.recipe.batch_size
        reads, writes = (torch.zeros(size, n, dtype=torch.long) for n in self._mean_lengths)
        inputs = {"input_ids": reads, "attention_mask": reads + 1, "decoder_input_ids": writes}
        return count(model, batch_size=size, inputs=inputs)

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        """Lines to read (B, S) and to write (B, T) of optimizer step ``step`` (from 0), int64."""
        first = step * self.batch_size
        return self._padded(
            [self._pairs[self._order[i]] for i in range(first, first + self.batch_size)]
        )

    @staticmethod
    def _padded(pairs: list[tuple[np.ndarray, np.ndarray]]) -> tuple[torch.Tensor, torch.Tensor]:
        import torch
        from torch.nn.utils.rnn import pad_sequence

        reads, writes = (
            pad_sequence([torch.from_numpy(line) for line in side], True, ABSENT)
            for side in zip(*pairs, strict=True)
        )
        return reads, writes

    def loss(  # type: ignore[override]
        self, model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        """Mean cross-entropy of the tokens to write in nats, smoothed in training, a scalar."""
        return self._loss(model, batch, "mean", self.recipe.label_smoothing)

    def _loss(
        self,
        model: torch.nn.Module,
        batch: tuple[torch.Tensor, torch.Tensor],
        reduction: str,
        smoothing: float,
    ) -> torch.Tensor:
        from torch.nn.functional import cross_entropy, pad

        reads, writes = batch
        before = pad(writes[:, :-1], (1, 0), value=self._end)  # the end begins a translation
        logits = model(
            input_ids=reads.masked_fill(reads == ABSENT, self._end),
            attention_mask=(reads != ABSENT).long(),
            decoder_input_ids=before.masked_fill(before == ABSENT, self._end),
        ).logits
        return cross_entropy(
            logits.flatten(0, 1),
            writes.flatten(),
            ignore_index=ABSENT,
            reduction=reduction,
            label_smoothing=smoothing,
        )

    def validate(self, model: torch.nn.Module, *, full: bool) -> dict[str, float]:
        """Loss (nats per token to write) and perplexity: all pairs at the end, 256 on the way."""
        pairs = self._short_pairs("validation", None if full else 256)
        total, device = 0.0, next(model.parameters()).device
        for first in range(0, len(pairs), 32):
            reads, writes = (part.to(device) for part in self._padded(pairs[first : first + 32]))
            total += self._loss(model, (reads, writes), "sum", 0.0).item()
        loss = total / sum(len(written) for _, written in pairs)
        return {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}

    def build_model(self) -> torch.nn.Module:
        """The model with fresh weights from torch's global generator."""
        return models.get(self.spec.model.name).build(
            self.spec.model.config,
            vocab_size=self.corpus.meta["vocab_size"],
            context=self.context,
            eos_id=self._end,
        )
