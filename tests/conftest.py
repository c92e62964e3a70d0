"""One thread and no network in every test."""

import os

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.pop("SPARSE_MIRROR", None)


@pytest.fixture(autouse=True)
def one_thread():
    """The machine's threads belong to the test workers."""
    import torch

    torch.set_num_threads(1)
