"""Data-parallel training on gloo: same masks on all ranks, equal to one process."""

import contextlib
import hashlib
import os
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import sparse_lib as sl
from sparse_lib.core import distributed
from sparse_lib.core.optimizers import states_like
from sparse_lib.masks import shards
from tests import ranks
from tests.cases import ByHand, driven, same

NUM_STEPS, FREQ = 4, 2
RISING = {"type": "linear", "init": 0.5, "slope": 0.05}
DYNAMIC = {"update": FREQ, "seed": 5}
CASES = {
    "rigl": lambda: sl.RigL(0.7, drop_fraction=0.5, **DYNAMIC),
    "gradient": lambda: sl.RigL(0.7, drop_fraction=0.5, grown_init="gradient", **DYNAMIC),
    "skipping": lambda: sl.RigL(0.7, skip_update_on_mask_steps=True, **DYNAMIC),
    "set": lambda: sl.SET(0.7, drop_fraction=0.5, grown_init="normal", **DYNAMIC),
    "gmp": lambda: sl.GMP(RISING, **DYNAMIC),
    "granet": lambda: sl.GraNet(RISING, pruning="global", **DYNAMIC),
    "snfs": lambda: sl.SNFS(0.7, drop_fraction=0.5, redistribution="momentum", **DYNAMIC),
    "custom": lambda: ByHand(0.7, **DYNAMIC),
    "group": lambda: sl.Group({"0.*": sl.RigL(0.7, **DYNAMIC), "*": sl.Static(0.5, seed=5)}),
}


def make_model(num_outputs=10):
    model = nn.Sequential(nn.Linear(10, 24), nn.Tanh(), nn.Linear(24, num_outputs)).double()
    source = torch.Generator().manual_seed(1)
    for param in model.parameters():
        nn.init.normal_(param, 0, 0.3, generator=source)
    return model


def shares(step, num_micro, rank, world_size):
    """A rank's parts of the micro-batches of a step; without a rank all of them."""
    for micro in range(num_micro):
        source = torch.Generator().manual_seed(10 * step + micro)
        whole = torch.randn(8, 10, generator=source).double()
        yield whole if rank is None else whole.chunk(world_size)[rank]


def train(case, rank, world_size, no_sync=False):
    """Masks and weights after training on two micro-batches per step."""
    torch.manual_seed(10 + (rank or 0))  # ranks draw differently; DDP and we must not mind
    model, algorithm = make_model(), CASES[case]()
    algorithm.apply(model)
    parallel = model if rank is None else DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    algorithm.apply(optimizer)
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        for micro, share in enumerate(shares(step, 2, rank, world_size)):
            alone = no_sync and rank is not None and micro == 0
            with parallel.no_sync() if alone else contextlib.nullcontext():
                (parallel(share).sin().pow(2).mean() / 2).backward()
        optimizer.step()
        for sparse in algorithm.sparse_params.values():
            assert not sparse.param.detach()[~sparse.mask].any()
    state = model.state_dict()
    return {n: v for n, v in state.items() if n.endswith("_mask")}, state


class Branches(nn.Module):
    """A layer that a rank may leave out, as experts are and layers that are dropped."""

    def __init__(self):
        super().__init__()
        self.always, self.other = nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False)

    def forward(self, inputs, uses_other):
        hidden = self.always(inputs)
        return hidden + torch.tanh(self.other(inputs)) if uses_other else hidden


UNUSED = {
    "rigl": lambda: sl.RigL(0.5, drop_fraction=0.5, **DYNAMIC),
    "snfs": lambda: sl.SNFS(0.5, drop_fraction=0.5, **DYNAMIC),
    "granet": lambda: sl.GraNet(0.5, drop_fraction=0.5, pruning="global", **DYNAMIC),
}


def train_unused(case, rank, world_size):
    """Masks after two updates; one process alone has the samples of all ranks."""
    torch.manual_seed(3)
    model, algorithm = Branches().double(), UNUSED[case]()
    optimizer = driven(algorithm, model, torch.optim.SGD, 0.05)
    call = model if rank is None else DistributedDataParallel(model, find_unused_parameters=True)
    for step in range(2 * FREQ):
        optimizer.zero_grad()
        for own in range(world_size) if rank is None else [rank]:
            source = torch.Generator().manual_seed(100 * step + own)
            inputs = torch.randn(4, 10, generator=source).double()
            loss = call(inputs, own != 1).pow(2).mean()
            (loss / world_size if rank is None else loss).backward()
        optimizer.step()
    return {name: sparse.mask for name, sparse in algorithm.sparse_params.items()}, {}


def check_that_whole_decisions_refuse_shards(world_size):
    mesh = init_device_mesh("cpu", (world_size,))
    for algorithm in (sl.SRigL(0.8), sl.TopK(0.8, min_per_output=1), sl.TopK(0.8, min_per_input=1)):
        model = fully_shard(make_model(), mesh=mesh)
        with pytest.raises(ValueError, match="'0.weight' is sharded, and .* without fully_shard"):
            algorithm.apply(model)
        assert not algorithm.sparse_params and not hasattr(model[0], "weight_mask")


