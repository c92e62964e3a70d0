"""Causal language modelling on packed sequences.

Shape suffixes: B sequences, T tokens of context.
"""

from __future__ import annotations

import hashlib
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments import models
from experiments.data import load
from sparse_lib.flops import ModelFlops, count


def epoch_order(num_windows: int, *, seed: int, epoch: int) -> np.ndarray:
    """Order of the packed windows in one epoch: a function of (seed, epoch) only."""
    key = hashlib.sha256(f"order:{seed}:{epoch}".encode()).digest()
    return np.random.default_rng(int.from_bytes(key[:8], "big")).permutation(num_windows)


class Task:
    """Batches are a function of the step, so a resumed run sees what an uninterrupted one sees.

    Args:
        spec: the run's spec (`experiments.plan.make_spec`).
        data_dir: folder of prepared data.
    """

    unit = "tokens"

    def __init__(self, spec: dict[str, Any], data_dir: Path) -> None:
        self.spec = spec
        self.corpus = load(data_dir)
        self.data_name = spec["data"]["name"]
        self.data = {"name": self.data_name, "hash": self.corpus.meta["hash"]}
        if "floor" in self.corpus.meta:
            # Known exactly for generated text: no model can be below it on average.
            self.data["floor_nats_per_token"] = self.corpus.meta["floor_of_split"]["validation"]
        self.context = spec["data"]["context"]
        self.batch_size = spec["recipe"]["batch_size"]
        self.units_per_step = self.batch_size * self.context
        self._train = self.corpus.tokens("train")
        self._num_windows = (len(self._train) - 1) // self.context
        if self._num_windows < 1:
            raise ValueError(
                f"data.context is {self.context}, but the training split of {self.data_name} has "
                f"only {len(self._train)} tokens"
            )
        self._epoch = -1
        self._order = np.empty(0, dtype=np.int64)

    def build_model(self) -> torch.nn.Module:
        """The model with fresh weights from torch's global generator."""
        module = models.get(self.spec["model"]["name"])
        sizes = {k: v for k, v in self.spec["model"].items() if k not in ("name", "label")}
        return module.build(
            module.Config.model_validate(sizes),
            vocab_size=self.corpus.meta["vocab_size"],
            context=self.context,
            eos_id=self.corpus.meta.get("eos_id", 0),
        )

    def flops(self, model: torch.nn.Module) -> ModelFlops:
        """FLOPs of one optimizer step's batch."""
        return count(model, batch_size=self.batch_size, sequence_length=self.context)

    def batch(self, step: int) -> torch.Tensor:
        """Token windows of optimizer step ``step`` (from 0), shape (B, T + 1), int64."""
        first = step * self.batch_size
        return torch.stack([self._window(i) for i in range(first, first + self.batch_size)])

    def _window(self, index: int) -> torch.Tensor:
        epoch, position = divmod(index, self._num_windows)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = epoch_order(self._num_windows, seed=self.spec["seed"], epoch=epoch)
        start = int(self._order[position]) * self.context
        return torch.from_numpy(self._train[start : start + self.context + 1].astype(np.int64))

    def loss(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        """Mean next-token cross-entropy in nats, a scalar."""
        logits = model(input_ids=batch[:, :-1]).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    @torch.no_grad()
    def validate(self, model: torch.nn.Module, *, max_units: int | None) -> dict[str, float]:
        """Loss (nats per token) and perplexity on the head of the validation split.

        Windows of T tokens without overlap; ``max_units=None`` takes the whole split.
        """
        tokens = self.corpus.tokens("validation")
        num_windows = (len(tokens) - 1) // self.context
        if max_units is not None:
            num_windows = min(num_windows, max(1, max_units // self.context))
        total, device = 0.0, next(model.parameters()).device
        was_training = model.training
        model.eval()
        for first in range(0, num_windows, 32):
            last = min(first + 32, num_windows)
            chunk = np.asarray(tokens[first * self.context : last * self.context + 1], np.int64)
            ids = torch.from_numpy(chunk).to(device)
            inputs, targets = ids[:-1].view(last - first, -1), ids[1:]
            logits = model(input_ids=inputs).logits.flatten(0, 1)
            total += torch.nn.functional.cross_entropy(logits, targets, reduction="sum").item()
        model.train(was_training)
        loss = total / (num_windows * self.context)
        return {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}

    def export(self, model: torch.nn.Module, folder: Path) -> None:
        """A folder that ``AutoModelForCausalLM`` and ``AutoTokenizer`` load."""
        from transformers.utils import logging

        logging.disable_progress_bar()
        buffers = {name for name, _ in model.named_buffers() if name.endswith("_mask")}
        weights = {k: v for k, v in model.state_dict().items() if k not in buffers}
        model.save_pretrained(folder, state_dict=weights)  # type: ignore[operator]
        for path in Path(self.corpus.tokenizer_dir).iterdir():
            shutil.copy(path, folder / path.name)
