"""A suite applied to any exported model, of a run or not."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from experiments import data, tasks
from experiments.errors import UserError
from experiments.store.io import read_cache


def quiet_and_offline() -> None:
    """Set what is not set yet; call it before tqdm, datasets and lm_eval are imported."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("DISABLE_MULTIPROC", "1")


def evaluate_model(
    model_dir: Path,
    suite: str,
    *,
    data_dir: Path | None,
    out: Path,
    cache: Path | None = None,
    task: str | None = None,
) -> dict[str, Any]:
    """Score a model by a suite and write the result.

    Args:
        data_dir: prepared dataset; None for suites of published tasks alone.
        out: file to write, or the folder to write ``eval.json`` into.
        cache: folder of what is scored so far; None is ``out``'s folder.
        task: what the model is for; None asks its config, which imports transformers.

    Raises:
        ValueError: if the model is of no known kind, or does not fit the suite or the data.
    """
    module = importlib.import_module(tasks.get(task or task_of(model_dir)).EVALUATION)
    mirror = data.mirror_root()
    return module.evaluate(model_dir, data_dir, suite, out=out, cache=cache, mirror=mirror)


def task_of(model_dir: Path) -> str:
    """Name of the task that an exported model is for, by its config.

    Raises:
        UserError: if there is no config, or the model is no causal language model or image
            classifier.
    """
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    )

    config = read_cache(model_dir / "config.json")
    if not config:
        raise UserError(f"{model_dir} holds no config.json of a model")
    names = config.get("architectures") or []
    names = names if isinstance(names, list) else [names]
    if any(str(name).endswith(("ForCausalLM", "LMHeadModel")) for name in names):
        return "lm"
    if any(str(name).endswith("ForImageClassification") for name in names):
        return "vision"
    from experiments.models import _networks

    kind = config.get("model_type")
    is_ours = all(hasattr(_networks, str(name)) for name in names)
    if kind in MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES and is_ours:
        return "vision"
    if kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not names:
        return "lm"
    raise UserError(
        f"{model_dir} holds {', '.join(map(str, names)) or kind}; only causal language models "
        "and image classifiers can be scored"
    )