def check_that_masks_are_compared(rank):
    compared = []
    real, distributed.check_equal = distributed.check_equal, compared.append
    train("rigl", rank, dist.get_world_size())
    distributed.check_equal = real
    assert len(compared) == NUM_STEPS // FREQ
    assert all(list(masks) == ["0.weight", "0.bias", "2.weight", "2.bias"] for masks in compared)
    with pytest.raises(RuntimeError, match=r"masks of \['w'\] differ between ranks"):
        distributed.check_equal({"v": torch.ones(2), "w": torch.tensor([True, rank == 0])})
    # A rank that was given a seed of its own is noticed at the first update.
    model, algorithm = make_model(), sl.SET(0.7, update=1, seed=rank)
    optimizer = driven(algorithm, model)
    model(torch.ones(1, 10).double()).sum().backward()
    with pytest.raises(RuntimeError, match="differ between ranks"):
        optimizer.step()


def check_that_seeds_are_shared(rank):
    assert distributed.shared_seed(rank + 3) == 3
    torch.manual_seed(rank)
    model, algorithm = make_model(), sl.SET(0.7, update=1)
    algorithm.apply(model)
    distributed.check_equal({"w": model[0].weight_mask})
    assert algorithm.seed == 0


def first_weights(param, sparsity):
    """Those of the first rows: the last rank has none that tells how gradients were clipped."""
    return torch.arange(param.numel()).view(param.shape) < (1 - sparsity) * param.numel()


SHARDED = {
    **CASES,
    "erk": lambda: sl.RigL(0.7, drop_fraction=0.5, distribution="erk", **DYNAMIC),
    "global": lambda: sl.GMP(RISING, distribution="global", init_method="topk", **DYNAMIC),
    "ties": lambda: sl.GMP(0.6, init_method="checkerboard", tie_breaker="random", **DYNAMIC),
    "2:4": lambda: sl.Group(
        {"2.weight": sl.RigL(0.5, score_shaper="2:4", **DYNAMIC), "*": sl.Static(0.5, seed=5)}
    ),
    "heads": lambda: sl.Group(
        {"0.weight": sl.RigL(0.5, balance_out_groups=3, **DYNAMIC), "*": sl.Static(0.5, seed=5)}
    ),
    "topk": lambda: sl.TopK(RISING, gradient_rms=0.01, seed=5),
    "srste": lambda: sl.SRSTE(0.5, decay=0.1, seed=5),
    "topkast": lambda: sl.TopKAST(0.8, backward_sparsity=0.5, regularization=0.1, **DYNAMIC),
    "own": lambda: sl.Static(0.5, init_method=lambda p, s: p > p.median()),
    "first rows": lambda: sl.SNFS(0.7, init_method=first_weights, drop_fraction=0.5, **DYNAMIC),
    "falling": lambda: sl.SET([0.9, 0.1], **DYNAMIC),
    "one rigl": lambda: sl.RigL(0.7, drop_fraction=0.5, distribution="erk", **DYNAMIC),
    "one rising": lambda: sl.GraNet(RISING, drop_fraction=0.5, **DYNAMIC),
    "one falling": lambda: sl.RigL([0.9, 0.5, 0.7], drop_fraction=0.3, **DYNAMIC),
    "dense": lambda: sl.SET(0.9, init_method="balanced-topk", grown_init="uniform", **DYNAMIC),
}


#: Trained with a layer of one output, of which all ranks but one have no row.
WITHOUT_ROWS = ("snfs", "granet", "set", "topk", "srste", "topkast", "gradient", "global")


def mask_digest(algorithm):
    """Hash of all masks, put together from the ranks one at a time."""
    digest = hashlib.sha256()
    for name, sparse in algorithm.sparse_params.items():
        digest.update(name.encode() + shards.whole(sparse.mask).numpy().tobytes())
    return digest.hexdigest()


def train_sharded(case, rank, world_size, num_steps=NUM_STEPS, num_outputs=10):
    """Two micro-batches per step, each layer clipped; hashes of masks by step, and measures.

    Cases named "one ..." have one backward pass, and layers sharded in two groups. One rank alone
    trains the plain model.
    """
    torch.manual_seed(10 + (rank or 0))
    model, algorithm = make_model(num_outputs), SHARDED[case]()
    if rank is not None:
        mesh = init_device_mesh("cpu", (world_size,))
        if case.startswith("one "):
            fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = driven(algorithm, model, torch.optim.AdamW, 0.05)
    digests = [mask_digest(algorithm)]
    for step in range(num_steps):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        for share in shares(step, 1 if case.startswith("one ") else 2, rank, world_size):
            (model(share).sin().pow(2).mean() / 2).backward()
        for layer in (model[0], model[2]):  # each by a factor of its own
            nn.utils.clip_grad_norm_(layer.parameters(), 0.01)
        optimizer.step()
        digests.append(mask_digest(algorithm))
        for sparse in algorithm.sparse_params.values():
            states = (sparse.param,)
            if all(member.masks_states for member in algorithm.algorithms):
                states = (sparse.param, *states_like(optimizer, sparse.param))
            for tensor in states:
                kept = shards.local(sparse.mask)
                assert not shards.local(tensor.detach())[~kept].any(), (case, sparse.name)
    measured = algorithm.metrics()
    state = {name: shards.whole(value) for name, value in model.state_dict().items()}
    return [digests, measured], state if num_outputs > 1 else {}


