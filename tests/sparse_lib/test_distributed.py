"""Data-parallel training on gloo: same masks on all ranks, equal to one process."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sparse_lib import distributed
from sparse_lib.algorithms.rigl import RigL
from sparse_lib.algorithms.set import SET

NUM_STEPS = 4
CASES = {"rigl": (RigL, {}), "gradient": (RigL, {"grown_init": "gradient"}), "set": (SET, {})}


def run(case, rank, world_size):
    """Two micro-batches per step, each split over the ranks."""
    torch.manual_seed(0 if world_size == 1 else 10 + rank)  # ranks differ; DDP and we must not
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(10, 24), nn.Tanh(), nn.Linear(24, 10)).double()
    source = torch.Generator().manual_seed(1)
    for param in model.parameters():
        nn.init.normal_(param, 0, 0.3, generator=source)
    cls, options = CASES[case]
    algorithm = cls(0.7, update=2, drop_fraction=0.5, seed=5, **options)
    algorithm.apply(model)
    parallel = DistributedDataParallel(model) if world_size > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    algorithm.apply(optimizer)
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        for micro in range(2):
            data = torch.randn(
                8, 10, generator=torch.Generator().manual_seed(10 * step + micro)
            ).double()
            share = data.chunk(world_size)[rank]
            (parallel(share).sin().pow(2).mean() / 2).backward()
        optimizer.step()
        for sparse in algorithm.sparse_params.values():
            assert not sparse.param.detach()[~sparse.mask].any()
    return model.state_dict()


def worker(rank, world_size, case, port, folder):
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store-{port}", rank=rank, world_size=world_size
    )
    torch.save(run(case, rank, world_size), f"{folder}/{rank}.pt")
    if case == "rigl":
        masks = {"w": torch.tensor([True, False, rank == 0])}
        with pytest.raises(RuntimeError, match="differ between ranks"):
            distributed.check_equal(masks)
        assert distributed.shared_seed(rank + 3, torch.device("cpu")) == 3
    dist.destroy_process_group()


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_equal_one_process(case, tmp_path):
    mp.start_processes(worker, (2, case, 0, str(tmp_path)), nprocs=2, start_method="fork")
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    alone = run(case, 0, 1)
    for name in alone:
        assert torch.equal(first[name], second[name]), name
        if name.endswith("_mask"):
            assert torch.equal(first[name], alone[name]), name
        else:
            torch.testing.assert_close(first[name], alone[name], rtol=1e-9, atol=1e-12)


def test_checksums_tell_masks_apart():
    base = torch.zeros(1000, dtype=torch.bool)
    sums = set()
    for index in range(1000):
        mask = base.clone()
        mask[index] = True
        sums.add(int(distributed.checksum(mask)))
    assert len(sums) == 1000
