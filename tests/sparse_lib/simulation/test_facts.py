"""Facts of devices and the calibration of the sparse overhead."""

import pytest

from sparse_lib.simulation.facts import (
    SPECS,
    device_spec,
    probe_host,
    sparse_overhead,
    validate_overhead,
)


def test_overhead_of_all_points_is_the_one_computed_from_the_figure():
    assert sparse_overhead(max_inverse_density=10) == pytest.approx(0.0208, abs=5e-5)


def test_overhead_of_half_the_points_predicts_the_others():
    rows = validate_overhead()
    assert [row["fitted"] for row in rows] == [True] * 5 + [False] * 5
    assert max(abs(row["relative_error"]) for row in rows if row["fitted"]) < 0.005
    assert max(abs(row["relative_error"]) for row in rows if not row["fitted"]) < 0.021
    assert sparse_overhead() == pytest.approx(0.0192, abs=5e-5)
    assert SPECS["cs2"].sparse_overhead == sparse_overhead(max_inverse_density=10)


def test_a_made_up_curve_is_recovered():
    curve = {d: 1 / (1 / d + 0.05 * (1 - 1 / d)) for d in (2, 3, 4)}
    assert sparse_overhead(curve) == pytest.approx(0.05, rel=1e-9)


def test_an_empty_fit_is_refused():
    with pytest.raises(ValueError, match="speed-up"):
        sparse_overhead(max_inverse_density=1)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_every_fact_has_a_source(spec):
    facts = {"peak_flops", "memory_bytes", "memory_bandwidth", "power_w", "max_systems"}
    if spec.streams_weights:
        facts |= {"stream_bandwidth", "sparse_overhead"}
    else:
        facts |= {"link_bandwidth"}
    assert facts <= spec.sources.keys()
    assert spec.unverified <= spec.sources.keys()
    rows = {row["fact"]: row for row in spec.records()}
    assert rows["memory_bytes"]["value"] == spec.memory_bytes
    # What the vendor of a wafer says of it was read in the press; GPUs have data sheets.
    assert rows["memory_bytes"]["verified"] == (not spec.streams_weights)
    assert [name for name, row in rows.items() if not row["verified"]] == [
        name for name in spec.sources if name in spec.unverified
    ]


def test_wse2_peak_is_the_published_one():
    assert SPECS["cs2"].peak_flops == pytest.approx(7.5e15, rel=0.005)


def test_unknown_devices_are_named():
    with pytest.raises(ValueError, match="tpu.*cs2"):
        device_spec("tpu")


def test_the_machine_at_hand_is_probed():
    host = probe_host(duration_s=0.05)
    assert host.peak_flops > 1e9
    assert host.memory_bandwidth > 1e8
    assert not host.skips_zeros
