"""What the sources say about the sparsity library, asked of sparse_lib: invariants, counts of
weights, schedules, search spaces, and the cost of a masked step.

``properties``: one row per case; ``expected`` follows from the source's words or formula alone,
``found`` is read off masks, weights and optimizer states of a real model.
``overhead``: CPU time of sparse training over dense training, the same loop for both, in rounds;
``machine``: on which machine.
"""

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from experiments.computations._machine import machine_row
from experiments.models import gpt2, llama
from sparse_lib.algorithms.gmp import GMP
from sparse_lib.algorithms.granet import GraNet
from sparse_lib.algorithms.rigl import RigL
from sparse_lib.algorithms.set import SET
from sparse_lib.algorithms.static import Static
from sparse_lib.compat.rules import CSTORCH
from sparse_lib.configure import configure
from sparse_lib.core.algorithm import SparsityAlgorithm
from sparse_lib.ift import transform
from sparse_lib.layers import describe
from sparse_lib.masks.makers import make_mask_drop_minimum
from sparse_lib.schedules.values import Cosine, Cubic

Row = dict[str, Any]

SPARSITIES = (0.5, 0.8, 0.9, 0.95)
STEPS = 20
RAMP = {"init_sparsity": 0.5, "end_sparsity": 0.8, "sparsity_start_step": 0,
        "sparsity_end_step": 12}  # fmt: skip
OFTEN = {"freq": 3, "stop": 18}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD with momentum": lambda weights: torch.optim.SGD(weights, 0.05, momentum=0.9),
    "AdamW": lambda weights: torch.optim.AdamW(weights, 0.01),
    "RMSprop": lambda weights: torch.optim.RMSprop(weights, 0.01, momentum=0.9),
}
#: Parts of a name that exclude a tensor, by the rule that the source states.
EXCLUDED = ("embedding", "norm", "lm_head", "pe_helper")
#: Width, batch and number of paired rounds of the timing; a round is one update interval.
WIDTH, BATCH, ROUNDS, INTERVAL, STEPS_PER_TURN = 512, 512, 5, 50, 10


def compute(scale: str) -> dict[str, pd.DataFrame]:
    """All tables; they are the same at every scale, but that ``smoke`` times fewer rounds."""
    rows = [row for rule in RULES for row in rule()]
    properties = pd.DataFrame(rows, columns=["claim", "property", "case", "expected", "found"])
    here = machine_row(num_threads=1)
    overhead = pd.DataFrame(overhead_rows(2 if scale == "smoke" else ROUNDS))
    return {
        "properties": properties.assign(met=properties["expected"] == properties["found"]),
        "overhead": overhead.assign(machine=here["machine"]),
        "machine": pd.DataFrame([here]),
    }


def _row(claim: str, rule: str, case: str, expected: float, found: float) -> Row:
    return {"claim": claim, "property": rule, "case": case, "expected": expected, "found": found}


def algorithms(compat: str | None = None) -> dict[str, SparsityAlgorithm]:
    """Every built-in algorithm with masks that move within ``STEPS`` steps, as far as they do."""
    return {
        "Static": Static(0.8, compat=compat, seed=0),
        "GMP": GMP(dict(RAMP, type="cubic"), update=OFTEN, compat=compat, seed=0),
        "SET": SET(0.8, update=OFTEN, compat=compat, seed=0),
        "RigL": RigL(0.8, update=OFTEN, compat=compat, seed=0),
        "GraNet": GraNet(dict(RAMP, type="cubic"), update=OFTEN, compat=compat, seed=0),
    }


