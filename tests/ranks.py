"""Processes for tests of several ranks, which share one import of torch and the models."""

import multiprocessing

import torch.multiprocessing as mp

PRELOADED = [
    "experiments.training.loop",
    "experiments.tasks.lm",
    "sparse_lib",
    "torch._dynamo",
    "torch.distributed.device_mesh",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.testing",
    "transformers.models.llama.modeling_llama",
]


def run(work, size, *arguments):
    """Call ``work(rank, size, *arguments)`` in ``size`` processes and wait for all of them."""
    multiprocessing.set_forkserver_preload(PRELOADED)
    mp.start_processes(work, (size, *arguments), nprocs=size, start_method="forkserver")
