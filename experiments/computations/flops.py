"""Every published FLOP count beside ours; ours are counted on models, not taken from formulas.

``published``: one row per published number; ``counted as published`` repeats our count under the
source's own convention where it differs from ours, and ``explanation`` says what that is. A row is
``met`` if either is within 1% of the published value, or prints the same digits.
``amdahl``: FLOPs that whole models save, beside the speed-up of one product on a CS-2.
``schedule``: RigL's mean cost per step by stepping through a schedule, beside its formula.
``ledger``: what the device's ledger counts in a real step, beside the closed forms.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pandas as pd
import torch
from torch import nn

from experiments import published
from experiments.models import get as model_file
from sparse_lib.algorithms.static import Static
from sparse_lib.core.group import Group
from sparse_lib.flops.ledger import Ledger
from sparse_lib.flops.model import ModelFlops, count, gpt_training_step, rigl_mean_step
from sparse_lib.ift import authors_flops, transform
from sparse_lib.layers import describe
from sparse_lib.masks.distributions import erk, uniform
from sparse_lib.schedules.updates import make_update_schedule
from sparse_lib.simulation.devices import SPECS
from sparse_lib.simulation.timing import relative_time

TOLERANCE = 0.01
COLUMNS = ["source", "where", "model", "method", "sparsity", "quantity", "published", "ours"]
COLUMNS += ["difference", "counted as published", "remaining difference", "met", "explanation"]
Row = dict[str, Any]

#: Layers, width, heads and vocabulary; sequence length of SPDF's pre-training.
GPTS = {
    "GPT-2 Small (125M)": (12, 768, 12, 50257),
    "GPT-3 XL (1.3B)": (24, 2048, 16, 50257),
    "GPT-3 Small": (12, 768, 12, 50257),
    "GPT-3 Medium": (24, 1024, 16, 50257),
}
SPDF_LENGTH = 2048
#: Columns of SPDF's Table 2 whose sparse rows fit only the other's dense row.
SWAPPED = {"WebNLG": "DART", "DART": "WebNLG"}
IFT_LENGTH = 1024
RIGL_INTERVAL = 100
#: Width multipliers of the small dense networks, in RigL's counting notebook.
SMALL_DENSE = {0.8: 0.465, 0.9: 0.34}
#: First and last step of pruning, steps between prunings and training steps, ibid.
PRUNING = (10_000, 25_000, 1_000, 32_000)
RIGL_CONVENTION = (
    "the authors add one multiplication per output element (ReLU) and count the first convolution "
    "at 115 x 115 positions, since its input is padded already"
)


def compute(scale: str) -> dict[str, pd.DataFrame]:
    """All tables; they are the same at every scale."""
    rows = [*spdf_rows(), *rigl_rows(), *readme_rows(), *ift_rows(), *gpt3_rows()]
    return {
        "published": pd.DataFrame(rows, columns=COLUMNS),
        "amdahl": pd.DataFrame(amdahl_rows()),
        "schedule": pd.DataFrame(schedule_rows()),
        "ledger": pd.DataFrame(ledger_rows()),
    }


def row(
    printed: Mapping[str, str],
    ours: float,
    *,
    value: str | None = None,
    quantity: str | None = None,
    as_published: float | None = None,
    explanation: str = "",
) -> Row:
    """One comparison; ``printed`` is a row of ``experiments/published/results.csv``."""
    text = value or printed["value"]
    number = float(text)
    difference = ours / number - 1
    remaining = None if as_published is None else as_published / number - 1
    candidates = [ours] if as_published is None else [ours, as_published]
    same = any(_prints(candidate, text) for candidate in candidates)
    near = any(abs(candidate / number - 1) <= TOLERANCE for candidate in candidates)
    return {
        "source": printed["source_id"],
        "where": printed["table_or_figure"],
        "model": printed["model"],
        "method": printed["method"],
        "sparsity": float(printed["sparsity"] or 0),
        "quantity": quantity or printed["metric"],
        "published": number,
        "ours": ours,
        "difference": difference,
        "counted as published": as_published,
        "remaining difference": remaining,
        "met": same or near,
        "explanation": explanation,
    }


def _prints(value: float, text: str) -> bool:
    """Whether a value, rounded to the digits of a printed one, is that one."""
    mantissa, _, exponent = text.lower().partition("e")
    digits = len(mantissa.partition(".")[2])
    return round(value / 10 ** int(exponent or 0), digits) == float(mantissa)


def published_rows(source: str, metric: str, where: str = "") -> Iterator[dict[str, str]]:
    """Rows of the published values with a number."""
    rows = published.results()
    rows = rows[(rows["source_id"] == source) & (rows["metric"] == metric)]
    for printed in rows.to_dict("records"):
        if printed["table_or_figure"].startswith(where) and re.match(r"[\d.]", printed["value"]):
            yield printed


# -------------------------------------------------------------------------------- language models


def gpt(layers: int, width: int, heads: int, vocabulary: int, length: int) -> nn.Module:
    """A GPT-2 style decoder without memory."""
    from transformers import GPT2Config, GPT2LMHeadModel

    with torch.device("meta"):
        return GPT2LMHeadModel(
            GPT2Config(
                vocab_size=vocabulary,
                n_positions=length,
                n_embd=width,
                n_layer=layers,
                n_head=heads,
                bos_token_id=0,
                eos_token_id=0,
            )
        )


def gpt_step(name: str, length: int) -> Callable[[float], int]:
    """Training FLOPs per sequence as a function of the uniform sparsity of the blocks."""
    flops = count(gpt(*GPTS[name], length), batch_size=1, sequence_length=length)
    return lambda sparsity: flops.training_step(flops.uniform(sparsity))


def spdf_rows() -> list[Row]:
    """SPDF, supplement, Table 2, and the totals of its Table 2."""
    rows = []
    steps = {
        name: gpt_step(name, SPDF_LENGTH) for name in ("GPT-2 Small (125M)", "GPT-3 XL (1.3B)")
    }
    sequences = {}
    per_sequence = "pre-train FLOPs per sequence (fwd+bwd)"
    for printed in published_rows("SPDF_UAI23", per_sequence):
        step = steps[printed["model"]]
        rows.append(row(printed, step(float(printed["sparsity"]))))
        found = re.search(r"total sequences ([\d.e]+)", printed["notes"])
        if found:
            sequences[printed["model"]] = float(found.group(1))
    for printed in published_rows("SPDF_UAI23", "FLOPs relative to dense", "Supp"):
        step, sparsity = steps[printed["model"]], float(printed["sparsity"])
        rounded = [float(f"{step(s):.3g}") for s in (sparsity, 0)]
        rows.append(
            row(
                printed,
                step(sparsity) / step(0),
                as_published=rounded[0] / rounded[1] if sparsity else None,
                explanation="the second number divides the counts as the table prints them"
                if sparsity
                else "",
            )
        )
    for printed in published_rows("SPDF_UAI23", "total pre-train exaFLOPs"):
        total = steps[printed["model"]](float(printed["sparsity"])) * sequences[printed["model"]]
        rows.append(
            row(
                printed,
                total / 1e18,
                explanation="ours times the number of sequences, which is printed to 3 digits",
            )
        )
    pretraining = {(r["model"], r["sparsity"]): r for r in rows if "exaFLOPs" in r["quantity"]}
    fine_tuning = _fine_tuning(pretraining)
    for printed in published_rows("SPDF_UAI23", "total pre-train+finetune FLOPs"):
        model, sparsity, dataset = printed["model"], float(printed["sparsity"]), printed["dataset"]
        # Fine-tuning is dense in all rows, so a dataset's cost must not depend on the sparsity.
        column = SWAPPED.get(dataset, dataset) if sparsity else dataset
        before = pretraining[model, sparsity]
        rows.append(
            row(
                printed,
                before["ours"] + fine_tuning[model, dataset],
                quantity=f"total with fine-tuning on {dataset}, exaFLOPs",
                as_published=before["published"] + fine_tuning[model, column],
                explanation="our pre-training; dense fine-tuning costs the dense row's total less "
                "its pre-training. The second number takes the printed pre-training"
                + (
                    f" and the cost of {column}: the two columns look swapped" * (column != dataset)
                ),
            )
        )
    return rows


def _fine_tuning(pretraining: Mapping[tuple[str, float], Row]) -> dict[tuple[str, str], float]:
    """ExaFLOPs of dense fine-tuning by model and dataset, from the dense rows of Table 2."""
    return {
        (printed["model"], printed["dataset"]): float(printed["value"])
        - pretraining[printed["model"], 0.0]["published"]
        for printed in published_rows("SPDF_UAI23", "total pre-train+finetune FLOPs")
        if float(printed["sparsity"]) == 0
    }


def gpt3_rows() -> list[Row]:
    """Whole-model cost of Sparse-Wide GPT-3 Small, and of GPT-3 Medium, against the dense model."""
    dense = gpt_step("GPT-3 Small", IFT_LENGTH)(0)
    rows = []
    for sparsity, printed in ((0.5, "1.18"), (0.75, "1.40")):
        model, config, _ = transform(
            gpt(*GPTS["GPT-3 Small"], IFT_LENGTH), family="wide", sparsity=sparsity
        )
        flops = count(model, batch_size=1, sequence_length=IFT_LENGTH)
        wide = flops.training_step(flops.uniform(sparsity))
        rows.append(
            row(
                _claimed(
                    "C027", "GPT-3 Small, context 1024", f"Sparse-Wide {sparsity:.0%}", sparsity
                ),
                wide / dense,
                value=printed,
                quantity="whole-model FLOPs relative to dense",
                explanation="embeddings, head and attention grow with the width; width rounded "
                "so that the heads divide it",
            )
        )
    medium = gpt_step("GPT-3 Medium", IFT_LENGTH)(0) / dense
    blocks = GPTS["GPT-3 Medium"], GPTS["GPT-3 Small"]
    by_blocks = (blocks[0][0] * blocks[0][1] ** 2) / (blocks[1][0] * blocks[1][1] ** 2)
    rows.append(
        row(
            _claimed("CB_IFT_BLOG", "GPT-3 Medium over GPT-3 Small", "dense", 0.0),
            medium,
            value="2.4",
            quantity="training FLOPs, ratio",
            as_published=by_blocks,
            explanation="ours counts head and attention at context 1024; the second number counts "
            "block weights alone; neither gives the blog's 2.4, whose convention is not stated",
        )
    )
    return rows


def _claimed(source: str, model: str, method: str, sparsity: float) -> dict[str, str]:
    return {
        "source_id": source,
        "table_or_figure": "text",
        "model": model,
        "method": method,
        "sparsity": str(sparsity),
        "metric": "",
        "value": "",
    }


# ------------------------------------------------------------------------------------------ RigL


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


def rigl_rows() -> list[Row]:
    """RigL, Figure 2 left: training and inference FLOPs of ResNet-50 relative to dense."""
    network = ResNet50()
    small = {sparsity: ResNet50(width) for sparsity, width in SMALL_DENSE.items()}
    rows = []
    for training in (True, False):
        metric = f"{'training' if training else 'inference'} FLOPs relative"
        for printed in published_rows("RIGL_ICML20", metric):
            found = _rigl_counts(printed, network, small, training=training)
            if found is not None:
                ours, theirs, note = found
                value = re.split(r"[x ]", printed["value"])[0]
                rows.append(row(printed, ours, value=value, as_published=theirs, explanation=note))
    for printed in published_rows("RIGL_ICML20", "inference FLOPs relative"):
        found_count = re.search(r"\(([\d.e]+)\)", printed["value"])
        if found_count:
            rows.append(
                row(
                    printed,
                    network.forward(),
                    value=found_count.group(1),
                    quantity="inference FLOPs",
                    as_published=network.forward_as_published(),
                    explanation=RIGL_CONVENTION,
                )
            )
    return rows


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
    counts = (ResNet50.forward, ResNet50.forward_as_published)
    if name == "Small-Dense":
        ours, theirs = (factor * c(small[sparsity]) / c(network) for c in counts)
        note = f"width multiplier {SMALL_DENSE[sparsity]} of the authors' notebook"
        if sparsity == 0.8:
            width = math.sqrt(1 - sparsity)
            theirs = factor * counts[1](ResNet50(width)) / counts[1](network)
            note += f"; what is printed fits width sqrt(0.2) = {width:.3f}, the second number"
        return ours, theirs, f"{note}; {RIGL_CONVENTION}"
    if name == "Pruning":
        shares = [_pruning(c, network, sparsity, training=training) for c in counts]
        note = "cubic pruning from step 10,000 to 25,000 of 32,000, every 1,000"
        if sparsity == 0.9 and not training:
            note = "printed as if the first layer were sparse; with a dense one it is " + (
                f"{shares[1]:.2f}"
            )
            sparse_first = network.sparsities(sparsity, "uniform", first=None)
            shares[1] = counts[1](network, sparse_first) / counts[1](network)
        return factor * shares[0], factor * shares[1], f"{note}; {RIGL_CONVENTION}"
    if name not in ("Static", "SNIP", "SET", "RigL", "SNFS"):
        return None  # DSR's and DNW's layer sparsities are read off other papers' figures
    distribution = "erk" if "ERK" in method else "uniform"
    first = None if distribution == "erk" else 0.0
    sparsities = network.sparsities(sparsity, distribution, first=first)
    ours, theirs = (
        factor * _relative(c, network, sparsities, name, training=training) for c in counts
    )
    note = RIGL_CONVENTION
    if distribution == "uniform" and sparsity == 0.9:
        everything = network.sparsities(sparsity, "uniform", first=None)
        dense_first = theirs
        theirs = factor * _relative(counts[1], network, everything, name, training=training)
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


def readme_rows() -> list[Row]:
    """The training FLOPs that the authors' README lists beside its checkpoints."""
    network = ResNet50()
    rows = []
    for printed in published_rows("RIGL_GH", "top-1 accuracy"):
        found = re.search(r"train FLOPs ([\d.]+)x", printed["notes"])
        longer = re.search(r"([\d.]+)x", printed["method"])
        if not found or not longer:
            continue
        distribution = "erk" if "ERK" in printed["method"] else "uniform"
        first = None if distribution == "erk" else 0.0
        sparsity = float(printed["sparsity"])
        sparsities = network.sparsities(sparsity, distribution, first=first)
        ours, theirs = (
            float(longer.group(1)) * _relative(c, network, sparsities, "RigL", training=True)
            for c in (ResNet50.forward, ResNet50.forward_as_published)
        )
        note = f"updates every {RIGL_INTERVAL} steps; {RIGL_CONVENTION}"
        if sparsity == 0.99:
            sparsities = network.erk_beside_dense_first(sparsity)
            theirs = float(longer.group(1)) * _relative(
                ResNet50.forward_as_published, network, sparsities, "RigL", training=True
            )
            note = f"the second number keeps the first layer dense, outside of the budget; {note}"
        rows.append(
            row(
                printed,
                ours,
                value=found.group(1),
                quantity="training FLOPs relative",
                as_published=theirs,
                explanation=note,
            )
        )
    return rows


