"""The processes that train one run together, as torchrun starts them.

Without torchrun there is one rank, and nothing here communicates. All ranks do the same steps;
rank 0 alone holds the lock, writes and speaks.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from experiments.errors import UserError, variable
from experiments.training.device import resolve
from sparse_lib.masks import shards

#: How long ranks wait for one that validates, saves or waits for a lock.
PATIENCE = timedelta(days=2)
#: Environment variables by which processes find each other.
RENDEZVOUS = ("RANK", "MASTER_ADDR", "MASTER_PORT")


class Ranks:
    """This process among those of its run.

    Args:
        strategy: ``ddp`` (each rank holds the model) or ``fsdp2`` (each holds a part of it).
        device: What `experiments.training.device.resolve` takes.

    Raises:
        UserError: If there is no such device.
    """

    def __init__(self, strategy: str = "ddp", device: str = "cpu") -> None:
        self.rank = int(variable("RANK", 0))
        self.size = int(variable("WORLD_SIZE", 1))
        if self.rank >= self.size:
            raise UserError(f"RANK is {self.rank} of WORLD_SIZE {self.size}; torchrun sets both")
        self.strategy = strategy
        self.device = resolve(device, local_rank=int(variable("LOCAL_RANK", 0)))
        self._control: Any = None
        self._parallel: Any = None
        if self.size == 1:
            return
        if self.device.type == "mps":
            raise UserError("device is 'mps', which trains in one process only")
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if not dist.is_initialized():
            if lacking := [key for key in RENDEZVOUS if key not in os.environ]:
                raise UserError(
                    f"WORLD_SIZE is {self.size}, but {lacking[0]} is not set; torchrun sets it"
                )
            backend = "nccl" if self.device.type == "cuda" else "gloo"
            dist.init_process_group(backend, timeout=PATIENCE)
        # Flags of processes never wait for a GPU.
        self._control = dist.new_group(backend="gloo", timeout=PATIENCE)

    @property
    def first(self) -> bool:
        """Whether this rank writes and speaks."""
        return self.rank == 0

    @property
    def sharded(self) -> bool:
        """Whether each rank holds a part of the model only."""
        return self.size > 1 and self.strategy == "fsdp2"

    def close(self) -> None:
        """Leave the group."""
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()

    # What ranks tell each other

    def any(self, *flags: int) -> list[int]:
        """The largest value of each flag over the ranks; all call it at the same steps."""
        if self.size == 1:
            return list(flags)
        box = torch.tensor(flags)
        dist.all_reduce(box, dist.ReduceOp.MAX, group=self._control)
        return box.tolist()

    def mean(self, value: float) -> float:
        """The mean of a number over the ranks."""
        if self.size == 1:
            return value
        box = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(box, group=self._control)
        return box.item() / self.size

    def from_first(self, value: Any = None) -> Any:
        """Rank 0's value, on every rank; the others wait for it."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, 0, group=self._control)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in the order of the ranks, on every rank."""
        if self.size == 1:
            return [value]
        found = [None] * self.size
        dist.all_gather_object(found, value, group=self._control)
        return found

    # The model

    def shard(self, model: nn.Module) -> nn.Module:
        """Prepare a model before optimizer and masks see it: synchronised norms, shards.

        Raises:
            UserError: If its batch norms cannot be synchronised.
        """
        if self.size == 1:
            return model
        if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules()):
            if self.device.type != "cuda":
                raise UserError(
                    "the model has batch norms, whose statistics torch synchronises over "
                    "processes on CUDA only; train it in one process, or on GPUs"
                )
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        if self.sharded:
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh(self.device.type, (self.size,))
            for part in reversed(list(model.modules())):  # inner ones first
                for block in part if isinstance(part, nn.ModuleList) else ():
                    fully_shard(block, mesh=mesh)
            fully_shard(model, mesh=mesh)
        return model

    def parallel(self, model: nn.Module) -> nn.Module:
        """What computes a step's loss: the model, which averages gradients if there are ranks."""
        if self.size == 1 or self.sharded:
            return model
        if self._parallel is None:
            # Masks are equal by construction, and batch norms synchronise themselves.
            wrapper = nn.parallel.DistributedDataParallel
            names = inspect.signature(wrapper).parameters  # the key has a new name in torch 2.13
            key = next(k for k in ("forward_sync_buffers", "broadcast_buffers") if k in names)
            options: dict[str, Any] = {key: False}
            self._parallel = wrapper(model, **options)
        return self._parallel

    def micro_batch(self, *, last: bool) -> AbstractContextManager[Any]:
        """What a micro-batch's passes run in: gradients are averaged with the last one's."""
        if self._parallel is None or last:
            return nullcontext()
        return self._parallel.no_sync()

    def settle(self, model: nn.Module) -> None:
        """Put a sharded model's gathered weights away, as after a pass without gradients."""
        if self.sharded:
            model.reshard()  # type: ignore[operator]

    # States

    def whole(self, state: Any) -> Any:
        """A state with whole tensors, gathered one at a time; rank 0's alone is complete."""
        if not self.sharded:
            return state
        if shards.is_sharded(state):
            gathered = shards.whole(state.detach())
            return gathered.cpu() if self.first else None
        if isinstance(state, Mapping):
            return {key: self.whole(value) for key, value in state.items()}
        if isinstance(state, list | tuple):
            return type(state)(self.whole(value) for value in state)
        return state

    def load(self, model: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
        """Load a model's whole state."""
        own = model.state_dict()
        model.load_state_dict({k: shards.fitted(v, own[k]) for k, v in state.items() if k in own})

    def load_optimizer(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Load an optimizer's whole state, whose entries are numbered as its parameters are."""
        params = [param for group in optimizer.param_groups for param in group["params"]]
        entries = {
            index: {
                key: shards.fitted(value, params[index])
                if isinstance(value, torch.Tensor) and value.shape == params[index].shape
                else value
                for key, value in entry.items()
            }
            for index, entry in state["state"].items()
        }
        optimizer.load_state_dict({**state, "state": entries})


@contextmanager
def ranks(strategy: str, device: str) -> Iterator[Ranks]:
    """The ranks of this run, until the block ends."""
    found = Ranks(strategy, device)
    try:
        yield found
    finally:
        found.close()
