"""What runs need before any is trained: FLOPs, memory of each process, and time on a device.

Models are built without memory. FLOPs are counted, and so are the bytes that autograd keeps for
the backward pass, by a forward pass of tensors that have shapes only. Times are neither: those of
GPUs follow from an assumed or stated throughput, those of the CS-2 are simulated.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from experiments import data as datasets
from experiments import models
from experiments.errors import UserError
from experiments.specs.needs import check_shares
from experiments.specs.run import Run, RunSpec
from experiments.store import paths
from sparse_lib.core.metrics import training_flops
from sparse_lib.flops.model import ModelFlops, count
from sparse_lib.forecast import Forecast, forecast
from sparse_lib.simulation.timing import simulate

#: Share of a GPU's peak that training is taken to reach where nothing else is stated; published
#: language models: 21% to 46% (Chowdhery et al. 2022, PaLM, table 3).
UTILISATION = 0.3
#: Bytes of a CUDA context, of libraries' workspaces and of fragments: assumed, not measured.
RESERVED = 2_000_000_000
FLOAT = 4


class UnknownShape(UserError):
    """What a batch looks like is known only once the data are prepared; one sentence."""


@dataclass(frozen=True)
class Launched:
    """How runs are to be computed; None as their recipes say.

    Attributes:
        processes: That train a run together, one GPU each.
        strategy: ``ddp`` or ``fsdp2``.
        precision: ``fp32`` or ``bf16``.
        micro_batches: Parts of a step's share of samples.
    """

    processes: int | None = None
    strategy: str | None = None
    precision: str | None = None
    micro_batches: int | None = None


@dataclass(frozen=True)
class Memory:
    """Bytes on each process's device at the peak of a step, by what they hold.

    Attributes:
        weights: In float32.
        gradients: In float32, and once more in the buckets of ``ddp``.
        optimizer: Two float32 states of AdamW, one of SGD's momentum.
        masks: A byte per maskable weight, and one of history where masks move.
        gathered: Of ``fsdp2``: whole weights and gradients of what is not in a block and of the
            block at work, and the weights of the block after it.
        casts: What the backward pass needs and no sample adds to: copies of weights in bfloat16.
        sample: What it needs of one sample.
        largest: The largest tensor of it, which has a gradient of that size at the peak.
    """

    weights: int
    gradients: int
    optimizer: int
    masks: int
    gathered: int
    casts: int
    sample: int
    largest: int

    @property
    def fixed(self) -> int:
        """What does not depend on the number of samples."""
        parts = asdict(self)
        return sum(size for name, size in parts.items() if name not in ("sample", "largest"))

    def peak(self, samples: int) -> int:
        """Bytes with so many samples in a micro-batch."""
        return self.fixed + samples * (self.sample + self.largest)


@dataclass(frozen=True)
class Needs:
    """A run's needs; FLOPs are of the whole training, 2 per multiply-add.

    Attributes:
        run: Its id.
        method: Its method.
        model: The model's label.
        data: The folder of its data.
        unit: What ``units`` counts: ``tokens`` or ``images``.
        units: Trained on, repetitions included.
        steps: Optimizer steps.
        num_weights: Of the model, masked ones included.
        num_left: Weights that its masks leave at the end.
        flops_dense: With all masked work done, as a GPU does it.
        flops: Without the masked work.
        processes: That train it.
        strategy: Of several processes.
        precision: Of matrix products.
        memory: Of each process.
        parts: Micro-batches of a step and process, as the recipe or the command says.
        samples: In each of them.
        bytes: Memory of each process with these.
        fits: Whether that is within the device.
        micro_batches: The fewest parts of a process's samples with which it fits; None if none.
        gpu_hours: Of all processes together, from the throughput; not measured.
        cs2_hours: Simulated time on one CS-2, a lower bound.
        cs2_label: ``simulated``, and whether beyond what was ever measured.
    """

    run: str
    method: str
    model: str
    data: str
    unit: str
    units: int
    steps: int
    num_weights: int
    num_left: int
    flops_dense: int
    flops: int
    processes: int
    strategy: str
    precision: str
    memory: Memory
    parts: int
    samples: int
    bytes: int
    fits: bool
    micro_batches: int | None
    gpu_hours: float
    cs2_hours: float
    cs2_label: str


def needs(run: Run, launched: Launched, *, device_bytes: int, flops_per_s: float) -> Needs:
    """What a run needs.

    Args:
        run: The run.
        launched: How it is to be computed.
        device_bytes: Memory of a GPU.
        flops_per_s: Throughput of a GPU.

    Raises:
        UserError: If the samples of a step cannot be split over the processes, or the shapes of
            the data are unknown until they are prepared.
    """
    spec, recipe = run.spec, run.spec.recipe
    own = recipe.launch
    processes = launched.processes or (own.processes if own else 1)
    strategy = launched.strategy or (own.strategy if own else "ddp")
    precision = launched.precision or recipe.precision
    parts = launched.micro_batches or recipe.micro_batches
    check_shares(run, processes, parts)
    shape = shape_of(spec)
    flops = count(shape.model, batch_size=recipe.batch_size, **shape.input_size)
    planned = masks_of(spec, shape)
    memory = memory_of(spec, shape, planned, processes, strategy, precision)
    share = recipe.batch_size // processes
    fitting = [
        number
        for number in range(1, share + 1)
        if share % number == 0 and memory.peak(share // number) + RESERVED <= device_bytes
    ]
    dense = recipe.steps * flops.training_step()
    seconds, label = cs2(spec, shape, planned, flops)
    absent = sum(shape.sizes[name] - kept for name, kept in planned.kept.items())
    length = shape.input_size.get("sequence_length")
    return Needs(
        run=run.id,
        method=spec.method or spec.algorithm,
        model=spec.model.label,
        data=run.data_label,
        unit="tokens" if length else "images",
        units=recipe.steps * recipe.batch_size * (length or 1),
        steps=recipe.steps,
        num_weights=sum(shape.sizes.values()),
        num_left=sum(shape.sizes.values()) - absent,
        flops_dense=dense,
        flops=training_flops(flops, recipe.steps, planned.work),
        processes=processes,
        strategy=strategy if processes > 1 else "",
        precision=precision,
        memory=memory,
        parts=parts,
        samples=share // parts,
        bytes=memory.peak(share // parts) + RESERVED,
        fits=parts in fitting,
        micro_batches=min(fitting, default=None),
        gpu_hours=dense / flops_per_s / 3600,
        cs2_hours=seconds / 3600,
        cs2_label=label,
    )


@dataclass(frozen=True, eq=False)
class Shape:
    """A model without memory, and what a batch of one task's data looks like.

    Attributes:
        model: On the meta device, transformed where the run transforms it.
        masked: What the transformation says of the masks.
        batch: Makes a batch of so many samples, as the task's loss takes it.
        input_size: ``sequence_length`` or ``image_size``.
        sizes: Elements by full parameter name.
    """

    model: nn.Module
    masked: dict[str, Any] | None
    batch: Callable[[int], Any]
    input_size: dict[str, Any]
    sizes: dict[str, int]


def shape_of(spec: RunSpec) -> Shape:
    """The shapes of a run; runs that share them share the answer."""
    transform = None if spec.transform is None else json.dumps(spec.transform.to_json())
    crop = getattr(spec.recipe, "resized_crop", None)
    keys = (spec.model.model_dump_json(), spec.data.model_dump_json())
    return _shape(spec.task, *keys, crop, transform, spec.data.label)


@functools.lru_cache(maxsize=64)
def _shape(
    task: str, model: str, data: str, crop: int | None, transform: str | None, label: str
) -> Shape:
    known: dict[str, Any] = {}
    if (meta := paths.data(label) / "meta.json").is_file():
        known = json.loads(meta.read_text())
    sizes, section = json.loads(model), json.loads(data)
    module = models.get(sizes.pop("name"))
    del sizes["label"]
    if task == "lm":
        length = section["context"]
        vocabulary = known.get("vocab_size", section["vocab_size"])
        size = {"sequence_length": length}
        keys: dict[str, Any] = {"vocab_size": vocabulary, "context": length, "eos_id": 0}

        def batch(samples: int) -> Any:
            return torch.zeros(samples, length + 1, dtype=torch.long)

    elif task == "vision":
        classes, channels, side = _images(section["name"], known)
        side = crop or side
        size = {"image_size": side}
        keys = {"classes": [str(label) for label in range(classes)], "num_channels": channels}
        keys["image_size"] = side

        def batch(samples: int) -> Any:
            pixels = torch.zeros(samples, channels, side, side)
            return pixels, torch.zeros(samples, dtype=torch.long)

    else:
        raise UnknownShape(
            f"the shapes of task {task!r} are known only where its data are prepared"
        )

    masked = None
    with torch.device("meta"):
        built = module.build(module.Config.model_validate(sizes), **keys)
        if transform is not None:
            from sparse_lib import ift

            built, masked, _ = ift.transform(built, **json.loads(transform), **size)
    elements = {name: parameter.numel() for name, parameter in built.named_parameters()}
    return Shape(built, masked, batch, size, elements)


def _images(name: str, known: dict[str, Any]) -> tuple[int, int, int]:
    if known:
        return len(known["classes"]), known["num_channels"], known["image_size"]
    size = getattr(datasets.get(name, "images"), "size", None)
    if size is None:
        raise UnknownShape(f"the images of {name} have a size that is known once they are prepared")
    return size


def masks_of(spec: RunSpec, shape: Shape) -> Forecast:
    """The work that a run's masks leave; of equal runs but for the seed it is found once."""
    config = spec.mask_config(shape.masked)
    if isinstance(config, dict):
        config = {key: value for key, value in config.items() if key != "seed"}
    return _masks(shape, json.dumps(config), spec.recipe.steps)