# ------------------------------------------------------------------------------------- Sparse-IFT


RESNETS = {
    "ResNet-18 CIFAR": ([2, 2, 2, 2], "cifar", 100, 32),
    "ResNet-18 ImageNet": ([2, 2, 2, 2], "imagenet", 1000, 224),
    "ResNet-34 ImageNet": ([3, 4, 6, 3], "imagenet", 1000, 224),
}


def ift_rows() -> list[Row]:
    """The FLOP budgets in the configurations of Sparse-IFT."""
    rows = []
    for printed in published_rows("SPARSE_IFT_ICML24", "FLOP budget used for iso-FLOP matching"):
        depths, stem, classes, size = RESNETS[printed["model"]]
        config = {
            "depths": depths,
            "hidden_sizes": [64, 128, 256, 512],
            "embedding_size": 64,
            "stem": stem,
        }
        model = build_resnet(config, classes=classes, image_size=size)
        rows.append(
            row(
                printed,
                float(count(model, batch_size=1, image_size=size).forward()),
                as_published=float(
                    authors_flops(model, image_size=size, pooling=stem == "imagenet")
                ),
                explanation="the authors' profiler also counts batch norm at 7 per element, "
                "pooling and biases, and one addition less per output",
            )
        )
    return rows


# ----------------------------------------------------------------------------- schedule and ledger


