"""Exported models, read whole or not at all."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from experiments import models
from experiments.errors import UserError, reason
from experiments.store.io import read_json


def read_model(model_dir: Path, auto_model: Any) -> Any:
    """The model of an exported folder in evaluation mode, transformed by Sparse-IFT or not.

    Args:
        auto_model: the class of transformers that knows its kind, ``AutoModelForCausalLM`` say.

    Raises:
        ValueError: if the folder is damaged, or lacks weights that the model has; transformers
            draws those at random.
    """
    from transformers import AutoConfig

    from experiments.models import _transform as transforms

    with _whole(model_dir, "model"):
        _register(read_json(model_dir / "config.json").get("model_type"))
        model = transforms.load(
            model_dir, lambda config: auto_model.from_config(AutoConfig.for_model(**config))
        )
        if model is not None:
            return model.eval()
        model, found = auto_model.from_pretrained(
            model_dir, local_files_only=True, trust_remote_code=False, output_loading_info=True
        )
    for kind, what in (("missing_keys", "lacks"), ("unexpected_keys", "has beside it")):
        if names := sorted(found[kind]):
            raise UserError(
                f"config.json of {model_dir} describes a model of which the file {what} "
                f"{len(names)} weights, {names[0]} for one; export the model again"
            )
    return model.eval()


def read_tokenizer(model_dir: Path) -> Any:
    """The tokenizer of an exported folder."""
    from transformers import AutoTokenizer

    with _whole(model_dir, "tokenizer"):
        return AutoTokenizer.from_pretrained(
            model_dir, local_files_only=True, trust_remote_code=False
        )


@contextmanager
def _whole(model_dir: Path, part: str) -> Iterator[None]:
    """Say in one sentence why a part of a folder cannot be read."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # transformers raises any class on a damaged or foreign file
        raise UserError(f"the {part} of {model_dir} cannot be read: {reason(error)}") from error


def _register(model_type: Any) -> None:
    """Make a class of ours known to transformers, which is in ``models/_<model type>.py``."""
    name = f"_{model_type}"
    if isinstance(model_type, str) and name in models.own_classes():
        importlib.import_module(f"{models.__name__}.{name}")
