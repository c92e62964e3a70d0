"""Simulated steps against the formula, hand counts and limits; devices and their calibration."""

from dataclasses import replace

import pytest
from torch import nn

import sparse_lib as sl
from sparse_lib.execution.backend import compile
from sparse_lib.flops.model import count
from sparse_lib.simulation import devices
from sparse_lib.simulation.devices import SPECS
from sparse_lib.simulation.devices.cs2 import MATMUL_SPEEDUP
from sparse_lib.simulation.host import probe_host
from sparse_lib.simulation.spec import sparse_overhead
from sparse_lib.simulation.timing import relative_time, simulate, weight_csr_bytes
from tests.sparse_lib.tiny_models import gpt_on_meta as gpt

UNBOUND = replace(SPECS["cs2"], stream_bandwidth=1e30)


def test_a_gpu_gains_nothing_from_masks_and_steps_use_all_of_the_chosen_efficiency():
    sizes = {"batch_size": 8, "sequence_length": 128}
    dense, sparse = (simulate(gpt(), "h100", sparsity=s, **sizes).step_s for s in (0.0, 0.75))
    assert dense == sparse
    result = simulate(gpt(), UNBOUND, efficiency=0.5, **sizes)
    assert result.utilisation == pytest.approx(0.5)
    assert result.flops == count(gpt(), **sizes).training_step()
    assert result.energy_j == pytest.approx(result.step_s * 23_000)


def test_gpt3_xl_stays_below_the_flop_bound_of_spdf():
    """Streaming the weights, and again for each micro-batch, costs more of what sparsity gains."""
    model = gpt(num_layers=24, hidden_size=2048, num_heads=16)
    sizes = {"batch_size": 64, "sequence_length": 2048}
    flops = count(model, **sizes)

    def speedup(device):
        options = {"flops": flops, **sizes}
        dense, sparse = (simulate(model, device, sparsity=s, **options) for s in (0.0, 0.75))
        return dense.step_s / sparse.step_s

    bound = flops.training_step() / flops.training_step(flops.uniform(0.75))
    assert bound == pytest.approx(2.49, abs=0.01)
    block = 12 * 24 * 2048**2 * 6 * 2048 / (flops.training_step() / 64)
    share = relative_time(0.75, UNBOUND.sparse_overhead)
    assert speedup(UNBOUND) == pytest.approx(1 / (block * share + 1 - block), rel=1e-9)
    assert 1 < speedup("cs2") < speedup(UNBOUND) < bound


def test_bytes_of_weights_and_activations_by_hand():
    model = nn.Sequential(nn.Linear(100, 10))
    assert weight_csr_bytes(model, None) == 2 * 1010
    # 100 values of 2 bytes with 2-byte columns, 11 row starts, and a dense bias.
    assert weight_csr_bytes(model, {"0.weight": 0.9}) == 100 * 4 + 11 * 4 + 20
    # Per block: 10 times the width; the embedding's output is the first block's input.
    batch, length, layers, width = 4, 128, 2, 64
    options = {"batch_size": batch, "sequence_length": length}
    result = simulate(gpt(layers, width), "cs2", **options)
    assert result.activation_bytes == 2 * batch * length * width * (10 * layers + 1)
    share = simulate(gpt(layers, width), "cs2", num_systems=3, **options)
    assert share.activation_bytes == result.activation_bytes / 2  # one system has two of four
    again = simulate(gpt(layers, width), "cs2", recompute=True, **options)
    assert again.activation_bytes == 2 * batch * length * width * (layers + 9 + 1)


def test_systems_without_streaming_exchange_gradients():
    model = nn.Sequential(nn.Linear(1000, 1000, bias=False))
    result = simulate(model, "h100", batch_size=4, num_systems=4)
    (layer,) = result.layers
    assert layer.exchange_s == pytest.approx(2 * 3 / 4 * 2e6 / 450e9)
    assert layer.transfer_s == pytest.approx(3 * 2e6 / 3.35e12)
    assert layer.bound_by == result.bound_by == "exchange"
    assert result.step_s == layer.exchange_s
    assert simulate(model, "h100", batch_size=4).layers[0].exchange_s == 0
    assert simulate(model, "cs2", batch_size=4, num_systems=4).layers[0].exchange_s == 0


