"""Devices: facts with sources, one file each, and the calibration of the sparse overhead."""

import pytest

from sparse_lib.simulation import devices
from sparse_lib.simulation.devices import SPECS
from sparse_lib.simulation.devices.cs2 import MATMUL_SPEEDUP
from sparse_lib.simulation.host import probe_host
from sparse_lib.simulation.spec import sparse_overhead


def test_overhead_of_half_the_points_predicts_the_others():
    c = sparse_overhead(MATMUL_SPEEDUP)
    errors = [abs((1 / d + c * (1 - 1 / d)) * v - 1) for d, v in MATMUL_SPEEDUP.items()]
    assert list(MATMUL_SPEEDUP) == list(range(1, 11))
    assert max(errors[:5]) < 0.005 and max(errors[5:]) < 0.021
    assert c == pytest.approx(0.0192, abs=5e-5)
    whole = sparse_overhead(MATMUL_SPEEDUP, max_inverse_density=10)
    assert SPECS["cs2"].sparse_overhead == whole == pytest.approx(0.0208, abs=5e-5)
    assert SPECS["cs2"].peak_flops == pytest.approx(7.5e15, rel=0.005)  # the published one
    with pytest.raises(ValueError, match="speed-up"):
        sparse_overhead(MATMUL_SPEEDUP, max_inverse_density=1)
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
    with pytest.raises(ValueError, match="device zoy: the file must declare SPEC with this name"):
        devices.discover()
    host = probe_host(duration_s=0.05)
    assert host.peak_flops > 1e9 and host.memory_bandwidth > 1e8 and not host.skips_zeros
    assert host.title not in {spec.title for spec in SPECS.values()}
