"""One file adds a classifier: its sizes and how it is built; `test_extending` adds a decoder."""

import sys
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from experiments import data, models
from experiments.evaluation.model import evaluate_model
from experiments.models import gpt2
from experiments.specs.run import RunSpec
from experiments.tasks import vision

DEIT = '''
"""Vision transformer of transformers (Dosovitskiy et al. 2021)."""
from pydantic import BaseModel, ConfigDict

TASK = "vision"

class Config(BaseModel):
    model_config = ConfigDict(extra="forbid")
    hidden_size: int
    num_layers: int
    num_heads: int
    patch_size: int

def build(config, *, classes, num_channels, image_size):
    from transformers import ViTConfig, ViTForImageClassification
    return ViTForImageClassification(ViTConfig(
        hidden_size=config.hidden_size, num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads, intermediate_size=4 * config.hidden_size,
        image_size=image_size, patch_size=config.patch_size, num_channels=num_channels,
        id2label=dict(enumerate(classes))))
'''
SIZES = {"hidden_size": 16, "num_layers": 1, "num_heads": 2}


@pytest.fixture
def with_files(tmp_path, monkeypatch):
    """The models of the repository and one more."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "deit.py").write_text(DEIT)
    monkeypatch.setattr(models, "__path__", [*models.__path__, str(tmp_path / "models")])
    yield
    sys.modules.pop("experiments.models.deit", None)


def steps(task, folder: Path):
    """A few sparse steps on one batch, FLOPs, validation and export."""
    from sparse_lib.configure import configure

    torch.manual_seed(0)
    model = task.build_model()
    assert task.flops(model).training_step() > 0
    optimizer = task.optimizer(model)
    algorithm = configure({"algorithm": "rigl", "sparsity": 0.5, "update": {"freq": 2}, "seed": 0})
    algorithm.apply(model)
    algorithm.apply(optimizer)
    losses = []
    for _ in range(12):
        loss = task.loss(model, task.batch(0))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    model.eval()
    with torch.no_grad():
        assert task.validate(model, full=True)["loss"] > 0
    task.export(model, folder)


def test_an_image_classifier_is_one_file(with_files, tmp_path):
    assert "deit" in models.names() and models.task("deit") == "vision"
    folder = tmp_path / "images"
    meta = data.prepare("glyphs", out=folder, num_images=47)
    recipe = {"epochs": 1, "batch_size": 8, "learning_rate": 0.01, "optimizer": "adamw", "steps": 9}
    spec = RunSpec(
        id="x", task="vision", seed=0, recipe=recipe,
        model={"name": "deit", "label": "deit", "patch_size": 4, **SIZES},
        data={"name": "glyphs", "num_images": 47},
    )  # fmt: skip
    steps(vision.Task(spec, folder), tmp_path / "model")
    result = evaluate_model(tmp_path / "model", "vision", data_dir=folder, out=tmp_path)
    shown = {row["num_items"] for row in result["scores"] if row["task"] == "images"}
    assert shown == {meta["num_images"][split] for split in ("validation", "test")}


@pytest.mark.parametrize(
    ("width", "layers", "heads", "parameters"),
    [(768, 12, 12, 124_439_808), (1024, 24, 16, 354_823_168)],
)
def test_sizes_of_gpt2_are_those_of_the_published_models(width, layers, heads, parameters):
    config = gpt2.Config(hidden_size=width, num_layers=layers, num_heads=heads)
    with torch.device("meta"):
        model = gpt2.build(config, vocab_size=50257, context=1024, eos_id=0)
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_heads_must_divide_the_width():
    with pytest.raises(ValidationError, match="hidden_size is 10; it must be a multiple of"):
        gpt2.Config(hidden_size=10, num_layers=1, num_heads=4)