def check_that_sharding_is_checked(world_size):
    mesh = init_device_mesh("cpu", (world_size,))
    model, algorithm = make_model(), sl.Static(0.5)
    algorithm.apply(model)
    fully_shard(model, mesh=mesh)
    with pytest.raises(ValueError, match="0.weight' was sharded after it got its mask; call fully"):
        algorithm.apply(torch.optim.SGD(model.parameters(), 0.1))
    model, algorithm = fully_shard(make_model(), mesh=mesh), sl.SET(0.5, update=1)
    algorithm.apply(model)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 10).double()).sum().backward()
    with pytest.warns(UserWarning, match="it was applied to no optimizer"):
        optimizer.step()
    assert not shards.local(model[0].weight)[~shards.local(model[0].weight_mask)].any()
    model = make_model()
    model[0].weight = nn.Parameter(distribute_tensor(model[0].weight, mesh, [Shard(1)]))
    with pytest.raises(ValueError, match=r"Shard\(dim=1\).*masks need Shard\(0\)"):
        sl.Static(0.5).apply(model)


def check_that_a_sharded_state_resumes(world_size):
    """A state saved from shards goes on in one process, and the other way round."""
    mesh = init_device_mesh("cpu", (world_size,))
    model, algorithm = fully_shard(make_model(), mesh=mesh), sl.SET(0.7, update=1, seed=5)
    algorithm.apply(model)
    for _ in range(3):
        algorithm.update()
    state, plain, other = algorithm.state_dict(), make_model(), sl.SET(0.7, update=1, seed=5)
    flags = {n: shards.whole(s["history"]["flags"]) for n, s in state["params"].items()}
    for name, value in flags.items():
        state["params"][name]["history"]["flags"] = value
    other.apply(plain)
    other.load_state_dict(state)
    algorithm.load_state_dict(state)
    masks = {name: shards.whole(s.mask) for name, s in algorithm.sparse_params.items()}
    for name, sparse in other.sparse_params.items():
        sparse.mask = masks[name]
        other.load_state_dict(state)
    algorithm.update()
    other.update()
    assert mask_digest(algorithm) == mask_digest(other)
    assert algorithm.metrics() == other.metrics()
    assert all(s["history"]["flags"].shape == flags[n].shape for n, s in state["params"].items())


#: Functions of rank, or None for one process alone, and number of ranks: what is equal, and near.
JOBS = {
    **{f"split {case}": partial(train, case) for case in CASES},
    "split without sync": partial(train, "rigl", no_sync=True),
    **{f"sharded {case}": partial(train_sharded, case) for case in SHARDED},
    **{
        f"one row of {case}": partial(train_sharded, case, num_steps=2, num_outputs=1)
        for case in WITHOUT_ROWS
    },
    **{f"unused {case}": partial(train_unused, case) for case in UNUSED},
}


def worker(rank, world_size, folder):
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
    for name, job in JOBS.items():
        torch.save(job(rank, world_size), f"{folder}/{name}-{rank}.pt")
    check_that_seeds_are_shared(rank)
    check_that_masks_are_compared(rank)
    check_that_whole_decisions_refuse_shards(world_size)
    check_that_sharding_is_checked(world_size)
    check_that_a_sharded_state_resumes(world_size)
    dist.destroy_process_group()


@pytest.mark.slow
# Four ranks share few cores; `make soak` tries them.
@pytest.mark.parametrize("world_size", [2, 4] if "SOAK" in os.environ else [2])
def test_ranks_equal_one_process(world_size, tmp_path):
    ranks.run(worker, world_size, str(tmp_path))
    for name, job in JOBS.items():
        exact, near = job(None, world_size)
        found = [torch.load(tmp_path / f"{name}-{rank}.pt") for rank in range(world_size)]
        assert same(found[0][0], exact) and all(same(found[0], other) for other in found), name
        close = {"rtol": 1e-9, "atol": 1e-12} if "split" in name else {"rtol": 1e-5, "atol": 1e-6}
        torch.testing.assert_close(found[0][1], near, **close, msg=name)


def test_checksums_tell_masks_apart():
    assert len({int(distributed.checksum(mask)) for mask in torch.eye(1000).bool()}) == 1000
