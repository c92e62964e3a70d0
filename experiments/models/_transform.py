"""The exported form of a model that Sparse-IFT transformed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from sparse_lib import ift

#: Beside exported weights: what `load` needs to build the model that they belong to.
FILE = "transform.json"


def write(folder: Path, config: dict[str, Any], transform: dict[str, Any]) -> None:
    """Describe a transformation beside the exported weights; ``config`` is the dense model's."""
    description = {"transform": transform, "config": config}
    (folder / FILE).write_text(json.dumps(description, indent=1) + "\n", "utf-8")


def load(folder: Path, build: Callable[[dict[str, Any]], nn.Module]) -> nn.Module | None:
    """An exported model, or None if it was not transformed and loads like any other."""
    if not (folder / FILE).is_file():
        return None
    from safetensors.torch import load_model

    saved = json.loads((folder / FILE).read_text("utf-8"))
    model, _, _ = ift.transform(build(saved["config"]), **saved["transform"])
    load_model(model, folder / "model.safetensors")
    return model
