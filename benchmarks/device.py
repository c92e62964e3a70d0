"""Speed of the skipping execution against dense torch, as ratios.

    python -m benchmarks.device [--quick] [--only layers,gpt256,...]

Parts, each the time of the fastest dense float32 step, torch's own or one by oneDNN's products
where both are measured, over the other's time, so above 1 is faster:

- layers: training step of a compiled linear layer (forward, both gradients, autograd, packing and
  the scatter into the dense gradient), 1,024 tokens, against a dense ``nn.Linear``, beside packed
  layers and dense and skipping ones of which all tensors are bfloat16;
- optimizer: the step of fused AdamW on one layer's weight, packed against dense, and the bytes of
  its weight, mask and optimizer state;
- peers: one layer skipping, dense by torch and by oneDNN, in dense bfloat16, masked dense, and by
  MKL's CSR through ``torch.sparse``;
- gpt: optimizer step of a 4-layer GPT (context 128, batch 16, 256 bytes, fused AdamW), its linear
  layers static sparse;
- resnet: training step of a CIFAR ResNet-18;
- update: a RigL update of one layer, its structures rebuilt, over a dense step at 2,048 tokens;
- costs (only where it is named): the three numbers by which a layer is worth skipping on this
  processor, for ``SPARSE_LIB_SKIP_COSTS``, from masked dense and skipping layers.

At the end stand the medians over the shapes of each part.

In each part all variants take turns in one process, in which glibc keeps freed memory as it does in
a training of this repository, and medians are compared. The clock is the CPU
time of the process, which leaves out pre-emption, but not caches that others have polluted.
"""

import argparse
import copy
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import sparse_lib as sl
from benchmarks._models import LINEARS, Gpt
from benchmarks._rivals import (
    HALF,
    ONEDNN,
    TOKENS,
    TORCH,
    Step,
    csr_step,
    dense_steps,
    layer_step,
    random_ends,
)
from experiments.computations._measured import Narrow, by_onednn
from experiments.machine import keep_memory
from sparse_lib.configure import configure
from sparse_lib.execution import kernels
from sparse_lib.simulation import onednn

SPARSITIES = (0.5, 0.8, 0.9, 0.95, 0.99)
MODEL_SPARSITIES = (0.8, 0.9, 0.95)
HALF_SKIP, PACKED = "bfloat16 skip", "packed"
SHAPES = ((512, 512), (768, 768), (512, 2048), (2048, 512), (768, 3072), (2048, 2048))
Row = dict[str, Any]


