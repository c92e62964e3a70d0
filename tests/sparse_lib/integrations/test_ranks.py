"""Two gloo processes under each library: one set of masks, and a resume with the same bits."""

import importlib
import importlib.util
import os
import socket
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp

LIBRARIES = [
    name for name in ("transformers", "accelerate", "lightning") if importlib.util.find_spec(name)
]  # what starts its own group last, and leaves it open, comes last


def _free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for own in sockets:
        own.bind(("127.0.0.1", 0))
    ports = [own.getsockname()[1] for own in sockets]
    for own in sockets:
        own.close()
    return ports


def _rank(rank, folder, ports):
    torch.set_num_threads(1)
    os.environ |= {"HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "1", "NODE_RANK": "0"}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    for library, port in zip(LIBRARIES, ports):
        os.environ["MASTER_PORT"] = str(port)
        tests = importlib.import_module(f"tests.sparse_lib.integrations.test_{library}")
        ends = tests.in_ranks(Path(folder) / library, rank)
        torch.save(ends, f"{folder}/{library}{rank}.pt")
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_ranks_hold_the_same_masks_and_resume(tmp_path):
    assert LIBRARIES
    mp.spawn(_rank, (str(tmp_path), _free_ports(len(LIBRARIES))), 2)
    for library in LIBRARIES:
        ends = [end for rank in (0, 1) for end in torch.load(tmp_path / f"{library}{rank}.pt")]
        assert len(ends) == 4 and any(name.endswith("_mask") for name in ends[0])
        for name, value in ends[0].items():
            assert all(torch.equal(value, other[name]) for other in ends[1:]), (library, name)
            if f"{name}_mask" in ends[0]:
                assert not value[~ends[0][f"{name}_mask"]].any(), (library, name)
