"""Counts what a training step really runs: dense-equivalent, executed and skipped FLOPs, and bytes.

The closed forms of :mod:`sparse_lib.flops` say what a step should cost; the ledger listens below
autograd to every operator that runs, forward and backward, and books it on its layer. The two must
agree to the last digit. Where they differ on purpose:

- The first layer of a model on images runs no input gradient; the ledger books none.
- Fused attention computes its scores again in the backward pass. The closed form is what the
  gradients need, so the repeated work has its own column, ``recomputed_flops``.

Columns, all at 2 FLOPs per multiply-add:

- ``dense_flops``: what the layer would cost without masks.
- ``executed_flops``: what ran. A dense operator multiplies its masked weights too; kernels that
  skip are no torch operators and report through :func:`record`.
- ``skipped_flops``: dense less executed.
- ``sparse_flops``: what the masks leave, so what a device that skips everything it can would run:
  the number that sparse training papers report, and what executed FLOPs reach under ``"skip"``.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from sparse_lib.flops.model import (
    ATTENTION_BACKWARD,
    attention_flops,
    contraction_flops,
    convolution_flops,
    is_contraction,
    is_outer_product,
)
from sparse_lib.flops.trace import (
    WeightIndex,
    all_parameters,
    keeps_weight,
    module_stack,
    storage_key,
)
from sparse_lib.layers import describe, describe_packed

PARTS = ("forward", "input_gradient", "weight_gradient")
COLUMNS = ("dense_flops", "executed_flops", "skipped_flops", "sparse_flops", "recomputed_flops")
MEMORY_COLUMNS = (
    "weight_bytes",
    "nonzero_weight_bytes",
    "activation_bytes",
    "optimizer_bytes",
    "nonzero_optimizer_bytes",
)
# Enough for every operator of a step of the largest models; older graphs are dead by then.
_MAX_NODES = 100_000

_active: list[Ledger] = []


class Key(NamedTuple):
    """Whose work it is: one part of one layer, or of the weightless products of a module."""

    name: str
    operation: str
    weight_name: str | None
    part: str


class Counts(NamedTuple):
    """What was booked under one key."""

    num_calls: int = 0
    dense_flops: int = 0
    executed_flops: int = 0
    sparse_flops: int = 0
    recomputed_flops: int = 0

    def plus(self, other: Counts, sign: int = 1) -> Counts:
        """Sum, or difference, column by column."""
        return Counts(*(a + sign * b for a, b in zip(self, other)))

    def record(self) -> dict[str, int]:
        """The columns as a row."""
        return {**self._asdict(), "skipped_flops": self.dense_flops - self.executed_flops}


class Ledger(TorchDispatchMode):
    """Context manager that books every matrix product, convolution and attention of a model.

    Packed layers (`sparse_lib.device.pack`) are booked under the names that their weights had. What
    is packed or unpacked later than the ledger is made is not seen.

    Nothing is hooked outside of ``with``, so a ledger that is off costs nothing.

    Args:
        model: The model, or what it was compiled from; its module names and weights label the
            entries, its ``<name>_mask`` buffers tell which work is needed.
        dense_weight_gradient: Says whether the weight gradients of the running step are needed
            dense, at update steps of RigL and GraNet. A boolean or a function without arguments,
            for example ``lambda: algorithm.needs_dense_gradient``; None asks each weight, as the
            skipping layers do.

    Raises:
        TypeError: If the model is no module.

    Example:
        >>> model = nn.Linear(3, 5)
        >>> with Ledger(model) as ledger:
        ...     model(torch.ones(2, 3)).sum().backward()
        >>> ledger.totals()["executed_flops"]
        120
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        dense_weight_gradient: bool | Callable[[], bool] | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, not {model!r}")
        self._model = model
        self._dense_weight_gradient = dense_weight_gradient
        parameters = dict(all_parameters(model))
        self._layers = {d.weight_name: d for d in describe(model) if d.is_matmul}
        self._weights = {name: parameters[name] for name in self._layers}
        packed = describe_packed(model)
        self._packed = {id(values): layer for layer, values in packed}
        self._layers |= {layer.weight_name: layer for layer, _ in packed}
        self._weights |= {layer.weight_name: values for layer, values in packed}
        self._index = WeightIndex(self._weights)
        self._owners = _mask_owners(model)
        self._nodes: OrderedDict[int, tuple[str | None, str]] = OrderedDict()
        self._entries: dict[Key, Counts] = {}
        self._before_step: dict[Key, Counts] = {}
        self._steps: list[tuple[tuple[Key, Counts], ...]] = []
        self._distinct_steps: dict[tuple[tuple[Key, Counts], ...], Any] = {}
        self._stack: list[str] = [""]
        self._exits: list[ExitStack] = []
        self._kept: dict[int, tuple[tuple[str | None, str], int]] = {}
        self._in_backward = False
        self._peak: dict[tuple[str | None, str], int] = {}
        self._interest: dict[Any, str] = {}
        self._is_paused = False

    def __enter__(self) -> Ledger:
        exits = ExitStack()
        self._stack = exits.enter_context(module_stack(self._model))
        exits.callback(register_optimizer_step_pre_hook(self._pause).remove)
        exits.callback(register_optimizer_step_post_hook(self._go_on).remove)
        self._exits.append(exits)
        _active.append(self)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if not self._is_paused:  # still paused if an optimizer's step raised
            super().__exit__(*error)
        self._is_paused = False
        _active.remove(self)
        self._exits.pop().close()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # The guard that True installs costs more than the ledger's own work on most operators.
        return False

    def _pause(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Stop recording during an optimizer's step, whose operators are not counted."""
        has_closure = len(args) > 1 or kwargs.get("closure") is not None
        if _get_current_dispatch_mode() is self and not has_closure:
            super().__exit__(None, None, None)
            self._is_paused = True

    def _go_on(self, *_: Any) -> None:
        if self._is_paused:
            super().__enter__()
            self._is_paused = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = self._interest.get(func)
        if name is None:
            name = self._interest[func] = _interesting(func._schema.name)
        if not name:
            return out
        if name == "aten::convolution_backward":
            self._book_convolution_backward(args)
        elif name in ATTENTION_BACKWARD:
            self._book_attention_backward(args)
        elif is_contraction(name):
            self._book_contraction(name, args, out)
        else:
            self._index.follow(name, args, out)
        return out

    def book(
        self,
        weight_name: str,
        part: str,
        *,
        dense_flops: int,
        executed_flops: int,
        source: torch.Tensor | None = None,
    ) -> None:
        """Books work on a weight that no torch operator shows.

        Args:
            weight_name: Full parameter name.
            part: ``"forward"``, ``"input_gradient"`` or ``"weight_gradient"``.
            dense_flops: What dense execution would have cost.
            executed_flops: What ran.
            source: Input that is kept for the backward pass, if any.

        Raises:
            ValueError: If the part has another name.
        """
        if part not in PARTS:
            raise ValueError(f"part is {part!r}; it must be one of {', '.join(PARTS)}.")
        self._start_phase(backward=part != "forward")
        if source is not None:
            self._keep((weight_name, ""), source)
        self._add(weight_name, "", part, dense_flops, executed_flops)

    def name_of(self, weight: torch.Tensor) -> str | None:
        """Full parameter name of a weight of the model, or None."""
        return self._index.name_of(weight)

    def end_step(self) -> dict[str, int]:
        """Closes a step: what was booked since the last one becomes its own; returns its totals."""
        step = tuple(
            (key, counts.plus(self._before_step.get(key, Counts()), -1))
            for key, counts in self._entries.items()
            if counts != self._before_step.get(key)
        )
        # Most steps of a run are equal: one object for all of them.
        self._steps.append(self._distinct_steps.setdefault(step, step))
        self._before_step = dict(self._entries)
        self._close_phase()
        return _sum(counts for _, counts in step)

    @property
    def num_steps(self) -> int:
        """Steps that were closed."""
        return len(self._steps)

    @property
    def steps(self) -> list[dict[str, int]]:
        """Totals of each closed step."""
        return [_sum(counts for _, counts in step) for step in self._steps]

    def records(self) -> list[dict[str, Any]]:
        """One row per layer and part, over everything booked so far."""
        return [{**key._asdict(), **counts.record()} for key, counts in self._entries.items()]

    def step_records(self) -> list[dict[str, Any]]:
        """One row per closed step, layer and part; ``step`` counts from 0."""
        return [
            {"step": number, **key._asdict(), **counts.record()}
            for number, step in enumerate(self._steps)
            for key, counts in step
        ]

    def frame(self) -> Any:
        """A pandas table of all closed steps, or of what was booked where none was closed."""
        import pandas as pd

        return pd.DataFrame(self.step_records() or self.records())

    def totals(self, part: str | None = None) -> dict[str, int]:
        """Sums of the FLOP columns over everything booked so far, over one part or all."""
        return _sum(c for key, c in self._entries.items() if part in (None, key.part))

    def memory_records(
        self, optimizer: torch.optim.Optimizer | None = None
    ) -> list[dict[str, Any]]:
        """Bytes by layer: weights, activations, optimizer state.

        Activations are the distinct inputs of the booked forward operators, in the forward pass
        that kept most: what its backward pass needs. An input that several layers share is booked
        on the first. ``nonzero_...`` is what is left where the masks are zero.

        Args:
            optimizer: The optimizer whose state counts.
        """
        self._close_phase()
        rows: dict[str, dict[str, Any]] = {}
        for name, parameter in self._model.named_parameters():
            packed = self._packed.get(id(parameter))
            share = self._nonzero(name, parameter) / max(parameter.numel(), 1)
            name = name if packed is None else packed.weight_name
            state = [] if optimizer is None else optimizer.state.get(parameter, {}).values()
            tensors = [value for value in state if isinstance(value, torch.Tensor)]
            alike = sum(_num_bytes(t) for t in tensors if t.shape == parameter.shape)
            other = sum(_num_bytes(t) for t in tensors if t.shape != parameter.shape)
            rows[name] = {
                "name": name,
                "weight_bytes": _num_bytes(parameter),
                "nonzero_weight_bytes": round(share * _num_bytes(parameter)),
                "activation_bytes": 0,
                "optimizer_bytes": alike + other,
                "nonzero_optimizer_bytes": round(share * alike) + other,
            }
        for (weight, module), size in self._peak.items():
            name = weight or module
            empty = dict.fromkeys(MEMORY_COLUMNS, 0)
            rows.setdefault(name, {"name": name, **empty})["activation_bytes"] += size
        return list(rows.values())

    def memory(self, optimizer: torch.optim.Optimizer | None = None) -> dict[str, int]:
        """Sums of ``memory_records`` over the model."""
        rows = self.memory_records(optimizer)
        return {key: sum(row[key] for row in rows) for key in MEMORY_COLUMNS}

    def report(self, optimizer: torch.optim.Optimizer | None = None) -> str:
        """A table for people: FLOPs per layer and part, the share that was skipped, and bytes.

        Args:
            optimizer: The optimizer whose state counts.
        """
        from rich.console import Console
        from rich.table import Table

        table = Table(title="FLOPs (2 per multiply-add)")
        table.add_column("layer")
        for column in ("dense", "executed", "skipped", "masked", *PARTS):
            table.add_column(column, justify="right")
        layers = list(dict.fromkeys(key[:3] for key in self._entries))
        groups = [
            (name or operation, {key: c for key, c in self._entries.items() if key[:3] == layer})
            for layer in layers
            for name, operation, _ in [layer]
        ]
        for title, entries in [*groups, ("total", self._entries)]:
            total = _sum(entries.values())
            parts = (_sum(c for k, c in entries.items() if k.part == part) for part in PARTS)
            table.add_row(
                title,
                f"{total['dense_flops']:.4g}",
                f"{total['executed_flops']:.4g}",
                _share(total["skipped_flops"], total["dense_flops"]),
                _share(total["dense_flops"] - total["sparse_flops"], total["dense_flops"]),
                *(f"{part['executed_flops']:.4g}" for part in parts),
                end_section=bool(groups) and title == groups[-1][0],
            )
        with io.StringIO() as text:
            Console(width=150, file=text).print(table)
            memory = self.memory(optimizer)
            sizes = (f"{key.replace('_', ' ')} {memory[key]:.4g}" for key in MEMORY_COLUMNS)
            return f"{text.getvalue()}{', '.join(sizes)}\n"

    def _book_contraction(self, name: str, args: tuple[Any, ...], out: Any) -> None:
        flops = contraction_flops(name, args, out) or 0
        weight = self._index.find(args)
        node = _backward_node()
        if node is not None:
            known, module = self._nodes.get(node, (weight, ""))
            part = "weight_gradient" if known is not None and weight is None else "input_gradient"
            self._start_phase(backward=True)
            self._add(known, module, part, flops, flops)
        elif weight is not None or not is_outer_product(name, args):
            self._start_phase(backward=False)
            self._remember(weight, args)
            self._add(weight, self._stack[-1], "forward", flops, flops)

    def _book_convolution_backward(self, args: tuple[Any, ...]) -> None:
        grad, x, kernel, transposed, needed = args[0], args[1], args[2], args[7], args[10]
        flops = convolution_flops(x, kernel, grad, transposed=transposed)
        weight = self._index.name_of(kernel)
        self._start_phase(backward=True)
        for part, is_needed in zip(PARTS[1:], needed):
            if is_needed:
                self._add(weight, "", part, flops, flops)

    def _book_attention_backward(self, args: tuple[Any, ...]) -> None:
        query, key, value = args[1:4]
        flops = attention_flops(query, key, value)
        scores = flops * query.shape[-1] // (query.shape[-1] + value.shape[-1])
        _, module = self._nodes.get(_backward_node() or -1, (None, ""))
        self._start_phase(backward=True)
        self._add(None, module, "input_gradient", 2 * flops, 2 * flops, recomputed=scores)

    def _add(
        self,
        weight: str | None,
        module: str,
        part: str,
        dense: int,
        executed: int,
        recomputed: int = 0,
    ) -> None:
        sparse = dense
        if weight is not None:
            parameter, layer = self._weights[weight], self._layers[weight]
            if id(parameter) in self._packed:
                sparse = dense * parameter.numel() // max(layer.numel, 1)
            elif part != "weight_gradient" or not self._needs_dense(parameter):
                sparse = dense * self._nonzero(weight, parameter) // max(parameter.numel(), 1)
            key = Key(layer.name, layer.kind, weight, part)
        else:
            key = Key(module, "attention", None, part)
        booked = Counts(1, dense, executed, sparse, recomputed)
        known = self._entries.get(key)
        self._entries[key] = booked if known is None else known.plus(booked)

    def _remember(self, weight: str | None, args: tuple[Any, ...]) -> None:
        """Notes which autograd node the running operator belongs to, and its inputs' bytes."""
        sequence = torch._C._autograd._get_sequence_nr() - 1
        value = (weight, self._stack[-1])
        if not torch.is_grad_enabled():
            self._nodes.setdefault(sequence, value)
            return
        self._nodes[sequence] = value
        if len(self._nodes) > _MAX_NODES:
            self._nodes.popitem(last=False)
        owner = (weight, "" if weight else value[1])
        for arg in args:
            if isinstance(arg, torch.Tensor) and arg.dim() > 1 and not self._index.name_of(arg):
                self._keep(owner, arg)

    def _keep(self, owner: tuple[str | None, str], tensor: torch.Tensor) -> None:
        self._kept.setdefault(storage_key(tensor), (owner, tensor.untyped_storage().nbytes()))

    def _start_phase(self, *, backward: bool) -> None:
        """Count activations anew where a forward pass begins after a backward pass."""
        if self._in_backward and not backward:
            self._close_phase()
        self._in_backward = backward

    def _close_phase(self) -> None:
        if sum(size for _, size in self._kept.values()) > sum(self._peak.values()):
            self._peak = {}
            for owner, size in self._kept.values():
                self._peak[owner] = self._peak.get(owner, 0) + size
        self._kept.clear()

    def _needs_dense(self, parameter: torch.Tensor) -> bool:
        needs = self._dense_weight_gradient
        if needs is None:
            return bool(getattr(parameter, "_needs_dense_gradient", False))
        return bool(needs() if callable(needs) else needs)

    def _nonzero(self, name: str, parameter: torch.Tensor) -> int:
        module, mask_name = self._owners[name]
        mask = module._buffers.get(mask_name)
        if mask is None:
            return parameter.numel()
        # Counted each time, since a replaced mask may take the address of the old one. NumPy does
        # so in a fifth of torch's time.
        on_cpu = type(mask) is torch.Tensor and mask.is_cpu
        return int(np.count_nonzero(mask.numpy()) if on_cpu else mask.count_nonzero())


def record(
    weight: torch.Tensor,
    part: str,
    *,
    dense_flops: int,
    executed_flops: int,
    source: torch.Tensor | None = None,
) -> None:
    """Reports the work of a kernel that is no torch operator to the ledgers that listen.

    Args:
        weight: The weight that the kernel used.
        part: ``"forward"``, ``"input_gradient"`` or ``"weight_gradient"``.
        dense_flops: What dense execution would have cost.
        executed_flops: What the kernel multiplied and added.
        source: Input that the kernel keeps for its backward pass, if any.
    """
    for ledger in _active:
        name = ledger.name_of(weight)
        if name is not None:
            ledger.book(
                name, part, dense_flops=dense_flops, executed_flops=executed_flops, source=source
            )


def is_recording() -> bool:
    """True while a ledger listens, so that kernels may save themselves the counting."""
    return bool(_active)


def _interesting(name: str) -> str:
    """The operator's name if the ledger looks at it, else an empty string."""
    own = name == "aten::convolution_backward" or name in ATTENTION_BACKWARD
    return name if own or is_contraction(name) or keeps_weight(name) else ""


def _mask_owners(model: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """Where the mask of each parameter is, by each of its names; tied weights share the first's."""
    owners: dict[str, tuple[nn.Module, str]] = {}
    first: dict[int, str] = {}
    for name, parameter in all_parameters(model):
        module_name, _, leaf = first.setdefault(id(parameter), name).rpartition(".")
        owner = model.get_submodule(module_name)
        # The masks of a packed layer's other parameters are where they were.
        owners[name] = (owner.__dict__.get("_layer", owner), f"{leaf}_mask")
    return owners


def _sum(counts: Iterable[Counts]) -> dict[str, int]:
    total = Counts()
    for each in counts:
        total = total.plus(each)
    row = total.record()
    return {column: row[column] for column in COLUMNS}


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def _num_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _backward_node() -> int | None:
    """Sequence number of the autograd node that runs, None in a forward pass.

    Gradients are off in a backward pass but on where checkpointing repeats a forward pass in it.
    """
    if torch.is_grad_enabled():
        return None
    node = torch._C._current_autograd_node()
    return None if node is None else node._sequence_nr()
