"""One thread, one seed and no network in every test."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no fault.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.pop("SPARSE_MIRROR", None)
# Processes that tests start find the studies, which are no package.
os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])


@pytest.fixture(autouse=True)
def one_thread():
    """The machine's threads belong to the test workers; draws depend on no other test."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)


def pytest_collection_modifyitems(items):
    """The slow tests come first, so that no worker is left with a long one at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