def medians(steps: dict[Any, Step], rounds: int) -> dict[Any, float]:
    """Median seconds of each step; they take turns, after one round that warms up.

    CPU time of one thread, which other processes cannot stretch.
    """
    times: dict[Any, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 1):
        for name, step in steps.items():
            start = time.process_time()
            step()
            if turn:
                times[name].append(time.process_time() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def compare(part: str, case: str, steps: dict[Any, Step], rounds: int) -> list[Row]:
    """A row for each step but the fastest dense one, named by its sparsity, a word, or both."""
    rows = []
    seconds = medians(steps, rounds)
    dense = min((name for name in (TORCH, ONEDNN) if name in seconds), key=seconds.__getitem__)
    for name, value in seconds.items():
        if name == dense:
            continue
        variant, sparsity = name if isinstance(name, tuple) else (name, None)
        if isinstance(variant, float):
            variant, sparsity = "skip", variant
        row = {
            "part": part,
            "case": case,
            "variant": variant,
            "sparsity": sparsity,
            "dense": dense,
            "dense_s": seconds[dense],
            "seconds": value,
            "ratio": seconds[dense] / value,
        }
        rows.append(row)
    return rows


def masked_linear(inputs: int, outputs: int, sparsity: float) -> nn.Linear:
    """A linear layer with a random mask."""
    layer = nn.Linear(inputs, outputs)
    layer.register_buffer("weight_mask", torch.rand(outputs, inputs) >= sparsity)
    layer.weight.data.mul_(layer.weight_mask)
    return layer


def packed_linear(layer: nn.Linear) -> nn.Module:
    """A copy of a masked layer that holds its unmasked weights alone."""
    holder = nn.Sequential(copy.deepcopy(layer))
    sl.device.pack(holder, least_sparsity=0.0)
    return holder[0]


def layers(shapes: tuple, rounds: int) -> Iterator[Row]:
    """Linear layers of several shapes and sparsities."""
    skip = sl.device.backend("skip", strict=True, crossover=0.0)
    for inputs, outputs in shapes:
        dense, ends = nn.Linear(inputs, outputs), random_ends(inputs, outputs)
        steps = dense_steps(dense, ends)
        half_ends = random_ends(inputs, outputs, dtype=torch.bfloat16)
        for sparsity in SPARSITIES:
            layer = masked_linear(inputs, outputs, sparsity)
            half = copy.deepcopy(layer).bfloat16()
            for name, module, own_ends in (
                (sparsity, layer, ends),
                ((HALF_SKIP, sparsity), half, half_ends),
            ):
                twin = sl.device.compile(module, skip)
                steps[name] = layer_step(twin, list(module.parameters()), own_ends)
            packed = packed_linear(layer)
            steps[PACKED, sparsity] = layer_step(packed, list(packed.parameters()), ends)
        yield from compare("layers", f"{inputs}x{outputs}", steps, rounds)


def optimizer(width: int, rounds: int) -> Iterator[Row]:
    """Time and memory that a layer's weight costs an optimizer, packed against dense."""

    def make(weight: nn.Parameter) -> tuple[torch.optim.Optimizer, int]:
        weight.grad = torch.randn_like(weight)
        own = torch.optim.AdamW([weight], lr=1e-3, fused=True)
        own.step()
        states = (state for state in own.state[weight].values() if state.dim())
        return own, weight.nbytes + sum(state.nbytes for state in states)

    dense, num_bytes = make(nn.Linear(width, width).weight)
    steps: dict[Any, Step] = {TORCH: dense.step}
    held = {}
    for sparsity in SPARSITIES:
        packed = packed_linear(masked_linear(width, width, sparsity))
        own, held[sparsity] = make(packed.values)
        both = packed.structures()
        held[sparsity] += both.forward.num_bytes + both.backward.num_bytes + packed._bits.nbytes
        steps[PACKED, sparsity] = own.step
    case = f"{width}x{width}"
    yield from compare("optimizer", case, steps, rounds)
    for sparsity, own_bytes in held.items():
        row = {"part": "bytes", "case": case, "variant": PACKED, "sparsity": sparsity}
        row |= {"dense": TORCH, "dense_s": math.nan, "seconds": math.nan}
        yield row | {"ratio": num_bytes / own_bytes}


def peers(width: int, rounds: int) -> Iterator[Row]:
    """Other ways to run one square layer."""
    dense, ends = nn.Linear(width, width), random_ends(width, width)
    steps = dense_steps(dense, ends)
    skip = sl.device.backend("skip", strict=True, crossover=0.0)
    for sparsity in SPARSITIES:
        layer = masked_linear(width, width, sparsity)
        parameters = list(layer.parameters())
        if "masked dense" not in steps:
            masked = sl.device.compile(layer, "dense")
            steps["masked dense"] = layer_step(masked, parameters, ends)
        steps[sparsity] = layer_step(sl.device.compile(layer, skip), parameters, ends)
        steps["MKL CSR", sparsity] = csr_step(layer, ends)
    yield from compare("peers", f"{width}x{width}", steps, rounds)


def model_step(
    model: nn.Module,
    sparsity: float,
    patterns: list[str],
    loss: Callable,
) -> Step:
    """One AdamW step of a model, static sparse in the weights that the patterns name, skipping.

    Args:
        model: Trained in place.
        sparsity: 0 for a dense model.
        patterns: Of the masked weights' names.
        loss: Of the model.
    """
    # For dense and sparse alike: torch's unfused AdamW takes roots, which are slow at exact zeros.
    optimizer, run = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True), model
    if sparsity:
        settings = {"algorithm": "static", "sparsity": sparsity, "seed": 0}
        algorithm = configure({**settings, "param_filter": patterns})
        algorithm.apply(model)
        algorithm.apply(optimizer)
        run = sl.device.compile(model, sl.device.backend("skip", strict=True))

    def step() -> None:
        loss(run).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def gpt_steps(width: int) -> tuple[Callable[..., Step], Callable[[nn.Module], torch.Tensor]]:
    """A maker of the step of a GPT at some sparsity, and its loss."""
    ids = torch.randint(256, (16, 129))

    def loss(model: nn.Module) -> torch.Tensor:
        return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    def make(sparsity: float, change: Callable[[nn.Module], Any] | None = None) -> Step:
        torch.manual_seed(0)
        patterns = [f"blocks.*.{name}.weight" for name in LINEARS]
        model = Gpt(width)
        if change:
            change(model)
        return model_step(model, sparsity, patterns, loss)

    return make, loss