def amdahl_rows() -> list[Row]:
    """Dense over sparse FLOPs of whole models, and the simulated speed-up of one product."""
    sparsity = 0.75
    product = 1 / relative_time(sparsity, SPECS["cs2"].sparse_overhead)
    rows = []
    for name in ("GPT-2 Small (125M)", "GPT-3 XL (1.3B)"):
        step = gpt_step(name, SPDF_LENGTH)
        ratio = step(0) / step(sparsity)
        rows.append({"model": name, "sparsity": sparsity, "whole_model": ratio, "product": product})
    return rows


def schedule_rows() -> list[Row]:
    """Mean cost of RigL's steps over whole rounds of a schedule, beside the closed form."""
    network = ResNet50()
    sparse = network.forward(network.sparsities(0.9, "erk", first=None))
    dense = network.forward()
    rows = []
    for interval in (1, 10, 100):
        schedule = make_update_schedule({"freq": interval + 1})
        steps = range(1, 20 * (interval + 1) + 1)
        costs = [
            2 * sparse + (dense if schedule.is_update_step(step) else sparse) for step in steps
        ]
        mean = sum(costs) / len(costs)
        formula = rigl_mean_step(sparse, dense, interval)
        rows.append(
            {
                "steps between updates": interval,
                "steps taken": len(costs),
                "mean FLOPs": mean,
                "formula": formula,
                "difference": mean / formula - 1,
            }
        )
    return rows


