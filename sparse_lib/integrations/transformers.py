"""Sparse training with the ``Trainer`` of transformers."""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoConfig, TrainerCallback
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    PrefixChange,
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
    revert_weight_conversion,
)

from sparse_lib.checkpoint import load_checkpoint
from sparse_lib.checkpoint.files import opened
from sparse_lib.core.guard import MaskGuard, guards
from sparse_lib.core.mistakes import warn_of_unreached
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
    Trainer has placed the model and before it builds the optimizer. Each checkpoint holds the masks
    (in the model's file) and the algorithm's state (in the optimizer's), so
    ``trainer.train(resume_from_checkpoint=...)`` goes on with the same bits, and
    ``load_best_model_at_end`` brings the masks of the best model. Steps are optimizer steps, also
    with gradient accumulation; ranks hold the same masks.

    Args:
        config: What `sparse_lib.configure` takes, an algorithm too; errors are those of it.
        log: Whether logs get ``sparsity/sparsity``, ``sparsity/churn`` and the other numbers of
            ``algorithm.metrics()``.

    Attributes:
        algorithm: The algorithm, a ``Group`` unless it was applied before.
    """

    def __init__(self, config: Any, *, log: bool = True) -> None:
        self.algorithm = common.as_algorithm(config)
        self.log = log

    def first(self, trainer: Any) -> SparsityCallback:
        """Come before the Trainer's trackers (``report_to``), which then log the sparsity, too."""
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
        warn_of_unreached(self.algorithm, state.max_steps)
        moves = any(member.updates_masks for member in self.algorithm.algorithms)
        if self.algorithm.step > state.global_step and moves:
            warnings.warn(
                f"training begins at step {state.global_step}, but the algorithm's schedules go on "
                f"from step {self.algorithm.step} of an earlier training; a new callback begins at "
                "step 0",
                stacklevel=2,
            )

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Warn if masks do not reach their targets in a training that was stopped early."""
        if state.global_step != state.max_steps:
            warn_of_unreached(self.algorithm, self.algorithm.step)

    def _apply_to_model(self, model: nn.Module) -> None:
        if not common.is_masked_by(self.algorithm, model):
            self.algorithm.apply(model)
        describe(model)
        accept_saved_names(unwrap(model))

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
    later (`sparse_lib.keep_zeros`, or any other) takes the masks over.

    Args:
        folder: Where the model was saved.
        cls: Class with ``from_pretrained``; by default the one that the model's config names.
        **options: Passed on to it.

    Raises:
        ValueError: If the folder holds no masks, a damaged file, or a mask that does not fit the
            model, as where its config names fewer layers than were saved.
    """
    folder = Path(folder)
    masks = _read_masks(folder)
    if cls is None:
        trust = options.setdefault("trust_remote_code", False)  # None would ask on the terminal
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust)
        name = (config.architectures or ["AutoModel"])[0]
        if (cls := getattr(transformers, name, None)) is None:
            raise ValueError(f"{folder} is of a {name}, which transformers lacks; give its cls")
    with _expecting_masks(cls):
        model, info = cls.from_pretrained(folder, **options, output_loading_info=True)
    if lost := sorted({f"{key}_mask" for key in info["unexpected_keys"]} & masks.keys()):
        raise ValueError(
            f"{folder} has {len(lost)} masks, such as {lost[0]!r}, of weights that a "
            f"{type(model).__name__} of its config.json does not have"
        )
    masks = in_model_names(model, masks)
    loaded = load_checkpoint(model, {**model.state_dict(), **masks})
    if not masks:
        raise ValueError(f"the masks in {folder} are of no weight of a {type(model).__name__}")
    for name in loaded:
        path, _, leaf = name.rpartition(".")
        module = model.get_submodule(path)
        if leaf not in guards(module):
            MaskGuard(module, leaf)
    describe(model)
    accept_saved_names(model)
    return model


@torch.no_grad()
def in_model_names(model: nn.Module, saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of a saved model, masks too, under the names that the model's class has for them.

    ``save_pretrained`` writes the keys, and splits the fused weights, of the format in which the
    first checkpoints of a family were published; transformers' conversion mapping is the table. A
    mask goes where its weight does. Names of other models are kept.
    """
    known = _keys_of_masks(model)
    masks = {k: t for k, t in saved.items() if t.dtype == torch.bool and k.endswith("_mask")}
    found = {known[k]: t for k, t in masks.items() if k in known}
    others = {k.removesuffix("_mask"): t for k, t in masks.items() if k not in known}
    found |= {f"{name}_mask": t for name, t in _renamed(model, others).items()}
    return _renamed(model, {k: t for k, t in saved.items() if k not in masks}) | found


def _keys_of_masks(model: nn.Module) -> dict[str, str]:
    """Names of masks by the keys that ``save_pretrained`` writes, where it renames and no more."""
    weights = model.named_parameters(remove_duplicate=False)
    own = {f"{name}_mask": torch.empty_like(p, device="meta") for name, p in weights}
    written = dict(own)
    if isinstance(model, transformers.PreTrainedModel):
        written = revert_weight_conversion(model, written)
    names = {id(tensor): name for name, tensor in own.items()}
    return {key: names[id(tensor)] for key, tensor in written.items() if id(tensor) in names}


def _renamed(model: nn.Module, saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    own: dict[str, Any] = dict(model.state_dict(keep_vars=True))
    own |= model.named_parameters(remove_duplicate=False)
    conversions: list[Any] = []
    if isinstance(model, transformers.PreTrainedModel):
        conversions = deepcopy(getattr(model, "_weight_conversions", None) or [])
        if not conversions:
            every = get_model_conversion_mapping(model)
            conversions = [c for c in every if not isinstance(c, PrefixChange)]
    renamings = [c for c in conversions if isinstance(c, WeightRenaming)]
    converters = [c for c in conversions if isinstance(c, WeightConverter)]
    by_pattern = {pattern: c for c in converters for pattern in c.source_patterns}
    prefix = getattr(model, "base_model_prefix", "")
    found: dict[str, Tensor] = {}
    gathered: dict[str, WeightConverter] = {}
    for key in sorted(saved, key=dot_natural_key):
        name, pattern = rename_source_key(key, renamings, converters, prefix, own)
        if name not in own and key in own:
            name, pattern = key, None
        if name not in own:
            continue
        if pattern is None:
            found[name] = saved[key]
        else:
            converter = gathered.setdefault(name, deepcopy(by_pattern[pattern]))
            converter.add_tensor(name, key, pattern, cast(Any, saved[key]))
    for name, converter in gathered.items():
        made = converter.convert(name, model=model, config=getattr(model, "config", None))
        found |= {n: t[0] if isinstance(t, list) else t for n, t in made.items()}
    return {name: t for name, t in found.items() if own[name].shape == t.shape}


def accept_saved_names(model: nn.Module) -> None:
    """Have ``load_state_dict`` take the keys that ``save_pretrained`` writes, masks included.

    The Trainer resumes by it, and brings the best model back.
    """
    hooks = [getattr(hook, "hook", hook) for hook in model._load_state_dict_pre_hooks.values()]
    if isinstance(model, transformers.PreTrainedModel) and _rename_saved not in hooks:
        model.register_load_state_dict_pre_hook(_rename_saved)


def _rename_saved(model: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    own = model.state_dict().keys()
    if prefix or state.keys() <= own:
        return
    renamed = in_model_names(model, {k: t for k, t in state.items() if torch.is_tensor(t)})
    if renamed.keys() - state.keys():
        for key in [key for key in state if key not in own or key in renamed]:
            del state[key]
        state.update(renamed)


@contextlib.contextmanager
def _expecting_masks(cls: Any) -> Iterator[None]:
    """Keep a model's class from reporting the masks of a file as unexpected."""
    if not (isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)):
        yield  # a class such as AutoModel, which loads another one
        return
    own = {key: value for key, value in vars(cls).items() if key == _UNEXPECTED}
    patterns = [*(getattr(cls, _UNEXPECTED, None) or ()), "_mask$"]
    setattr(cls, _UNEXPECTED, patterns)
    try:
        yield
    finally:
        delattr(cls, _UNEXPECTED)
        for key, value in own.items():
            setattr(cls, key, value)


def _read_masks(folder: Path) -> dict[str, Tensor]:
    index, files = folder / "model.safetensors.index.json", {"model.safetensors"}
    if index.is_file():
        try:
            files = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
        except (ValueError, LookupError, TypeError, AttributeError):
            raise ValueError(f"{index} is no index of safetensors files") from None
    masks: dict[str, Tensor] = {}
    for name in sorted(files):
        if not (folder / name).is_file():
            raise ValueError(f"{folder} holds no {name}")
        with opened(folder / name) as tensors:
            for key in sorted(key for key in tensors.keys() if key.endswith("_mask")):
                if (mask := tensors.get_tensor(key)).dtype == torch.bool:
                    masks[key] = mask
    if not masks:
        raise ValueError(
            f"{folder} holds no masks; load the model as usual, and sparse_lib.keep_zeros(model) "
            "takes its zeros for masks"
        )
    return masks
