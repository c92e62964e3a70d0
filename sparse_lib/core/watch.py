"""Notices when a module with sparse parameters is replaced in its model."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from sparse_lib.core.parameter import SparseParameter, unwrap, warn


class Watch:
    """Models, and the way from each to the modules of its sparse parameters."""

    def __init__(self) -> None:
        self._models: list[nn.Module] = []
        self._edges: list[tuple[nn.Module, str, nn.Module]] = []  # parent, name, child

    def add(self, model: nn.Module, params: Mapping[str, SparseParameter]) -> None:
        """Watch a model, too; ``params`` are all sparse parameters by full name."""
        model = unwrap(model)
        if not any(known is model for known in self._models):
            self._models.append(model)
        self._edges = self._find_edges(params)

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
        if all(parent._modules.get(name) is child for parent, name, child in self._edges):
            return
        gone = [sparse.name for sparse in self._gone(params)]
        self._edges = self._find_edges(params)
        if gone:
            warn(
                f"the module of {some(gone)} was replaced in the model, so what is there trains "
                "dense; apply the algorithm to the model again, and give its optimizer the new "
                "parameters"
            )


def some(names: list[str]) -> str:
    """The first name, and how many more there are."""
    return repr(names[0]) + (f" and {len(names) - 1} more" if len(names) > 1 else "")
