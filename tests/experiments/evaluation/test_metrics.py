"""One file adds a metric, and a suite that names it computes it."""

import importlib
import sys

import numpy as np
import pytest

from experiments.evaluation import metrics
from experiments.evaluation.outputs import Images
from experiments.evaluation.suite import load_suite, suite_files

MARGIN = '''
"""Mean lead of the right class's logit over the best other one."""
import numpy as np
from experiments.evaluation.outputs import Images, mean
OF, HIGHER_IS_BETTER = Images, True

def compute(outputs):
    places = np.arange(len(outputs.labels))
    others = outputs.logits.copy()
    others[places, outputs.labels] = -np.inf
    return mean(outputs.logits[places, outputs.labels] - others.max(1), 0.0)
'''


def test_every_metric_says_what_it_is_and_of_what():
    for name in metrics.names():
        module = metrics.get(name)
        assert module.__doc__ and isinstance(module.HIGHER_IS_BETTER, bool)
        assert metrics.read([name])


def test_a_metric_is_one_file(tmp_path, monkeypatch):
    vision = suite_files(load_suite("vision"))
    for path in metrics.FOLDER.glob("*.py"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "margin.py").write_text(MARGIN)
    monkeypatch.setattr(metrics, "FOLDER", tmp_path)
    monkeypatch.setattr(metrics, "__path__", [str(tmp_path)])
    importlib.invalidate_caches()
    path = tmp_path / "own.yaml"
    path.write_text("kind: images\nmetrics: [margin, accuracy]\n")
    chosen = load_suite(str(path))
    assert [file.name for file in suite_files(chosen)] == ["accuracy.py", "margin.py"]
    # The committed suite does not name it, so nothing of it depends on the new file.
    assert [f.name for f in suite_files(load_suite("vision"))] == [f.name for f in vision]
    outputs = Images(np.array([[3.0, 1.0], [0.5, 0.0]]), np.array([0, 1]), ["a", "b"])
    try:
        margin, accuracy = metrics.rows(outputs, chosen.metrics, task="images")
    finally:
        sys.modules.pop("experiments.evaluation.metrics.margin", None)
    assert margin == {
        "task": "images", "metric": "margin", "value": 0.75, "stderr": pytest.approx(1.25),
        "num_items": 2, "chance": 0.0, "higher_is_better": True,
    }  # fmt: skip
    assert accuracy["value"] == 0.5


def test_metrics_of_other_outputs_are_left_out():
    outputs = Images(np.zeros((1, 2)), np.array([0]), ["a", "b"])
    assert [row["metric"] for row in metrics.rows(outputs, ["perplexity", "loss"], task="x")] == [
        "loss"
    ]
