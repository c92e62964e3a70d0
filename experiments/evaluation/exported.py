"""Exported models, read whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from experiments.errors import UserError, reason


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
