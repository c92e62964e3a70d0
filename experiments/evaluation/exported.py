"""Exported models, read whole or not at all."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from experiments import models
from experiments.errors import UserError, is_bug
from experiments.store.io import read_cache


def read_model(model_dir: Path, auto_model: Any) -> Any:
    """The model of an exported folder in evaluation mode, transformed by Sparse-IFT or not.

    Args:
        model_dir: exported model.
        auto_model: the class of transformers that knows its kind, ``AutoModelForCausalLM`` say.

    Raises:
        ValueError: if the folder is damaged, or lacks weights that the model has; transformers
            draws those at random.
    """
    from safetensors import SafetensorError
    from transformers import AutoConfig

    from experiments.models import _transform as transforms

    _register(read_cache(Path(model_dir) / "config.json").get("model_type"))
    try:
        model = transforms.load(
            model_dir, lambda config: auto_model.from_config(AutoConfig.for_model(**config))
        )
        if model is not None:
            return model.eval()
        model, found = auto_model.from_pretrained(
            model_dir, local_files_only=True, output_loading_info=True
        )
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, SafetensorError) as error:
        if is_bug(error):
            raise
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"the model of {model_dir} cannot be read: {reason}") from error
    if missing := sorted(found["missing_keys"]):
        raise UserError(
            f"{model_dir} lacks {len(missing)} of the model's weights, {missing[0]} for one; "
            "export the model again"
        )
    return model.eval()


def _register(model_type: Any) -> None:
    """Make a class of ours known to transformers, which is in ``models/_<model type>.py``."""
    name = f"_{model_type}"
    if isinstance(model_type, str) and name in models.own_classes():
        importlib.import_module(f"{models.__name__}.{name}")
