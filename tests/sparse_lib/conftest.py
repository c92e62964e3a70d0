"""Registrations of one test must not reach the next."""

import pytest

from sparse_lib.schedules import HyperParameterSchedule


@pytest.fixture(autouse=True)
def own_schedules(monkeypatch):
    """Schedules that a test defines are forgotten after it."""
    monkeypatch.setattr(HyperParameterSchedule, "registry", dict(HyperParameterSchedule.registry))
