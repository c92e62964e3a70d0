"""One file adds a metric, and a suite that names it computes it."""

import numpy as np

from experiments.evaluation import metrics
from experiments.evaluation.outputs import Images


def test_every_metric_says_what_it_is_and_of_what():
    for name in metrics.names():
        module = metrics.get(name)
        assert module.__doc__ and isinstance(module.HIGHER_IS_BETTER, bool)
        assert metrics.read([name])


def test_metrics_of_other_outputs_are_left_out():
    outputs = Images(np.zeros((1, 2)), np.array([0]), ["a", "b"])
    assert [row["metric"] for row in metrics.rows(outputs, ["perplexity", "loss"], task="x")] == [
        "loss"
    ]
