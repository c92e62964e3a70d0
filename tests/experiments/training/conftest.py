"""A small run in one YAML file."""

import shutil

import pytest
import yaml

SIDEBAND = {"type": "sideband", "sparsity": 0.3, "init_method": "random", "seed": 1234}


@pytest.fixture
def params(corpus, tmp_path, monkeypatch):
    """The YAML file of a small run, in a folder with prepared data."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(corpus, tmp_path / "resources/data/wikipedia-start-v257")
    model = {"hidden_size": 32, "intermediate_size": 88, "num_layers": 2, "num_heads": 2}
    file = {
        "model": {"name": "llama", "label": "tiny", **model},
        "data": {"name": "wikipedia-start", "vocab_size": 257, "context": 32},
        "recipe": {"tokens": 1280, "batch_size": 4, "learning_rate": 0.01, "validations": 1},
        "sparsity": SIDEBAND,
    }
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(file))
    return path
