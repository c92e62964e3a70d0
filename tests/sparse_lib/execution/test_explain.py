"""`explain` and the compiled twin agree."""

import pytest
import torch
from torch import nn

import sparse_lib as sl
from sparse_lib.execution import kernels

pytestmark = pytest.mark.skipif(kernels.unavailable() is not None, reason="no kernels here")


def masked():
    model = nn.Sequential(
        nn.Linear(256, 256),
        nn.Linear(256, 8),
        nn.Conv1d(8, 8, 3),
        nn.Conv2d(8, 8, 3, groups=2),
        nn.Linear(8, 8),
    )
    names = ["0.weight", "1.weight", "2.weight", "3.weight"]
    sl.configure({"sparsity": 0.9, "param_filter": names}).apply(model)
    return model


def test_each_weight_has_its_reason():
    model, costs = masked(), sl.device.Costs(1.4, 12, 1000)
    found = sl.device.explain(model, sl.device.backend("skip", costs=costs))
    assert [(row.name, row.skips, row.reason) for row in found] == [
        ("0.weight", True, ""),
        ("1.weight", False, "dense is faster for 8 x 256 weights at this sparsity"),
        ("2.weight", False, "its type Conv1d is not supported"),
        ("3.weight", False, "it has groups=2, the kernels need groups=1"),
        ("4.weight", False, "it has no mask"),
    ]
    assert [round(row.sparsity, 1) for row in found] == [0.9, 0.9, 0.9, 0.9, 0.0]
    lines = str(found).splitlines()
    assert lines[0].split() == ["weight", "layer", "sparsity", "runs"]
    assert lines[1].split() == ["0.weight", "Linear", "0.90", "skipping"]
    assert {row.reason for row in sl.device.explain(model[:2], "dense")} == {
        "the backend is 'dense'"
    }


@pytest.mark.parametrize("crossover", [0.5, 0.95])
def test_layers_that_skip_are_those_that_leave_work_out(crossover):
    model = masked()[:2]
    chosen = sl.device.backend("skip", crossover=crossover)
    twin = sl.device.compile(model, chosen)
    for number, row in enumerate(sl.device.explain(twin, chosen)):
        width = model[number].in_features
        with sl.device.Ledger() as ledger:
            twin[number](torch.ones(4, width))
        assert row.skips == (ledger.skipped_flops > 0) == (crossover == 0.5)
    sl.device.pack(model)
    found = [(row.name, row.kind, row.skips) for row in sl.device.explain(model)]
    assert found == [(f"{number}.weight", "Linear", True) for number in (0, 1)]
