"""Base class of algorithms and groups of them: they are applied to a model and an optimizer."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from sparse_lib.checks import check_bool
from sparse_lib.core.driver import Driver, Found
from sparse_lib.core.metrics import summary
from sparse_lib.core.optimizers import params_of
from sparse_lib.core.parameter import SparseParameter
from sparse_lib.flops.model import ModelFlops

if TYPE_CHECKING:
    from sparse_lib.core.algorithm import SparsityAlgorithm


class Applied(ABC):
    """Base of `SparsityAlgorithm` and `Group`; a `Driver` acts for it."""

    sparse_params: dict[str, SparseParameter]
    """Sparse parameters by full name, in model order."""
    step: int
    """Optimizer steps taken; a step that a GradScaler skips does not count."""

    def __init__(self) -> None:
        self.driver = Driver(self)
        self._autoupdate = True

    @property
    def autoupdate(self) -> bool:
        """Whether masks are updated automatically after optimizer steps; masking always is.

        Setting it sets that of a group's members.
        """
        return self._autoupdate

    @autoupdate.setter
    def autoupdate(self, value: bool) -> None:
        self._autoupdate = check_bool(value, "autoupdate")
        for algorithm in self.algorithms:
            if algorithm is not self:
                algorithm.autoupdate = value
        self.driver.prepare_next_step()

    @property
    @abstractmethod
    def algorithms(self) -> Sequence[SparsityAlgorithm]:
        """The algorithm itself, or the members of a group in order."""

    @abstractmethod
    def divide_model(self, model: nn.Module) -> list[tuple[SparsityAlgorithm, Found]]:
        """Each algorithm and the parameters of a model that it is to mask."""

    @property
    def drives_optimizer(self) -> bool:
        """True if an optimizer's steps enforce and update the masks."""
        return self.driver.optimizer is not None

    @property
    def num_sparse_params(self) -> int:
        """Number of sparse parameter tensors."""
        return len(self.sparse_params)

    def get_sparse_params(
        self, obj: Tensor | nn.Module | Optimizer
    ) -> SparseParameter | list[SparseParameter] | None:
        """The sparse parameter of a tensor (None if it has none), or those of a container.

        Raises:
            TypeError: If ``obj`` is none of these.
        """
        if isinstance(obj, Tensor):
            return next((s for s in self.sparse_params.values() if s.param is obj), None)
        if isinstance(obj, nn.Module):
            wanted = {id(param) for param in obj.parameters()}
        elif hasattr(obj, "param_groups"):
            wanted = params_of(obj)
        else:
            raise TypeError(
                f"expected a tensor, a module or an optimizer, not {type(obj).__name__}"
            )
        return [s for s in self.sparse_params.values() if id(s.param) in wanted]

    def apply(self, target: Any, *others: Any) -> Any:
        """Sparsify a model (first) or an optimizer, in place.

        On a model: every parameter gets a ``<name>_mask`` bool buffer and its masked weights
        become zero now. On an optimizer: its states are masked, and masks are enforced and
        updated by ``optimizer.step()``; it should hold all trainable sparse parameters. Of an
        optimizer that wraps another one of the same parameters, the inner one's steps count. After
        a module of the model was replaced, apply the algorithm to the model again.

        Returns:
            The target.

        Raises:
            ValueError: If the model or optimizer cannot be sparsified; the message says why, and
                all is left as it was.
            RuntimeError: If weights of the model were tied or taken away after it got masks.
            TypeError: If the target is neither, or there are several.
        """
        if others:
            raise TypeError(
                "apply takes one model or one optimizer: call apply(model), then apply(optimizer)"
            )
        self.check_made()
        if isinstance(target, nn.Module):
            self.driver.apply_to_model(target)
        elif hasattr(target, "param_groups"):
            self.driver.apply_to_optimizer(target)
        else:
            raise TypeError(f"apply takes a torch module or optimizer, not {type(target).__name__}")
        return target

    def check_made(self) -> None:
        """Raise TypeError if a subclass left out the constructor of its base."""
        if "driver" not in vars(self):
            raise TypeError(
                f"{type(self).__name__}.__init__ does not call super().__init__(...), which takes "
                "sparsity and all other settings"
            )

    def __call__(self, target: Any) -> None:
        """Apply to a module; ``model.apply(self)`` calls this for each, children first."""
        frame, code = sys._getframe(1), nn.Module.apply.__code__
        # Full names are known at the module where the call began, which comes last.
        nested = frame.f_back is not None and frame.f_back.f_code is code
        if not (frame.f_code is code and nested):
            self.apply(target)

    def detach(self, module: nn.Module | Optimizer | None = None) -> None:
        """Let go of a model's parameters and, when none are left, of the optimizer.

        Masks stay in the model as buffers, still enforced on weights' gradients; another
        algorithm may adopt them. `sparse_lib.finalize` and `sparse_lib.densify`
        call this themselves. Counters, seed and schedules stay as they are.

        Args:
            module: Whose parameters to let go; None means all. Given the optimizer that the
                algorithm was applied to, it lets go of that alone, and another may take its place.

        Raises:
            ValueError: If the algorithm was applied to another optimizer.
        """
        self.driver.detach(module)

    def initialize(self) -> None:
        """Make the masks that do not exist; `apply` on a model includes this."""
        for algorithm in self.algorithms:
            algorithm.put_first_masks(algorithm.first_masks(algorithm.sparse_params.values()))

    def metrics(self, flops: ModelFlops | None = None) -> dict[str, Any]:
        """Measures of the masks and of their changes, as a plain dict that can be written as JSON.

        Args:
            flops: FLOPs of the model by `sparse_lib.count_flops`, to have FLOPs too.

        Returns:
            ``"tensors"``: by full name, the mask's ``"sparsity"``, the last ``"target"``,
            ``"churn"`` (share of present weights that the last update brought), ``"itop"`` (share
            of positions ever present; in-time over-parameterization, Liu et al. 2021),
            ``"degree_of_constraint"`` (share of the first mask's weights never dropped),
            ``"survival"`` (share of grown weights that outlived the next update; None before
            any could), ``"dead_units"`` (outputs without an incoming weight; None for vectors)
            and ``"num_updates"``. Beside it ``"sparsity"``, ``"churn"``, ``"itop"`` and
            ``"degree_of_constraint"`` over all weights together, ``"survival"``, the sum of
            ``"dead_units"``, the present ``"drop_fraction"`` of the first algorithm that has one,
            and ``"flops"``: of a ``"forward"`` pass with the present masks, of the next
            ``"training_step"`` (with a dense weight gradient where one is due), of the whole
            ``"run"`` so far with the masks as they were, and of these two if dense
            (``"dense_training_step"``, ``"dense_run"``).

        Raises:
            TypeError: If ``flops`` are no `sparse_lib.flops.ModelFlops`.
        """
        found = summary(self.sparse_params)
        if flops is not None:
            if not isinstance(flops, ModelFlops):
                raise TypeError(f"metrics takes what count_flops returns, not {flops!r:.80}")
            found["flops"] = self._flops(flops)
        fractions = [a.drop_fraction for a in self.algorithms if hasattr(a, "drop_fraction")]
        return found | ({"drop_fraction": fractions[0]} if fractions else {})

    def _flops(self, flops: ModelFlops) -> dict[str, Any]:
        params = self.sparse_params
        levels = {n: s.sparsity for n, s in params.items() if n in flops.weight_names}
        work = {name: sparse.count_work() for name, sparse in params.items()}
        next_work = {
            name: sparse.work_of_a_step(algorithm.needs_dense_gradient)
            for algorithm in self.algorithms
            for name, sparse in algorithm.sparse_params.items()
        }
        return {
            "forward": flops.forward(levels),
            "training_step": flops.run(1, next_work),
            "dense_training_step": flops.training_step(),
            "run": flops.run(self.step, work),
            "dense_run": self.step * flops.training_step(),
        }

    def __getstate__(self) -> dict[str, Any]:
        # A copy of model, algorithm and optimizer together goes on training sparsely.
        own = self.driver.owner is self
        state = {key: value for key, value in vars(self).items() if key != "driver"}
        return state | {"_driven": self.driver.optimizer if own else None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({key: value for key, value in state.items() if key != "_driven"})
        self.driver = Driver(self)
        for algorithm in self.algorithms:
            self.driver.claim(algorithm)
        if (optimizer := state.get("_driven")) is not None:
            self.driver.connect(optimizer)
            for sparse in self.sparse_params.values():
                sparse.guard.note_masked()
            self.driver.find_not_held()
            self.driver.prepare_next_step()


def register_hook(hooks: OrderedDict[int, Callable], hook: Callable) -> RemovableHandle:
    """Add a hook to others; TypeError if it is no function."""
    if not callable(hook):
        raise TypeError(f"a hook must be callable, not {hook!r}")
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle
