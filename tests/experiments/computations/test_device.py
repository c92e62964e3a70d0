"""The `device` computation at its smallest scale, against closed forms."""

import pytest

from experiments.computations import device
from experiments.store import tidy
from sparse_lib.execution import kernels

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tables():
    return device.compute("smoke")


def test_every_simulated_row_says_so(tables):
    for name in ("steps", "training", "whole_model"):
        assert tables[name]["label"].str.startswith("simulated").all()
    speedup = tables["speedup"]
    beyond = speedup[(speedup["series"] == "simulated") & (speedup["sparsity"] > 0.9)]
    assert beyond["label"].str.contains("extrapolated beyond 90%").all()


@pytest.mark.skipif(kernels.unavailable() is not None, reason="no kernels here")
def test_what_is_measured_is_of_one_thread_and_one_step(tables):
    layer = tables["layer_speed"]
    assert list(layer["sparsity"]) == [0.5, 0.8, 0.9]
    assert (layer["low"] <= layer["speedup"]).all() and (layer["speedup"] <= layer["high"]).all()
    gpt = tables["amdahl"]
    assert list(gpt["sparsity"]) == [0.0, 0.8, 0.9]
    assert (gpt["outside_s"] < gpt["bound_s"]).all()
    run = tables["run_step"]
    assert list(run["sparsity"]) == [0.0, 0.8] and set(run["model"]) == {"Llama 0.2M"}
    assert (run["outside_s"] < run["bound_s"]).all()
    own = tables["roofline"].query("device == 'host' and series == 'dense'").iloc[0]
    # Width and tokens are 256: three products over six activations, two weights and a gradient.
    assert own["intensity"] == pytest.approx(6 * 256**3 / (9 * 4 * 256**2))


def test_breakdown_of_gpt3_xl_by_formula(tables):
    rows = tables["breakdown"].query("model == 'GPT-3 XL' and sparsity == 0.75")
    flops = rows.set_index("layer_type")["flops"]
    tokens, width = 2048, 2048
    assert flops["feed-forward weights"] == 6 * tokens * 24 * 8 * width**2 // 4
    assert flops["attention weights"] == 6 * tokens * 24 * 4 * width**2 // 4
    assert flops["attention products"] == 12 * 24 * tokens**2 * width
    assert flops["output head"] == 6 * tokens * 50257 * width


def test_one_cs2_runs_gpt3_xl_dense_at_its_peak(tables):
    steps = tables["steps"].query("device == 'cs2' and sparsity == 0 and num_systems == 1")
    row = steps.iloc[0]
    flops = 768 * (6 * 2048 * (12 * 24 * 2048**2 + 50257 * 2048) + 12 * 24 * 2048**3)
    assert row["flops"] >= flops
    assert row["tokens_per_s"] == pytest.approx(768 * 2048 / row["step_s"])
    if not row["recompute"]:
        assert row["step_s"] >= flops / 7.48e15 * (1 - 1e-9)


def test_missing_tables_are_named():
    with pytest.raises(ValueError, match="compute device"):
        tidy.computed("paper", "device", "nothing")