def perceptron() -> nn.Sequential:
    """Two layers whose sizes are multiples of nothing in particular."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(37, 53), nn.ReLU(), nn.Linear(53, 19))


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, num_steps: int, inputs: torch.Tensor
) -> Iterator[int]:
    """The training loop of every case: nothing in it knows of masks. Yields after each step."""
    for step in range(num_steps):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        yield step


# ------------------------------------------------------------------------------------- properties


def cubic_rows() -> Iterator[Row]:
    """C008: s_f + (s_i - s_f)(1 - progress)^3, within its ends, never falling."""
    for start, end in ((0.0, 0.9), (0.5, 0.8)):
        schedule = Cubic(start, end, sparsity_start_step=10, sparsity_end_step=90)
        values = [schedule(step) for step in range(120)]
        progress = [min(max((step - 10) / 80, 0), 1) for step in range(120)]
        formula = [end + (start - end) * (1 - x) ** 3 for x in progress]
        wrong = int((~np.isclose(values, formula, rtol=0, atol=1e-12)).sum())
        falls = int((np.diff(values) < 0).sum())
        case = f"{start:g} to {end:g}, 120 steps"
        yield _row("C008", "steps off the formula", case, 0, wrong)
        yield _row("C008", "steps at which the sparsity falls", case, 0, falls)


def cosine_rows() -> Iterator[Row]:
    """C014: o + a cos(pi step / half_period), and the minimum at half_period."""
    for init, minimum in ((0.5, 0.0), (0.3, 0.1)):
        schedule = Cosine(init, half_period=75, minimum=minimum)
        offset, amplitude = (init + minimum) / 2, (init - minimum) / 2
        wrong = sum(
            not math.isclose(
                schedule(step), offset + amplitude * math.cos(math.pi * step / 75), abs_tol=1e-12
            )
            for step in range(76)
        )
        case = f"{init:g} to {minimum:g} in 75 steps"
        yield _row("C014", "steps off the formula", case, 0, wrong)
        yield _row("C014", "value at half_period", case, minimum, schedule(75))


def invariant_rows() -> Iterator[Row]:
    """C009: zero weights, gradients and optimizer states where the mask is zero, at every step."""
    inputs = torch.randn(16, 37, generator=torch.Generator().manual_seed(1))
    for optimizer_name, make_optimizer in OPTIMIZERS.items():
        for name, algorithm in algorithms().items():
            model = perceptron()
            algorithm.apply(model)
            optimizer = make_optimizer(model.parameters())
            algorithm.apply(optimizer)
            found = 0
            for _ in train(model, optimizer, STEPS, inputs):
                for sparse in algorithm.sparse_params.values():
                    states = optimizer.state[sparse.param].values()
                    shape = sparse.mask.shape
                    same = [s for s in states if torch.is_tensor(s) and s.shape == shape]
                    for tensor in (sparse.param.detach(), sparse.param.grad, *same):
                        found += int(tensor[~sparse.mask].count_nonzero())
            case = f"{name}, {optimizer_name}, {STEPS} steps"
            rule = "non-zero weights, gradients and states outside the masks"
            yield _row("C009", rule, case, 0, found)


def truncated(fraction: float, count: int) -> int:
    """int((1 - fraction) * count) in float32, in which the source's library computes it."""
    return int((np.float32(1) - np.float32(fraction)) * np.float32(count))


def count_rows() -> Iterator[Row]:
    """C010: SET and RigL keep the number of weights; dropping keeps int((1 - drop) nnz)."""
    inputs = torch.randn(16, 37, generator=torch.Generator().manual_seed(1))
    for name, make in {"SET": SET, "RigL": RigL}.items():
        for sparsity in SPARSITIES:
            model = perceptron()
            algorithm = make(sparsity, update=OFTEN, compat=CSTORCH, seed=0)
            algorithm.apply(model)
            optimizer = torch.optim.SGD(model.parameters(), 0.05)
            algorithm.apply(optimizer)
            wrong = 0
            for _ in train(model, optimizer, STEPS, inputs):
                for sparse in algorithm.sparse_params.values():
                    expected = truncated(sparsity, sparse.mask.numel())
                    wrong += int(sparse.mask.sum()) != expected
            case = f"{name}, sparsity {sparsity:g}, {STEPS} steps"
            yield _row("C010", "masks with another number of weights", case, 0, wrong)
    score = torch.rand(53, 37, generator=torch.Generator().manual_seed(2))
    for sparsity in SPARSITIES:
        mask = score > score.flatten().sort().values[int(sparsity * score.numel())]
        for drop in (0.1, 0.3, 0.5):
            kept, _ = make_mask_drop_minimum(score, mask, drop, rules=CSTORCH)
            case = f"drop {drop:g} of {int(mask.sum())}"
            yield _row(
                "C010", "weights left by a drop", case,
                truncated(drop, int(mask.sum())), int(kept.sum()),
            )  # fmt: skip


def random_init_rows() -> Iterator[Row]:
    """C011: a random mask has an exact number of weights, whatever the seed."""
    for shape in ((37, 53), (19, 53), (8, 3, 5, 5)):
        for sparsity in SPARSITIES:
            counts = set()
            for seed in range(10):
                layer = nn.Linear(1, 1)
                layer.weight = nn.Parameter(torch.ones(shape))
                algorithm = Static(sparsity, compat=CSTORCH, seed=seed)
                algorithm.apply(layer)
                counts.add(int(next(iter(algorithm.sparse_params.values())).mask.sum()))
            expected = truncated(sparsity, math.prod(shape))
            found = counts.pop() if len(counts) == 1 else math.nan
            case = f"{' x '.join(map(str, shape))}, sparsity {sparsity:g}, 10 seeds"
            yield _row("C011", "weights of each mask", case, expected, found)


def decoders() -> dict[str, nn.Module]:
    """The two language models, as small as they get."""
    sizes = {"hidden_size": 32, "num_layers": 2, "num_heads": 2}
    rest = {"vocab_size": 64, "context": 16, "eos_id": 0}
    return {
        "GPT-2": gpt2.build(gpt2.Config(**sizes), **rest),
        "Llama": llama.build(llama.Config(intermediate_size=88, **sizes), **rest),
    }


