"""Sparse training with the ``Trainer`` of transformers."""

from __future__ import annotations

import contextlib
import json
import re
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoConfig, TrainerCallback

from sparse_lib.checkpoint import load_checkpoint
from sparse_lib.core.guard import MaskGuard, guards
from sparse_lib.core.parameter import unwrap
from sparse_lib.integrations import common

CONFIG_KEY = "sparse_lib"
_UNEXPECTED = "_keys_to_ignore_on_load_unexpected"
_NOTE = (
    "the masks are the <name>_mask tensors of the checkpoint; "
    "sparse_lib.integrations.transformers.from_pretrained(folder) loads them"
)


class SparsityCallback(TrainerCallback):
    """Trains the model of a ``Trainer`` sparsely.

    Give it to ``Trainer(..., callbacks=[SparsityCallback(config)])``. The masks are made once the
    Trainer has placed the model and before it builds the optimizer. Each checkpoint holds the
    masks (in the model's file) and the algorithm's state (in the optimizer's), so
    ``trainer.train(resume_from_checkpoint=...)`` goes on with the same bits, and
    ``load_best_model_at_end`` brings the masks of the best model. Steps are optimizer steps, also
    with gradient accumulation; ranks hold the same masks.

    Args:
        config: What :func:`sparse_lib.configure` takes: a number, a dict, a list of dicts, or an
            algorithm.
        log: Whether logs get ``sparsity/sparsity``, ``sparsity/churn`` and the other numbers of
            ``algorithm.metrics()``.

    Attributes:
        algorithm: The algorithm, a ``Group`` unless it was applied before.

    Raises:
        ValueError: If the config is not allowed.
        TypeError: If it has a wrong type.
    """

    def __init__(self, config: Any, *, log: bool = True) -> None:
        self.algorithm = common.as_algorithm(config)
        self.log = log

    def first(self, trainer: Any) -> SparsityCallback:
        """Come before the trackers of ``report_to``, which then log the sparsity as well.

        Args:
            trainer: The Trainer that has this callback.
        """
        callbacks = trainer.callback_handler.callbacks
        callbacks.remove(self)
        callbacks.insert(0, self)
        return self

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Make the masks."""
        if (model := kwargs.get("model")) is not None:
            self._apply_to_model(model)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Enforce the masks in the optimizer's steps, and go on where its checkpoint ended.

        Raises:
            ValueError: If training is resumed on a model whose masks the callback could not make
                before the checkpoint was loaded.

        Warns:
            UserWarning: If masks do not reach their targets within the training's steps.
        """
        model, optimizer = kwargs["model"], kwargs["optimizer"]
        if not common.is_masked_by(self.algorithm, model):
            if state.global_step:
                raise ValueError(
                    "the checkpoint was loaded before the model had masks; give the callback to "
                    "Trainer(callbacks=[...]) together with model=, not model_init="
                )
            self.algorithm.detach()
            self._apply_to_model(model)
        if not self.algorithm.drives_optimizer:
            common.apply_to_optimizer(self.algorithm, optimizer)
        if state.global_step and not self.algorithm.step:
            warnings.warn(
                f"the checkpoint of step {state.global_step} holds no state of the algorithm (it "
                "was saved without this callback, or with save_only_model), so its schedules begin "
                "again at step 0",
                stacklevel=2,
            )
        common.warn_of_unreached(self.algorithm, state.max_steps)
        members = getattr(self.algorithm, "algorithms", [self.algorithm])
        if self.algorithm.step > state.global_step and any(m.updates_masks for m in members):
            warnings.warn(
                f"training begins at step {state.global_step}, but the algorithm's schedules go on "
                f"from step {self.algorithm.step} of an earlier training; a new callback begins at "
                "step 0",
                stacklevel=2,
            )

    def _apply_to_model(self, model: nn.Module) -> None:
        if not common.is_masked_by(self.algorithm, model):
            self.algorithm.apply(model)
        describe(model)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Add the metrics to what is logged, and to the Trainer's ``log_history``."""
        logs = kwargs.get("logs")
        if self.log and logs is not None and "loss" in logs:
            metrics = common.summary(self.algorithm)
            logs.update(metrics)
            if state.log_history:
                state.log_history[-1].update(metrics)


def describe(model: nn.Module) -> None:
    """Have the model's ``config.json`` say that it is masked, and what loads it as such."""
    config = getattr(unwrap(model), "config", None)
    if isinstance(config, transformers.PreTrainedConfig):
        setattr(config, CONFIG_KEY, _NOTE)


def from_pretrained(folder: str | Path, cls: Any = None, **options: Any) -> Any:
    """Load a masked model, with its masks, that ``save_pretrained`` or a ``Trainer`` saved.

    ``AutoModel....from_pretrained`` alone loads the same weights, zeros included, as a dense model.
    Here the masks are buffers again: gradients of masked weights are zero, and an algorithm applied
    later (:func:`sparse_lib.keep_zeros`, or any other) takes the masks over.

    Args:
        folder: Where the model was saved.
        cls: Class with ``from_pretrained``; by default the one that the model's config names.
        **options: Passed on to it.

    Raises:
        ValueError: If the folder holds no masks, or one that does not fit the model.
    """
    folder = Path(folder)
    masks = _read_masks(folder)
    if cls is None:
        config = AutoConfig.from_pretrained(folder)
        cls = getattr(transformers, (config.architectures or ["AutoModel"])[0])
    with _expecting(cls, masks):
        model = cls.from_pretrained(folder, **options)
    loaded = load_checkpoint(model, {**model.state_dict(), **masks})
    for name in loaded:
        path, _, leaf = name.rpartition(".")
        module = model.get_submodule(path)
        if leaf not in guards(module):
            MaskGuard(module, leaf)
    describe(model)
    return model


@contextlib.contextmanager
def _expecting(cls: Any, masks: Iterable[str]) -> Iterator[None]:
    """Keep a model's class from reporting the masks of a file as unexpected."""
    if not (isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)):
        yield  # a class such as AutoModel, which loads another one
        return
    own = {key: value for key, value in vars(cls).items() if key == _UNEXPECTED}
    patterns = [*(getattr(cls, _UNEXPECTED, None) or ()), *map(re.escape, masks)]
    setattr(cls, _UNEXPECTED, patterns)
    try:
        yield
    finally:
        delattr(cls, _UNEXPECTED)
        for key, value in own.items():
            setattr(cls, key, value)


def _read_masks(folder: Path) -> dict[str, Tensor]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        files = set(json.loads(index.read_text())["weight_map"].values())
    else:
        files = {"model.safetensors"}
    masks: dict[str, Tensor] = {}
    for name in sorted(files):
        if not (folder / name).is_file():
            raise ValueError(f"{folder} holds no {name}")
        with safe_open(folder / name, framework="pt") as tensors:
            keys = set(tensors.keys())
            for key in sorted(keys):
                if key.endswith("_mask") and key.removesuffix("_mask") in keys:
                    mask = tensors.get_tensor(key)
                    if mask.dtype == torch.bool:
                        masks[key] = mask
    if not masks:
        raise ValueError(
            f"{folder} holds no masks; load the model as usual, and sparse_lib.keep_zeros(model) "
            "takes its zeros for masks"
        )
    return masks
