"""Notices when a module with sparse parameters is replaced in its model.

A copied or pickled algorithm does not carry whole models along. Instead each model carries a
:class:`Mark`, which refers to the algorithm's :class:`Watch`: where both are copied together, in
any order, the copied mark enters the copied model into the copied watch.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Mapping
from typing import Any

from torch import nn

from sparse_lib.core.parameter import SparseParameter, unwrap, warn

_MARKS = "_sparse_marks"


class Watch:
    """Models, and the way from each to the modules of its sparse parameters.

    Models are known by weak references; a copy by itself knows none.
    """

    def __init__(self) -> None:
        self._known: list[weakref.ref[nn.Module]] = []
        # Parent, name and child; None where they were not looked for yet.
        self._edges: list[tuple[nn.Module, str, nn.Module]] | None = None

    @property
    def _models(self) -> list[nn.Module]:
        return [model for known in self._known if (model := known()) is not None]

    def add(self, model: nn.Module, params: Mapping[str, SparseParameter]) -> None:
        """Watch a model, too; ``params`` are all sparse parameters by full name."""
        model = unwrap(model)
        if not any(known is model for known in self._models):
            model.__dict__.setdefault(_MARKS, []).append(Mark(model, self))
        self._edges = self._find_edges(params)

    def forget(self) -> None:
        """Watch no model any more, and take the marks out of them."""
        for model in self._models:
            marks = [mark for mark in model.__dict__.pop(_MARKS, ()) if mark.watch is not self]
            if marks:
                model.__dict__[_MARKS] = marks
        self.__init__()  # type: ignore[misc]

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]

    def __deepcopy__(self, memo: dict[int, Any]) -> Watch:
        return Watch()

    def _find_edges(
        self, params: Mapping[str, SparseParameter]
    ) -> list[tuple[nn.Module, str, nn.Module]]:
        """Parent, name and child on every way from a model to a sparse parameter's module."""
        owners = {id(sparse.module) for sparse in params.values()}
        return [
            (parent, name, child)
            for model in self._models
            for parent in model.modules()
            for name, child in parent._modules.items()
            if child is not None and any(id(inner) in owners for inner in child.modules())
        ]

    def _gone(self, params: Mapping[str, SparseParameter]) -> list[SparseParameter]:
        """Sparse parameters whose module is in none of the models any more."""
        inside = {id(module) for model in self._models for module in model.modules()}
        return [s for s in params.values() if inside and id(s.module) not in inside]

    def replaced(self, params: Mapping[str, SparseParameter]) -> list[nn.Module]:
        """Modules of sparse parameters that are in none of the models any more, each once."""
        return list({id(sparse.module): sparse.module for sparse in self._gone(params)}.values())

    def check(self, params: Mapping[str, SparseParameter]) -> None:
        """Warn, once, of sparse parameters whose module was replaced in the model."""
        edges = self._edges
        if edges is not None and all(p._modules.get(name) is child for p, name, child in edges):
            return
        gone = [sparse.name for sparse in self._gone(params)]
        self._edges = self._find_edges(params)
        if gone:
            warn(
                f"the module of {some(gone)} was replaced in the model, so what is there trains "
                "dense; apply the algorithm to the model again, and give its optimizer the new "
                "parameters"
            )


class Mark:
    """In a model: the watch that it is under."""

    def __init__(self, model: nn.Module, watch: Watch) -> None:
        self._model, self.watch = weakref.ref(model), watch
        watch._known.append(self._model)

    def __getstate__(self) -> dict[str, Any]:
        return {"model": self._model(), "watch": self.watch}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Mark.__init__(self, state["model"], state["watch"])

    def __deepcopy__(self, memo: dict[int, Any]) -> Mark:
        model = self._model()
        assert model is not None  # only the model itself refers to its mark
        return Mark(copy.deepcopy(model, memo), copy.deepcopy(self.watch, memo))


def some(names: list[str]) -> str:
    """The first name, and how many more there are."""
    return repr(names[0]) + (f" and {len(names) - 1} more" if len(names) > 1 else "")