def filter_rows() -> Iterator[Row]:
    """C012: only tensors of more than one dimension whose name lacks the excluded parts."""
    for name, model in decoders().items():
        group = configure({"algorithm": "static", "sparsity": 0.5, "seed": 0})
        assert group is not None
        group.apply(model)
        shapes = {key: value.dim() for key, value in model.named_parameters()}
        chosen = list(group.sparse_params)
        breaches = [
            key for key in chosen if shapes[key] < 2 or any(part in key for part in EXCLUDED)
        ]
        case = f"{name}, {len(chosen)} of {len(shapes)} tensors sparsified"
        yield _row("C012", "sparsified tensors that the rule excludes", case, 0, len(breaches))
        linear = [
            f"{module_name}.weight"
            for module_name, module in model.named_modules()
            if isinstance(module, nn.Linear | Conv1D) and "lm_head" not in module_name
        ]
        left = set(linear) - set(chosen)
        case = f"{name}, {len(linear)} linear layers of its blocks"
        yield _row("C012", "tensors that the rule includes, left dense", case, 0, len(left))


def dense_start_rows() -> Iterator[Row]:
    """C013: with update.start above 0 a dynamic algorithm is dense until then."""
    inputs = torch.randn(16, 37, generator=torch.Generator().manual_seed(1))
    for name, make in {"SET": SET, "RigL": RigL}.items():
        model = perceptron()
        algorithm = make(0.8, update={"freq": 5, "start": 10}, compat=CSTORCH, seed=0)
        algorithm.apply(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        algorithm.apply(optimizer)
        masks = [sparse.mask for sparse in algorithm.sparse_params.values()]
        early = sum(int((~mask).sum()) for mask in masks)
        for _ in train(model, optimizer, 9, inputs):
            early += sum(int((~s.mask).sum()) for s in algorithm.sparse_params.values())
        yield _row("C013", "masked weights before update.start", f"{name}, start 10", 0, early)


def search_space_rows() -> Iterator[Row]:
    """C028: the places that masks choose from, by member of the Sparse-IFT family."""
    size = 64
    for sparsity in (0.5, 0.75, 0.9):
        for family, growth in {"parallel": 1 / (1 - sparsity), "doped": 1.0}.items():
            model = nn.Sequential(*(nn.Linear(size, size) for _ in range(3)))
            larger, config, _ = transform(model, family, sparsity, layers=["1"])
            case = f"{family}, sparsity {sparsity:g}, a layer of {size} x {size}"
            expected = round(growth * size * size)
            yield _row("C028", "places", case, expected, _places(larger, config["param_filter"]))
    # At 75% widths double, so that none is rounded.
    model = decoders()["GPT-2"]
    layers = [layer.weight_name for layer in describe(model) if layer.role == "block"]
    wide, config, _ = transform(model, "wide", 0.75)
    expected = round(_places(model, layers) / (1 - 0.75))
    case = "wide, sparsity 0.75, the layers of a GPT-2"
    yield _row("C028", "places", case, expected, _places(wide, config["param_filter"]))


def _places(model: nn.Module, names: list[str]) -> int:
    weights = dict(model.named_parameters())
    return sum(weights[name].numel() for name in names)


RULES = (
    cubic_rows, invariant_rows, count_rows, random_init_rows, filter_rows, dense_start_rows,
    cosine_rows, search_space_rows,
)  # fmt: skip


# ----------------------------------------------------------------------------------------- timing


def overhead_rows(num_rounds: int) -> Iterator[Row]:
    """C007: a round is as many steps as lie between two mask updates, and one update."""
    update = {"freq": INTERVAL}
    variants: dict[str, SparsityAlgorithm | None] = {
        "dense": None,
        "Static": Static(0.9, seed=0),
        "RigL": RigL(0.9, update=update, seed=0),
    }
    inputs = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(1))
    loops = {}
    for name, algorithm in variants.items():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
        if algorithm is not None:
            algorithm.apply(model)
            algorithm.apply(optimizer)
        loops[name] = train(model, optimizer, (num_rounds + 1) * INTERVAL, inputs)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for turn in range(num_rounds + 1):
            seconds = dict.fromkeys(loops, 0.0)
            # A few steps each in turn, so that a busy machine slows all alike.
            for _ in range(INTERVAL // STEPS_PER_TURN):
                for name, loop in loops.items():
                    start = time.process_time()
                    for _ in range(STEPS_PER_TURN):
                        next(loop)
                    seconds[name] += time.process_time() - start
            if turn:  # the first fills caches and allocates
                for name in list(loops)[1:]:
                    ratio = seconds[name] / seconds["dense"]
                    yield {"method": name, "round": turn, "ratio": ratio}
    finally:
        torch.set_num_threads(num_threads)