@functools.lru_cache(maxsize=256)
def _masks(shape: Shape, config: str, num_steps: int) -> Forecast:
    return forecast(shape.model, json.loads(config), num_steps)


def memory_of(
    spec: RunSpec, shape: Shape, planned: Forecast, processes: int, strategy: str, precision: str
) -> Memory:
    """Memory of each process."""
    recipe: Any = spec.recipe
    held = sum(shape.sizes.values()) * FLOAT
    states = 2 if getattr(recipe, "optimizer", "adamw") == "adamw" else int(recipe.momentum > 0)
    updates = planned.num_updates
    masks = sum(shape.sizes[name] * (2 if updates[name] else 1) for name in planned.kept)
    casts, sample, largest = kept_bytes(spec, shape, precision)
    sharded = processes > 1 and strategy == "fsdp2"
    part = processes if sharded else 1
    buckets = held if processes > 1 and not sharded else 0
    return Memory(
        weights=held // part,
        gradients=held // part + buckets,
        optimizer=states * held // part,
        masks=masks // part,
        gathered=gathered_bytes(shape.model) if sharded else 0,
        casts=casts,
        sample=sample,
        largest=largest,
    )


def gathered_bytes(model: nn.Module) -> int:
    """What `experiments.training.ranks.Ranks.shard` lets one process hold whole at a time."""
    blocks = [
        sum(parameter.numel() for parameter in block.parameters())
        for part in model.modules()
        if isinstance(part, nn.ModuleList)
        for block in part
        if not any(isinstance(inner, nn.ModuleList) for inner in block.modules())
    ]
    block = max(blocks, default=0)
    root = sum(parameter.numel() for parameter in model.parameters()) - sum(blocks)
    return FLOAT * (2 * root + 3 * block)


