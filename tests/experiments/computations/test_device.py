"""The `device` computation at its smallest scale, against closed forms."""

import warnings

import pytest
import torch
from torch import nn

from experiments.computations import device
from experiments.computations._measured import OneDnnLinear, by_onednn
from experiments.store import tidy
from sparse_lib.execution import kernels
from sparse_lib.simulation import onednn

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tables():
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # of masks that no layer skips
        return device.compute("smoke")


def test_simulated_rows_say_so_and_one_cs2_runs_gpt3_xl_dense_at_its_peak(tables):
    for name in ("steps", "whole_model"):
        assert tables[name]["label"].str.startswith("simulated").all()
    speedup = tables["speedup"]
    beyond = speedup[(speedup["series"] == "simulated") & (speedup["sparsity"] > 0.9)]
    assert beyond["label"].str.contains("extrapolated beyond 90%").all()
    steps = tables["steps"].query("device == 'cs2' and sparsity == 0")
    row = steps.iloc[0]
    flops = 768 * (6 * 2048 * (12 * 24 * 2048**2 + 50257 * 2048) + 12 * 24 * 2048**3)
    assert row["flops"] >= flops
    assert row["tokens_per_s"] == pytest.approx(768 * 2048 / row["step_s"])
    if not row["recompute"]:
        assert row["step_s"] >= flops / 7.48e15 * (1 - 1e-9)
    with pytest.raises(ValueError, match="compute device"):
        tidy.computed("paper", "device", "nothing")


@pytest.mark.skipif(kernels.unavailable() is not None, reason="no kernels here")
def test_what_is_measured_is_of_one_thread_and_one_step(tables):
    layer = tables["layer_speed"]
    assert list(layer["sparsity"]) == [0.5, 0.8, 0.9]
    assert (layer["low"] <= layer["speedup"]).all() and (layer["speedup"] <= layer["high"]).all()
    assert (layer["dense_s"] <= layer["torch_s"]).all()
    assert set(layer["dense"]) <= {"torch", "oneDNN"} and layer["dense"].nunique() == 1
    gpt, run = tables["amdahl"], tables["run_step"]
    assert list(gpt["sparsity"]) == [0.0, 0.8, 0.9]
    assert list(run["sparsity"]) == [0.0, 0.8] and set(run["model"]) == {"Llama 0.2M"}
    # Amdahl: what is outside the blocks' layers keeps its time, they run as fast as the one layer.
    layer = layer.set_index("sparsity")
    for steps, baseline in ((gpt, "dense_s"), (run, "torch_s")):
        outside, dense = steps["outside_s"].iloc[0], steps["step_s"].iloc[0]
        for _, row in steps[steps["sparsity"] > 0].iterrows():
            speed = layer.loc[row["sparsity"], baseline] / layer.loc[row["sparsity"], "skip_s"]
            assert row["bound_s"] == pytest.approx(outside + (dense - outside) / speed)
            assert row["over_bound"] == pytest.approx(row["step_s"] / row["bound_s"])


@pytest.mark.skipif(not onednn.available(), reason="this torch has no oneDNN")
@pytest.mark.parametrize("has_bias", (False, True))
def test_the_second_dense_baseline_computes_a_linear_layer(has_bias):
    layer = nn.Linear(24, 40, bias=has_bias)
    twin = OneDnnLinear(layer.weight, layer.bias)
    source, gradient = torch.randn(2, 7, 24), torch.randn(2, 7, 40)
    results = []
    for module in (layer, twin):
        own = source.clone().requires_grad_()
        output = module(own)
        output.backward(gradient)
        results.append([output, own.grad, *(param.grad for param in module.parameters())])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.skipif(not onednn.available(), reason="this torch has no oneDNN")
def test_a_model_by_onednn_is_the_same_model():
    model = device.gpt(1, 32, 2, 64, 16, device="cpu")
    ids = torch.randint(64, (2, 16))
    expected = model(input_ids=ids).logits
    twin = by_onednn(model)
    assert sum(isinstance(module, OneDnnLinear) for module in twin.modules()) == 4
    torch.testing.assert_close(twin(input_ids=ids).logits, expected)