def ledger_rows() -> list[Row]:
    """One real training step of small models under the ledger, beside the closed forms."""
    rows = []
    tokens = torch.arange(64).reshape(2, 32)
    for name, model in _small_models():
        for sparsity in (0.0, 0.75):
            flops = count(model, batch_size=2, sequence_length=32)
            levels = flops.uniform(sparsity)
            if sparsity:
                with torch.random.fork_rng():
                    Group([(list(levels), Static(sparsity, seed=0))]).apply(model)
            with Ledger(model) as ledger:
                model(input_ids=tokens, labels=tokens).loss.backward()
            counted = ledger.totals()["sparse_flops"]
            closed = flops.training_step(levels)
            rows.append(_ledger_row(f"{name}, sparsity {sparsity:.0%}", counted, closed))
    layers, width, vocabulary, length = 2, 64, 256, 32
    flops = count(
        gpt(layers, width, 4, vocabulary, length), batch_size=1, sequence_length=length
    ).training_step()
    formula = gpt_training_step(
        num_layers=layers, hidden_size=width, vocab_size=vocabulary, sequence_length=length
    )
    rows.append(_ledger_row("GPT-2, by the formula of SPDF", flops, int(formula)))
    return rows


def _ledger_row(model: str, counted: int, closed: int) -> Row:
    return {
        "model": model,
        "counted": counted,
        "closed form": closed,
        "difference": counted - closed,
    }


def _small_models() -> Iterator[tuple[str, nn.Module]]:
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    shared = {"vocab_size": 256, "bos_token_id": 0, "eos_token_id": 0}
    gpt2 = GPT2Config(n_positions=32, n_embd=64, n_layer=2, n_head=4, **shared)
    yield "GPT-2", GPT2LMHeadModel(gpt2)
    llama = LlamaConfig(
        hidden_size=64,
        intermediate_size=172,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=32,
        **shared,
    )
    yield "Llama", LlamaForCausalLM(llama)
