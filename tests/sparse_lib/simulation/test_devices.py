"""Devices: facts with sources, one file each, and the calibration of the sparse overhead."""

import sys

import pytest

from sparse_lib.simulation import devices
from sparse_lib.simulation.devices import SPECS
from sparse_lib.simulation.devices.cs2 import MATMUL_SPEEDUP
from sparse_lib.simulation.host import probe_host
from sparse_lib.simulation.spec import sparse_overhead, validate_overhead


def test_overhead_of_half_the_points_predicts_the_others():
    rows = validate_overhead(MATMUL_SPEEDUP)
    assert [row["fitted"] for row in rows] == [True] * 5 + [False] * 5
    assert max(abs(row["relative_error"]) for row in rows if row["fitted"]) < 0.005
    assert max(abs(row["relative_error"]) for row in rows if not row["fitted"]) < 0.021
    assert sparse_overhead(MATMUL_SPEEDUP) == pytest.approx(0.0192, abs=5e-5)
    whole = sparse_overhead(MATMUL_SPEEDUP, max_inverse_density=10)
    assert SPECS["cs2"].sparse_overhead == whole == pytest.approx(0.0208, abs=5e-5)
    assert SPECS["cs2"].peak_flops == pytest.approx(7.5e15, rel=0.005)  # the published one
    with pytest.raises(ValueError, match="speed-up"):
        sparse_overhead(MATMUL_SPEEDUP, max_inverse_density=1)


def test_a_made_up_curve_is_recovered():
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


TOY = """
from sparse_lib.simulation.spec import DeviceSpec

SPEC = DeviceSpec(
    name={name!r}, title="A toy", label={label!r}, color={color!r}, peak_flops=1e12,
    precision="float32", weight_bytes=4, memory_bytes=1e9, memory_bandwidth=1e12, power_w=10,
    sources={{"peak_flops": "made up"}},
)
"""


def add_device(folder, monkeypatch, name, label="Toy", color="#123456"):
    (folder / f"{name}.py").write_text(TOY.format(name=name, label=label, color=color))
    monkeypatch.setattr(devices, "__path__", [*devices.__path__, str(folder)])
    monkeypatch.delitem(sys.modules, f"{devices.__name__}.{name}", raising=False)
    return devices.discover()


@pytest.mark.parametrize(
    ("declared", "sentence"),
    [
        ({"label": "CS-2"}, "another device has the label 'CS-2'"),
        ({"color": "red"}, "color must be '#rrggbb', not 'red'"),
    ],
)
def test_what_a_device_declares_is_checked(declared, sentence, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=f"device zoy: {sentence}"):
        add_device(tmp_path, monkeypatch, "zoy", **declared)


def test_devices_can_be_told_apart_in_a_figure():
    host = probe_host(duration_s=0.05)
    assert host.peak_flops > 1e9 and host.memory_bandwidth > 1e8 and not host.skips_zeros
    for attribute in ("label", "color", "title"):
        assert len({getattr(spec, attribute) for spec in (*SPECS.values(), host)}) == len(SPECS) + 1
