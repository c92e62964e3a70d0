"""FLOPs that the authors of RigL and Sparse-IFT publish of networks for images, beside ours."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from experiments.computations._published_flops import Row, published_rows, row
from experiments.models import get as model_file
from sparse_lib.flops.model import ModelFlops, count, rigl_mean_step
from sparse_lib.ift import authors_flops
from sparse_lib.layers import describe
from sparse_lib.masks.distributions import erk, uniform

RIGL_INTERVAL = 100


#: Width multipliers of the small dense networks, in RigL's counting notebook.
SMALL_DENSE = {0.8: 0.465, 0.9: 0.34}


#: First and last step of pruning, steps between prunings and training steps, ibid.
PRUNING = (10_000, 25_000, 1_000, 32_000)
RIGL_CONVENTION = (
    "the authors add one multiplication per output element (ReLU) and count the first convolution "
    "at 115 x 115 positions, since its input is padded already"
)


class ResNet50:
    """ResNet-50 at 224 pixels: our count and the one of RigL's counting notebook.

    Args:
        width: Multiplier of all widths but the image's and the classes'.
    """

    def __init__(self, width: float = 1.0) -> None:
        sizes = [int(64 * 2**stage * width) * 4 for stage in range(4)]
        config = {
            "depths": [3, 4, 6, 3],
            "hidden_sizes": sizes,
            "embedding_size": int(64 * width),
            "layer_type": "bottleneck",
            "stem": "imagenet",
        }
        model = build_resnet(config, classes=1000, image_size=224)
        self.flops: ModelFlops = count(model, batch_size=1, image_size=224)
        self.shapes = {
            layer.weight_name: layer.weight_shape
            for layer in describe(model)
            if layer.weight_name in self.flops.weight_names and len(layer.weight_shape) > 1
        }

    def sparsities(self, sparsity: float, distribution: str, *, first: float | None) -> dict:
        """Sparsity by weight, uniform or ERK."""
        share = uniform if distribution == "uniform" else erk
        return share(self.shapes, sparsity, first=first)

    def usual_sparsities(self, sparsity: float, method: str) -> dict:
        """ERK where the name of a method says so, else uniform behind a dense first layer."""
        if "ERK" in method:
            return self.sparsities(sparsity, "erk", first=None)
        return self.sparsities(sparsity, "uniform", first=0.0)

    def erk_beside_dense_first(self, sparsity: float) -> dict[str, float]:
        """ERK over all weights but the first, which is dense and not made up for."""
        first, *others = self.shapes
        return {first: 0.0} | erk({name: self.shapes[name] for name in others}, sparsity)

    def forward(self, sparsities: Mapping[str, float] | None = None) -> float:
        """Our count of a forward pass on one image."""
        return float(self.flops.forward(sparsities))

    def forward_as_published(self, sparsities: Mapping[str, float] | None = None) -> float:
        """The notebook's count: see ``RIGL_CONVENTION``."""
        total = 0.0
        for number, layer in enumerate(self.flops.layers):
            stretch = (115 / 112) ** 2 if number == 0 else 1.0
            outputs = layer.num_positions * self.shapes[layer.weight_name][0]
            total += stretch * (layer.forward_flops(sparsities) + outputs)
        return total


#: Counts of a forward pass: ours, and by the authors' convention.
COUNTS = (ResNet50.forward, ResNet50.forward_as_published)


def build_resnet(config: dict[str, Any], *, classes: int, image_size: int) -> nn.Module:
    """A ResNet of ``experiments/models/resnet.py`` without memory."""
    module = model_file("resnet")
    with torch.device("meta"):
        return module.build(
            module.Config.model_validate(config),
            classes=[str(number) for number in range(classes)],
            num_channels=3,
            image_size=image_size,
        )


def rigl_rows() -> Iterator[Row]:
    """RigL, Figure 2 left: training and inference FLOPs of ResNet-50 relative to dense."""
    network = ResNet50()
    small = {sparsity: ResNet50(width) for sparsity, width in SMALL_DENSE.items()}
    for training in (True, False):
        metric = f"{'training' if training else 'inference'} FLOPs relative"
        for printed in published_rows("RIGL_ICML20", metric):
            found = _rigl_counts(printed, network, small, training=training)
            if found is not None:
                ours, theirs, note = found
                value = re.split(r"[x ]", printed["value"])[0]
                yield row(printed, ours, value=value, as_published=theirs, explanation=note)
    for printed in published_rows("RIGL_ICML20", "inference FLOPs relative"):
        if found_count := re.search(r"\(([\d.e]+)\)", printed["value"]):
            yield row(
                printed,
                network.forward(),
                value=found_count.group(1),
                quantity="inference FLOPs",
                as_published=network.forward_as_published(),
                explanation=RIGL_CONVENTION,
            )


