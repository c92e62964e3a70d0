"""Peak memory of a RigL mask update on a model sharded by fully_shard, beside a sharded step's.

    python -m benchmarks.sharded_update [--ranks 2] [--width 1024] [--layers 8]

Gloo ranks on the CPU. The peak is that of live tensor bytes of rank 0, counted after each
operation; what is printed is the peak during an ordinary step, that during the step whose end
updates masks, and their ratio.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import weakref

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sparse_lib.algorithms.rigl import RigL


class Live(TorchDispatchMode):
    """The bytes of storages that operations made and that are still alive.

    fully_shard frees what it gathered by resizing, so sizes are asked for after each operation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self.known: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                storage = getattr(leaf, "_local_tensor", leaf).untyped_storage()
                self.known[storage._cdata] = weakref.ref(storage)
        self.peak = max(self.peak, self.bytes())
        return result

    def bytes(self) -> int:
        """What is alive now."""
        sizes = {key: storage.nbytes() for key, ref in self.known.items() if (storage := ref())}
        self.known = {key: self.known[key] for key in sizes}
        return sum(sizes.values())


def work(rank: int, ranks: int, width: int, layers: int, sparsity: float, store: str) -> None:
    """Train on one rank, and print rank 0's peaks."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    live = Live()
    with live:
        blocks = [
            nn.Sequential(nn.Linear(width, width, bias=False), nn.ReLU()) for _ in range(layers)
        ]
        model = nn.Sequential(*blocks)
        for block in blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        algorithm = RigL(sparsity, update={"freq": 4, "start": 4})
        algorithm.apply(model)
        optimizer = torch.optim.AdamW(model.parameters())
        algorithm.apply(optimizer)
        peaks = []
        for _ in range(4):
            live.peak = live.bytes()
            optimizer.zero_grad()
            model(torch.randn(64, width)).square().mean().backward()
            optimizer.step()
            peaks.append(live.peak)
    if rank == 0:
        usual, update = peaks[2], peaks[3]
        print(f"peak of a step {usual / 2**20:.1f} MiB, of one that updates masks ", end="")
        print(f"{update / 2**20:.1f} MiB, ratio {update / usual:.3f}")
    dist.destroy_process_group()


def main() -> None:
    """Start the ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--sparsity", type=float, default=0.9)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        given = (options.ranks, options.width, options.layers, options.sparsity, store)
        mp.start_processes(work, given, nprocs=options.ranks, start_method="spawn")


if __name__ == "__main__":
    main()
