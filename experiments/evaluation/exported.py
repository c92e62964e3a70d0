"""Exported models, read whole or not at all, and run without the work of their zeros."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from experiments.errors import UserError, reason

#: What transformers tells of weights, and what the file does with them.
_APART = {
    "missing_keys": "lacks",
    "unexpected_keys": "has beside it",
    "mismatched_keys": "has other shapes of",
}


def read_model(model_dir: Path, auto_model: Any) -> Any:
    """The model of an exported folder in evaluation mode, transformed by Sparse-IFT or not.

    Args:
        auto_model: the class of transformers that knows its kind, ``AutoModelForCausalLM`` say.

    Raises:
        UserError: if the folder is damaged, or lacks weights that the model has, which
            transformers draws at random, or has NaN or infinity among them.
    """
    from transformers import AutoConfig

    from experiments.models import _transform as transforms

    with _whole(model_dir, "model"):
        model = transforms.load(
            model_dir, lambda config: auto_model.from_config(AutoConfig.for_model(**config))
        )
        found: dict[str, Any] = {}
        if model is None:
            model, found = auto_model.from_pretrained(
                model_dir,
                local_files_only=True,
                trust_remote_code=False,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    for kind, what in _APART.items():
        if names := sorted(found.get(kind, ())):
            name = names[0] if isinstance(names[0], str) else names[0][0]
            raise UserError(
                f"config.json of {model_dir} describes a model of which the file {what} "
                f"{len(names)} weights, {name} for one; export the model again"
            )
    for name, weight in model.named_parameters():
        if not bool(weight.isfinite().all()):
            raise UserError(f"{model_dir} has weights that are no finite numbers, in {name}")
    return model.eval()


def skipping(model: Any, execution: str) -> Any:
    """The model, or its twin whose layers skip their zeros where that is faster.

    The weights tell what is masked, so any exported model will do. Scores differ by rounding.

    Args:
        model: in evaluation mode, on its device and in its number format.
        execution: ``"auto"`` or ``"dense"``; anything but float32 on the CPU runs dense.
    """
    import torch

    from sparse_lib.configure import configure
    from sparse_lib.device import compile, worth_skipping
    from sparse_lib.layers import default_filter

    first = next(model.parameters())
    if execution == "dense" or first.device.type != "cpu" or first.dtype != torch.float32:
        return model
    for name, weight in model.named_parameters():
        if default_filter(name, weight, model):
            zeros = float((weight == 0).float().mean())
            if worth_skipping(weight.shape[0], weight[0].numel(), zeros):
                if zeros_stay := configure({"init_method": "from_zeros"}):
                    zeros_stay.apply(model)
                return compile(model)
    return model


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