def _rigl_counts(
    printed: Mapping[str, str],
    network: ResNet50,
    small: Mapping[float, ResNet50],
    *,
    training: bool,
) -> tuple[float, float, str] | None:
    """Our ratio, the one by the authors' convention, and what it rests on; None if uncountable."""
    method, sparsity = printed["method"], float(printed["sparsity"])
    longer = re.search(r"([\d.]+)x", method)
    factor = float(longer.group(1)) if longer and training else 1.0
    name = method.split()[0].rstrip("*")
    if name == "Dense":
        return 1.0, 1.0, ""
    if name == "Small-Dense":
        ours, theirs = (factor * c(small[sparsity]) / c(network) for c in COUNTS)
        note = f"width multiplier {SMALL_DENSE[sparsity]} of the authors' notebook"
        if sparsity == 0.8:
            width = math.sqrt(1 - sparsity)
            theirs = factor * COUNTS[1](ResNet50(width)) / COUNTS[1](network)
            note += f"; what is printed fits width sqrt(0.2) = {width:.3f}, the second number"
        return ours, theirs, f"{note}; {RIGL_CONVENTION}"
    if name == "Pruning":
        shares = [_pruning(c, network, sparsity, training=training) for c in COUNTS]
        note = "cubic pruning from step 10,000 to 25,000 of 32,000, every 1,000"
        if sparsity == 0.9 and not training:
            note = "printed as if the first layer were sparse; with a dense one it is "
            note += f"{shares[1]:.2f}"
            sparse_first = network.sparsities(sparsity, "uniform", first=None)
            shares[1] = COUNTS[1](network, sparse_first) / COUNTS[1](network)
        return factor * shares[0], factor * shares[1], f"{note}; {RIGL_CONVENTION}"
    if name not in ("Static", "SNIP", "SET", "RigL", "SNFS"):
        return None  # DSR's and DNW's layer sparsities are read off other papers' figures
    levels = network.usual_sparsities(sparsity, method)
    ours, theirs = (factor * _relative(c, network, levels, name, training=training) for c in COUNTS)
    note = RIGL_CONVENTION
    if "ERK" not in method and sparsity == 0.9:
        everything = network.sparsities(sparsity, "uniform", first=None)
        dense_first = theirs
        theirs = factor * _relative(COUNTS[1], network, everything, name, training=training)
        note = (
            "printed as if the first layer were sparse too, which the second number is; with the "
            f"dense first layer that the paper states it is {dense_first:.3f}, as in the authors' "
            "README"
        )
    if name == "RigL" and training:
        note = f"updates every {RIGL_INTERVAL} steps; {note}"
    return ours, theirs, note


def _relative(
    forward: Callable[..., float],
    network: ResNet50,
    sparsities: Mapping[str, float],
    name: str,
    *,
    training: bool,
) -> float:
    """FLOPs of a step (or forward pass) relative to dense."""
    sparse, dense = forward(network, sparsities), forward(network)
    if not training or name in ("Static", "SNIP", "SET"):
        return sparse / dense
    if name == "SNFS":
        return (2 * sparse + dense) / (3 * dense)
    return rigl_mean_step(sparse, dense, RIGL_INTERVAL) / (3 * dense)


def _pruning(
    forward: Callable[..., float], network: ResNet50, target: float, *, training: bool
) -> float:
    """Mean cost over the schedule of gradual pruning relative to dense, or the final one."""
    start, end, every, steps = PRUNING

    def cost(step: int) -> float:
        progress = min(max((step - start) / (end - start), 0.0), 1.0)
        sparsity = target * (1 - (1 - progress) ** 3)
        return forward(network, network.sparsities(sparsity, "uniform", first=0.0))

    taken = range(0, steps + 1, every) if training else [steps]
    return sum(map(cost, taken)) / len(taken) / forward(network)


def readme_rows() -> Iterator[Row]:
    """The training FLOPs that the authors' README lists beside its checkpoints."""
    network = ResNet50()
    for printed in published_rows("RIGL_GH", "top-1 accuracy"):
        found = re.search(r"train FLOPs ([\d.]+)x", printed["notes"])
        longer = re.search(r"([\d.]+)x", printed["method"])
        if not found or not longer:
            continue
        factor, sparsity = float(longer.group(1)), float(printed["sparsity"])
        note = f"updates every {RIGL_INTERVAL} steps; {RIGL_CONVENTION}"
        levels = network.usual_sparsities(sparsity, printed["method"])
        counted = levels
        if sparsity == 0.99:
            counted = network.erk_beside_dense_first(sparsity)
            note = f"the second number keeps the first layer dense, outside of the budget; {note}"
        ours, theirs = (
            factor * _relative(forward, network, own, "RigL", training=True)
            for forward, own in zip(COUNTS, (levels, counted), strict=True)
        )
        settings = {"value": found.group(1), "quantity": "training FLOPs relative"}
        yield row(printed, ours, as_published=theirs, explanation=note, **settings)


RESNETS = {
    "ResNet-18 CIFAR": ([2, 2, 2, 2], "cifar", 100, 32),
    "ResNet-18 ImageNet": ([2, 2, 2, 2], "imagenet", 1000, 224),
    "ResNet-34 ImageNet": ([3, 4, 6, 3], "imagenet", 1000, 224),
}


def ift_rows() -> Iterator[Row]:
    """The FLOP budgets in the configurations of Sparse-IFT."""
    for printed in published_rows("SPARSE_IFT_ICML24", "FLOP budget used for iso-FLOP matching"):
        depths, stem, classes, size = RESNETS[printed["model"]]
        widths = {"hidden_sizes": [64, 128, 256, 512], "embedding_size": 64}
        config = {"depths": depths, **widths, "stem": stem}
        model = build_resnet(config, classes=classes, image_size=size)
        theirs = authors_flops(model, image_size=size, pooling=stem == "imagenet")
        yield row(
            printed,
            float(count(model, batch_size=1, image_size=size).forward()),
            as_published=float(theirs),
            explanation="the authors' profiler also counts batch norm at 7 per element, pooling "
            "and biases, and one addition less per output",
        )