def test_scaling_ends_where_each_system_waits_for_the_weights():
    """Compute shrinks with the systems' number; streaming takes 2 x 2 bytes per weight at least."""
    model = gpt(num_layers=24, hidden_size=2048, num_heads=16)
    sizes = {"batch_size": 192, "sequence_length": 2048}
    flops = count(model, **sizes)
    steps = {n: simulate(model, "cs2", num_systems=n, flops=flops, **sizes) for n in (1, 2, 192)}
    # 40 GB hold 19 sequences of 2.02 GB, so 192 of them take 11 parts.
    assert [steps[n].num_micro_batches for n in (1, 2, 192)] == [11, 6, 1]
    assert steps[1].step_s / steps[2].step_s == pytest.approx(2, rel=0.1)
    assert steps[192].bound_by == "transfer"
    num_streamed = 24 * 12 * 2048**2 + 50257 * 2048
    streamed_s = 4 * num_streamed / 150e9
    attention_s = steps[192].step_s - streamed_s
    assert attention_s == pytest.approx(12 * 24 * 2048**2 * 2048 / 7.48e15, rel=1e-6)


def test_micro_batches_keep_what_fits_and_stream_weights_again():
    model = nn.Sequential(nn.Linear(1000, 10, bias=False))
    tight = replace(SPECS["cs2"], memory_bytes=2000 * 3)
    whole, parts = (simulate(model, spec, batch_size=7) for spec in (SPECS["cs2"], tight))
    assert (whole.num_micro_batches, parts.num_micro_batches) == (1, 3)
    assert (whole.activation_bytes, parts.activation_bytes) == (14_000, 6_000)
    assert parts.layers[0].transfer_s == pytest.approx(3 * whole.layers[0].transfer_s)
    assert parts.layers[0].compute_s == whole.layers[0].compute_s
    assert parts.fits
    assert not simulate(model, replace(tight, memory_bytes=1999), batch_size=7).fits
    assert parts.record()["num_micro_batches"] == 3


def test_recomputation_costs_a_forward_pass_and_the_weights_again():
    sizes = {"batch_size": 8, "sequence_length": 128}
    kept, again = (simulate(gpt(), UNBOUND, recompute=r, **sizes) for r in (False, True))
    assert again.step_s / kept.step_s == pytest.approx(4 / 3)
    assert again.flops * 3 == kept.flops * 4
    streamed = [
        sum(layer.transfer_s for layer in simulate(gpt(), "cs2", recompute=r, **sizes).layers)
        for r in (False, True)
    ]
    assert streamed[1] / streamed[0] == pytest.approx(3 / 2)
    assert not simulate(gpt(), "cs2", **sizes).recompute
    # Where the kept activations of few samples fit, streaming for many micro-batches costs more.
    tight = replace(SPECS["cs2"], memory_bytes=1.5 * kept.activation_bytes / 8)
    chosen = simulate(gpt(), tight, **sizes)
    assert chosen.recompute and chosen.num_micro_batches < 8
    assert chosen.step_s < simulate(gpt(), tight, recompute=False, **sizes).step_s


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"num_systems": 193}, ValueError, "193.*1 to 192"),
        ({"num_systems": 1.5}, TypeError, "num_systems.*1.5"),
        ({"batch_size": 2.5}, TypeError, "batch_size.*2.5"),
        ({"efficiency": 0}, ValueError, "efficiency.*0"),
        ({"sparsity": {"nope": 0.5}}, ValueError, "nope"),
        ({"sparsity": "a"}, TypeError, "sparsity.*'a'"),
        ({"flops": count(nn.Linear(2, 2), batch_size=8)}, ValueError, "8 samples.*1000"),
        ({"model": 3}, TypeError, "model.*3"),
        ({"device": "tpu"}, ValueError, "tpu.*cs2"),
    ],
)
def test_wrong_arguments_are_named(options, error, words):
    arguments = {"model": nn.Linear(2, 2), "device": "cs2", "batch_size": 1000} | options
    with pytest.raises(error, match=words):
        simulate(**arguments)