def gpt(width: int, rounds: int) -> Iterator[Row]:
    """The optimizer step of a GPT; "bound" has no linear layers in its blocks."""
    make, loss = gpt_steps(width)
    empty = Gpt(width)
    for block in empty.blocks:
        for name in LINEARS:
            setattr(block, name, Narrow(getattr(block, name).out_features))
    steps: dict[Any, Step] = {TORCH: make(0.0)}
    if onednn.available():
        steps[ONEDNN] = make(0.0, change=by_onednn)
    steps["bound"] = model_step(empty, 0.0, [], loss)
    steps |= {sparsity: make(sparsity) for sparsity in MODEL_SPARSITIES}
    yield from compare(f"gpt {width}", f"d={width}", steps, rounds)


def resnet(batch: int, rounds: int) -> Iterator[Row]:
    """The optimizer step of a ResNet-18 on 32 x 32 images, all but its ends sparse."""
    from experiments.models.resnet import Config, build

    images, labels = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))

    def make(sparsity: float) -> Step:
        torch.manual_seed(0)
        config = Config(
            stem="cifar", embedding_size=64, hidden_sizes=[64, 128, 256, 512],
            depths=[2, 2, 2, 2], layer_type="basic",
        )  # fmt: skip
        model = build(config, classes=list("0123456789"), num_channels=3, image_size=32)
        return model_step(
            model,
            sparsity,
            ["*encoder*convolution.weight"],
            lambda run: F.cross_entropy(run(images).logits, labels),
        )

    steps = {TORCH: make(0.0), 0.9: make(0.9)}
    yield from compare("resnet", f"ResNet-18, batch {batch}", steps, rounds)


def update(width: int, rounds: int) -> Iterator[Row]:
    """Dense step at 2,048 tokens over one mask update and the rebuilding of both structures."""
    from sparse_lib.masks.makers import make_mask_drop_minimum, make_mask_grow_maximum

    dense = nn.Linear(width, width)
    source = torch.randn(2 * TOKENS, width, requires_grad=True)
    gradient = torch.randn(2 * TOKENS, width)
    weight, growth = torch.randn(width, width), torch.randn(width, width).abs_()
    mask = torch.rand(width, width) >= 0.9

    def step() -> None:
        dense.weight.grad = source.grad = None
        dense(source).backward(gradient)

    def masks() -> torch.Tensor:
        kept, num_kept = make_mask_drop_minimum(weight.abs(), mask, 0.3)
        return make_mask_grow_maximum(growth, kept, 0.9, num_kept)

    def rebuild() -> None:
        new = masks()
        kernels.fingerprint(new)
        kernels.Structure(new)
        kernels.Structure(new, transposed=True)

    steps = {TORCH: step, "update": rebuild, "masks alone": masks}
    yield from compare("update", f"{width}x{width}, 90%", steps, rounds)


COST_SHAPES = ((64, 64), (64, 256), (128, 128), (256, 256), (256, 1024), (768, 768))


