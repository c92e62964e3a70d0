"""Counts what a training step really runs: dense-equivalent, executed and skipped FLOPs.

The closed forms of :mod:`sparse_lib.flops` say what a step should cost; the ledger listens below
autograd to every operator that runs, forward and backward, and books it on its layer. The two must
agree to the last digit. Where they differ on purpose:

- The first layer of a model on images runs no input gradient; the ledger books none.
- Fused attention computes its scores again in the backward pass. The closed form is what the
  gradients need, so the repeated work has its own column, ``recomputed_flops``.

Dense operators on masked weights: a skipping device leaves the masked part out, so the masks tell
executed from skipped FLOPs (``skipping=False`` books what the dense operator multiplies, zeros
included). Kernels that truly skip are no torch operators; they report through :func:`record`.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from sparse_lib.flops import (
    ATTENTION_BACKWARD,
    attention_flops,
    contraction_flops,
    convolution_flops,
    is_outer_product,
)
from sparse_lib.layers import describe
from sparse_lib.trace import WeightIndex, all_parameters, module_stack, storage_key

PARTS = ("forward", "input_gradient", "weight_gradient")
# Enough for every operator of a step of the largest models; older graphs are dead by then.
_MAX_NODES = 100_000

_active: list[Ledger] = []


@dataclass(slots=True)
class Entry:
    """What one layer did in one part of the step; FLOPs are 2 per multiply-add."""

    name: str
    operation: str
    weight_name: str | None
    part: str
    num_calls: int = 0
    dense_flops: int = 0
    executed_flops: int = 0
    recomputed_flops: int = 0

    def add(self, dense: int, executed: int, recomputed: int = 0) -> None:
        """Books one call."""
        self.num_calls += 1
        self.dense_flops += dense
        self.executed_flops += executed
        self.recomputed_flops += recomputed

    def record(self) -> dict[str, Any]:
        """The entry as a row."""
        return {
            "name": self.name,
            "operation": self.operation,
            "weight_name": self.weight_name,
            "part": self.part,
            "num_calls": self.num_calls,
            "dense_flops": self.dense_flops,
            "executed_flops": self.executed_flops,
            "skipped_flops": self.dense_flops - self.executed_flops,
            "recomputed_flops": self.recomputed_flops,
        }


class Ledger(TorchDispatchMode):
    """Context manager that books every matrix product, convolution and attention of a model.

    Nothing is hooked outside of ``with``, so a ledger that is off costs nothing.

    Args:
        model: The model; its module names and weights label the entries, its ``<name>_mask``
            buffers tell executed from skipped work.
        dense_weight_gradient: Says whether the weight gradients of the running step are needed
            dense, at update steps of RigL and GraNet. A boolean or a function without arguments,
            for example ``lambda: algorithm.needs_dense_gradient``.
        skipping: True books masked weights as skipped, False as executed.

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
        dense_weight_gradient: bool | Callable[[], bool] = False,
        skipping: bool = True,
    ) -> None:
        super().__init__()
        self._model = model
        self._dense_weight_gradient = dense_weight_gradient
        self._skipping = skipping
        parameters = dict(all_parameters(model))
        self._layers = {d.weight_name: d for d in describe(model) if d.is_matmul}
        self._weights = {name: parameters[name] for name in self._layers}
        self._index = WeightIndex(self._weights)
        self._first_names = {id(parameter): name for name, parameter in parameters.items()}
        self._nodes: OrderedDict[int, tuple[str | None, str]] = OrderedDict()
        self._entries: dict[tuple[str | None, str, str], Entry] = {}
        self._num_nonzero: dict[str, tuple[Any, int]] = {}
        self._stack: list[str] = [""]
        self._exits: list[ExitStack] = []
        self._activations: dict[int, int] = {}
        self._activation_bytes = 0
        self.steps: list[dict[str, int]] = []

    def __enter__(self) -> Ledger:
        exits = ExitStack()
        self._stack = exits.enter_context(module_stack(self._model))
        self._exits.append(exits)
        _active.append(self)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        _active.remove(self)
        self._exits.pop().close()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name
        if name == "aten::convolution_backward":
            self._book_convolution_backward(args)
        elif name in ATTENTION_BACKWARD:
            self._book_attention_backward(name, args)
        else:
            flops = contraction_flops(name, args, out)
            if flops is None:
                self._index.follow(name, args, out)
            else:
                self._book_contraction(name, args, out, flops)
        return out

    def book(self, weight_name: str, part: str, *, dense_flops: int, executed_flops: int) -> None:
        """Books work on a weight that no torch operator shows.

        Args:
            weight_name: Full parameter name.
            part: ``"forward"``, ``"input_gradient"`` or ``"weight_gradient"``.
            dense_flops: What dense execution would have cost.
            executed_flops: What ran.

        Raises:
            ValueError: If the part has another name.
        """
        if part not in PARTS:
            raise ValueError(f"part is {part!r}; it must be one of {', '.join(PARTS)}.")
        self._entry(weight_name, "", part).add(dense_flops, executed_flops)

    def name_of(self, weight: torch.Tensor) -> str | None:
        """Full parameter name of a weight of the model, or None."""
        return self._index.name_of(weight)

    def end_step(self) -> dict[str, int]:
        """Closes a step: returns its totals and appends them to ``steps``."""
        totals, before = self.totals(), self.steps
        step = {key: value - sum(done[key] for done in before) for key, value in totals.items()}
        self.steps.append(step)
        self._activations.clear()
        return step

    def records(self) -> list[dict[str, Any]]:
        """One row per layer and part, over everything booked so far."""
        return [entry.record() for entry in self._entries.values()]

    def totals(self, part: str | None = None) -> dict[str, int]:
        """Sums of the FLOP columns, over one part or all."""
        keys = ("dense_flops", "executed_flops", "skipped_flops", "recomputed_flops")
        rows = [row for row in self.records() if part in (None, row["part"])]
        return {key: sum(row[key] for row in rows) for key in keys}

    def memory(self, optimizer: torch.optim.Optimizer | None = None) -> dict[str, int]:
        """Bytes of the weights, their non-zeros, the step's activations and optimizer state.

        Activations are the distinct inputs of the booked forward operators since the last
        ``end_step`` (at its largest): what their backward pass must keep.
        """
        parameters = dict(self._model.named_parameters())
        nonzero = {name: self._nonzero(name, parameter) for name, parameter in parameters.items()}
        state = (
            [] if optimizer is None else [v for s in optimizer.state.values() for v in s.values()]
        )
        return {
            "weight_bytes": sum(p.numel() * p.element_size() for p in parameters.values()),
            "nonzero_weight_bytes": sum(
                nonzero[name] * p.element_size() for name, p in parameters.items()
            ),
            "activation_bytes": self._activation_bytes,
            "optimizer_bytes": sum(
                value.numel() * value.element_size()
                for value in state
                if isinstance(value, torch.Tensor)
            ),
        }

    def report(self) -> str:
        """A table for people: per layer, FLOPs by part, and the share that was skipped."""
        from rich.console import Console
        from rich.table import Table

        table = Table(title="FLOPs (2 per multiply-add)")
        table.add_column("layer")
        for column in ("dense", "executed", "skipped", *PARTS):
            table.add_column(column, justify="right")
        names = list(dict.fromkeys((e.name, e.operation) for e in self._entries.values()))
        for name, operation in [*names, ("total", "")]:
            rows = [
                entry
                for entry in self._entries.values()
                if (entry.name, entry.operation) == (name, operation) or name == "total"
            ]
            dense = sum(row.dense_flops for row in rows)
            executed = sum(row.executed_flops for row in rows)
            parts = [sum(r.executed_flops for r in rows if r.part == part) for part in PARTS]
            skipped = f"{1 - executed / dense:.1%}" if dense else "-"
            table.add_row(
                name or operation,
                f"{dense:.4g}",
                f"{executed:.4g}",
                skipped,
                *(f"{value:.4g}" for value in parts),
                end_section=(name, operation) == names[-1] if names else False,
            )
        with io.StringIO() as text:
            Console(width=140, file=text).print(table)
            return text.getvalue()

    def _book_contraction(self, name: str, args: tuple[Any, ...], out: Any, flops: int) -> None:
        weight = self._index.find(args)
        node = _backward_node()
        if node is not None:
            known, module = self._nodes.get(node, (weight, ""))
            part = "weight_gradient" if known is not None and weight is None else "input_gradient"
            self._book(known, module, part, flops)
        elif weight is not None or not is_outer_product(name, args):
            self._remember(weight, args)
            self._book(weight, self._stack[-1], "forward", flops)

    def _book_convolution_backward(self, args: tuple[Any, ...]) -> None:
        grad, x, kernel, transposed, needed = args[0], args[1], args[2], args[7], args[10]
        flops = convolution_flops(x, kernel, grad, transposed=transposed)
        weight = self._index.name_of(kernel)
        for part, is_needed in zip(PARTS[1:], needed):
            if is_needed:
                self._book(weight, "", part, flops)

    def _book_attention_backward(self, name: str, args: tuple[Any, ...]) -> None:
        query, key, value = args[1:4]
        flops = attention_flops(query, key, value)
        scores = flops * query.shape[-1] // (query.shape[-1] + value.shape[-1])
        _, module = self._nodes.get(_backward_node() or -1, (None, ""))
        self._entry(None, module, "input_gradient").add(2 * flops, 2 * flops, scores)

    def _book(self, weight: str | None, module: str, part: str, flops: int) -> None:
        executed = flops
        if weight is not None and self._skipping:
            parameter = self._weights[weight]
            nonzero = self._nonzero(weight, parameter)
            if part != "weight_gradient" or not self._needs_dense():
                executed = flops * nonzero // parameter.numel()
        self._entry(weight, module, part).add(flops, executed)

    def _entry(self, weight: str | None, module: str, part: str) -> Entry:
        key = (weight, "" if weight else module, part)
        if key not in self._entries:
            layer = self._layers[weight] if weight else None
            self._entries[key] = Entry(
                name=layer.name if layer else module,
                operation=layer.kind if layer else "attention",
                weight_name=weight,
                part=part,
            )
        return self._entries[key]

    def _remember(self, weight: str | None, args: tuple[Any, ...]) -> None:
        """Notes which autograd node the running operator belongs to, and its inputs' bytes."""
        sequence = torch._C._autograd._get_sequence_nr() - 1
        value = (weight, self._stack[-1])
        if torch.is_grad_enabled():
            self._nodes[sequence] = value
        else:
            self._nodes.setdefault(sequence, value)
        if len(self._nodes) > _MAX_NODES:
            self._nodes.popitem(last=False)
        for arg in args:
            if isinstance(arg, torch.Tensor) and arg.dim() > 1 and not self._index.name_of(arg):
                self._activations[storage_key(arg)] = arg.untyped_storage().nbytes()
        self._activation_bytes = max(self._activation_bytes, sum(self._activations.values()))

    def _needs_dense(self) -> bool:
        needs = self._dense_weight_gradient
        return bool(needs() if callable(needs) else needs)

    def _nonzero(self, name: str, parameter: torch.Tensor) -> int:
        mask = self._mask(self._first_names.get(id(parameter), name))
        if mask is None:
            return parameter.numel()
        version = (id(mask), mask._version)
        known = self._num_nonzero.get(name)
        if known is None or known[0] != version:
            known = (version, int(mask.count_nonzero()))
            self._num_nonzero[name] = known
        return known[1]

    def _mask(self, weight_name: str) -> torch.Tensor | None:
        module_name, _, name = weight_name.rpartition(".")
        return self._model.get_submodule(module_name)._buffers.get(f"{name}_mask")


def record(weight: torch.Tensor, part: str, *, dense_flops: int, executed_flops: int) -> None:
    """Reports the work of a kernel that is no torch operator to the ledgers that listen.

    Args:
        weight: The weight that the kernel used.
        part: ``"forward"``, ``"input_gradient"`` or ``"weight_gradient"``.
        dense_flops: What dense execution would have cost.
        executed_flops: What the kernel multiplied and added.
    """
    for ledger in _active:
        name = ledger.name_of(weight)
        if name is not None:
            ledger.book(name, part, dense_flops=dense_flops, executed_flops=executed_flops)


def is_recording() -> bool:
    """True while a ledger listens, so that kernels may save themselves the counting."""
    return bool(_active)


def _backward_node() -> int | None:
    """Sequence number of the autograd node that runs, None in a forward pass.

    Gradients are off in a backward pass but on where checkpointing repeats a forward pass in it.
    """
    if torch.is_grad_enabled():
        return None
    node = torch._C._current_autograd_node()
    return None if node is None else node._sequence_nr()