def kept_bytes(spec: RunSpec, shape: Shape, precision: str) -> tuple[int, int, int]:
    """Bytes that the backward pass needs: without any sample, of each, and in one tensor of it."""
    smoothing = getattr(spec.recipe, "label_smoothing", 0.0)
    return _kept(spec.task, shape, precision == "bf16", smoothing)


@functools.lru_cache(maxsize=64)
def _kept(task: str, shape: Shape, half: bool, smoothing: float) -> tuple[int, int, int]:
    from torch._subclasses.fake_tensor import FakeTensorMode

    from experiments import tasks

    loss = tasks.get(task).Task.loss
    owner = SimpleNamespace(recipe=SimpleNamespace(label_smoothing=smoothing))
    found = []
    with FakeTensorMode(allow_non_fake_inputs=True):
        tensors: dict[str, torch.Tensor] = {
            name: torch.empty(weight.shape, requires_grad=True)
            for name, weight in shape.model.named_parameters()
        }
        for name, buffer in shape.model.named_buffers():
            tensors[name] = torch.empty(buffer.shape, dtype=buffer.dtype)

        def model(**inputs: Any) -> Any:
            return torch.func.functional_call(shape.model, tensors, (), inputs)

        for samples in (1, 2):
            batch = shape.batch(samples)
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                found.append(saved(tensors.values(), partial(loss, owner, model, batch)))
    one, two = (sum(sizes) for sizes in found)
    return max(0, 2 * one - two), two - one, max(found[1], default=0) // 2


def saved(own: Iterable[torch.Tensor], forward: Callable[[], Any]) -> list[int]:
    """Bytes of each storage that a forward pass keeps for the backward pass beside its own."""
    known = {tensor.untyped_storage()._cdata for tensor in own}
    held: dict[int, Any] = {}  # held, so that no later storage takes the place of one that is freed

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in known:
            held[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        forward()
    return [storage.nbytes() for storage in held.values()]


def cs2(spec: RunSpec, shape: Shape, planned: Forecast, flops: ModelFlops) -> tuple[float, str]:
    """Simulated seconds of a training on one CS-2 at its peak, and what they are called."""
    steps, work = spec.recipe.steps, planned.work
    levels = {
        name: 1 - done.present / (steps * shape.sizes[name])
        for name, done in work.items()
        if name in flops.weight_names
    }
    dense_steps = max((done.dense_steps for done in work.values()), default=0)
    seconds, label = 0.0, ""
    for dense, number in ((False, steps - dense_steps), (True, dense_steps)):
        if not number and label:
            continue
        step = simulate(
            shape.model, "cs2", batch_size=flops.batch_size, sparsity=levels or None,
            dense_weight_grad=dense, flops=flops, **shape.input_size,
        )  # fmt: skip
        seconds, label = seconds + number * step.step_s, step.label
    return seconds, label