def costs(rounds: int) -> Iterator[Row]:
    """Masked dense and skipping layers; prints the costs that fit them best."""
    skip, masked = sl.device.backend("skip", strict=True, crossover=0.0), "dense"
    rows, gains = [], []
    for inputs, outputs in COST_SHAPES:
        steps, ends = {}, random_ends(inputs, outputs)
        for sparsity in (0.3, 0.5, 0.8, 0.95):
            layer = masked_linear(inputs, outputs, sparsity)
            parameters = list(layer.parameters())
            steps[TORCH] = layer_step(sl.device.compile(layer, masked), parameters, ends)
            steps[sparsity] = layer_step(sl.device.compile(layer, skip), parameters, ends)
        for row in compare("costs", f"{inputs}x{outputs}", steps, rounds):
            weights = inputs * outputs
            rows.append([(1 - row["sparsity"]) * weights, inputs + outputs, 1.0, weights])
            gains.append((row["seconds"] - row["dense_s"], row["dense_s"]))
            yield row
    table = torch.tensor(rows, dtype=torch.float64)
    gain, dense = torch.tensor(gains, dtype=torch.float64).T
    unit = (dense / table[:, 3])[table[:, 3] == table[:, 3].max()].mean()
    target = (gain / unit + table[:, 3]) / dense
    fit = torch.linalg.lstsq(table[:, :3] / dense[:, None], target[:, None]).solution.flatten()
    text = ",".join(f"{value:.3g}" for value in fit.clamp(min=0.01).tolist())
    print(f"SPARSE_LIB_SKIP_COSTS={text} (in use: {sl.device.default_costs()})")


def parts(quick: bool) -> dict[str, Callable[[], Iterator[Row]]]:
    """The measurements by name."""

    rounds = 5 if quick else 9
    return {
        "layers": lambda: layers(SHAPES[:3] if quick else SHAPES, rounds),
        "optimizer": lambda: optimizer(1024 if quick else 2048, rounds),
        "peers": lambda: peers(512, 3 if quick else 5),
        "gpt256": lambda: gpt(256, 3 if quick else 7),
        "gpt512": lambda: gpt(512, 1 if quick else 5),
        "resnet": lambda: resnet(8 if quick else 32, 1 if quick else 4),
        "update": lambda: update(1024 if quick else 2048, 3),
        "costs": lambda: costs(9 if quick else 25),
    }


def named(row: Row) -> str:
    """The variant of a row, with its sparsity."""
    variant = "" if row["variant"] == "skip" else row["variant"]
    return f"{variant} {row['sparsity']:.0%}".strip() if row["sparsity"] is not None else variant


def show(row: Row) -> None:
    """One line with the ratio."""
    times = f"{row['dense_s'] * 1e3:9.2f} ms /{row['seconds'] * 1e3:9.2f} ms"
    times = times if row["seconds"] > 0 else "dense / packed"
    line = f"{row['part']:>10}  {row['case']:<22}{named(row):<18}{times:>25}"
    print(f"{line} ={row['ratio']:6.2f}x", flush=True)


def summarise(rows: list[Row]) -> None:
    """Medians over the shapes; layers in bfloat16 also over dense bfloat16."""
    ratios: dict[str, list[float]] = defaultdict(list)
    half = {(row["part"], row["case"]): row for row in rows if row["variant"] == HALF}
    for row in rows:
        name = f"{row['part']}, {named(row)}"
        ratios[name].append(row["ratio"])
        if row["variant"] == HALF_SKIP:
            over = half[row["part"], row["case"]]["ratio"]
            ratios[f"{name}, over dense bfloat16"].append(row["ratio"] / over)
    for name, own in ratios.items():
        if len(own) > 1:
            median = f"{statistics.median(own):.2f}x"
            print(f"{name}: median {median} ({min(own):.2f} to {max(own):.2f})")


def main() -> None:
    """Runs the parts and prints every ratio."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer shapes and rounds, a minute")
    parser.add_argument("--only", help="parts by name, with commas")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    keep_memory()
    available = parts(arguments.quick)
    names = arguments.only.split(",") if arguments.only else [n for n in available if n != "costs"]
    if unknown := set(names) - set(available):
        parser.error(f"--only must name some of {', '.join(available)}, got {', '.join(unknown)}")
    print(f"{kernels.num_lanes()} floats per vector")
    rows = []
    for name in names:
        for row in available[name]():
            show(row)
            rows.append(row)
    summarise(rows)


if __name__ == "__main__":
    main()