def test_without_a_sparsity_the_masks_of_the_model_tell_it():
    model = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512))
    dense = simulate(model, "cs2", batch_size=1000)
    sl.Static(0.9, seed=0).apply(model)
    shares = {f"{i}.weight": 1 - int(model[i].weight_mask.sum()) / 512**2 for i in (0, 1)}
    sparse = simulate(compile(model), "cs2", batch_size=1000)
    told = simulate(model, "cs2", batch_size=1000, sparsity=shares)
    assert sparse.step_s == told.step_s < 0.5 * dense.step_s
    assert simulate(model, "cs2", batch_size=1000, sparsity=0).step_s == dense.step_s


def test_overhead_of_half_the_points_predicts_the_others():
    c = sparse_overhead({d: v for d, v in MATMUL_SPEEDUP.items() if d <= 5})
    errors = [abs((1 / d + c * (1 - 1 / d)) * v - 1) for d, v in MATMUL_SPEEDUP.items()]
    assert list(MATMUL_SPEEDUP) == list(range(1, 11))
    assert max(errors[:5]) < 0.005 and max(errors[5:]) < 0.021
    assert c == pytest.approx(0.0192, abs=5e-5)
    whole = sparse_overhead(MATMUL_SPEEDUP)
    assert SPECS["cs2"].sparse_overhead == whole == pytest.approx(0.0208, abs=5e-5)
    assert SPECS["cs2"].peak_flops == pytest.approx(7.5e15, rel=0.005)  # the published one
    with pytest.raises(ValueError, match="speed-up"):
        sparse_overhead({1: 1.0})
    curve = {d: 1 / (1 / d + 0.05 * (1 - 1 / d)) for d in (2, 3, 4)}
    assert sparse_overhead(curve) == pytest.approx(0.05, rel=1e-9)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_every_fact_has_a_source(spec):
    facts = {"peak_flops", "memory_bytes", "memory_bandwidth", "power_w", "max_systems"}
    streaming = {"stream_bandwidth", "sparse_overhead"}
    facts |= streaming if spec.streams_weights else {"link_bandwidth"}
    assert facts <= spec.sources.keys()
    assert spec.unverified <= spec.sources.keys()
    rows = {row["fact"]: row for row in spec.records()}
    assert rows["memory_bytes"]["value"] == spec.memory_bytes
    # What the vendor of a wafer says of it was read in the press; GPUs have data sheets.
    assert rows["memory_bytes"]["verified"] == (not spec.streams_weights)
    assert [name for name, row in rows.items() if not row["verified"]] == [
        name for name in spec.sources if name in spec.unverified
    ]


def test_a_file_must_declare_its_device_and_the_machine_at_hand_is_measured(tmp_path, monkeypatch):
    (tmp_path / "zoy.py").write_text("SPEC = None\n")
    monkeypatch.setattr(devices, "__path__", [*devices.__path__, str(tmp_path)])
    with pytest.raises(ValueError, match="peak_flops is -1.0, but must be above 0"):
        replace(SPECS["cs2"], peak_flops=-1.0)
    with pytest.raises(ValueError, match="device zoy: the file must declare SPEC with this name"):
        devices.discover()
    host = probe_host(duration_s=0.05)
    assert host.peak_flops > 1e9 and host.memory_bandwidth > 1e8 and not host.skips_zeros
    assert host.title not in {spec.title for spec in SPECS.values()}
