"""Properties of every algorithm, as checks for a class of your own.

>>> import sparse_lib as sl
>>> class Largest(sl.DynamicSparsityAlgorithm):
...     def update_mask(self, p, mask, sparsity):
...         return sl.masks.make_mask_topk_sparsity(p.abs(), sparsity)
>>> check_algorithm(Largest)

In a file of tests: ``@pytest.mark.parametrize("check", CHECKS)``, and ``check(Case(Largest))``.
"""

from __future__ import annotations

import copy
import functools
import math
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sparse_lib.core.algorithm import SparsityAlgorithm
from sparse_lib.core.codes import start_of
from sparse_lib.core.drop_and_grow import DropAndGrow
from sparse_lib.core.dynamic import DynamicSparsityAlgorithm
from sparse_lib.masks.counts import num_nonzero

OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda params: torch.optim.SGD(params, 0.05, momentum=0.9, weight_decay=0.1),
    "adamw": lambda params: torch.optim.AdamW(params, 0.01, amsgrad=True),
    "adagrad": lambda params: torch.optim.Adagrad(params, 0.01, initial_accumulator_value=0.1),
    "adamax": lambda params: torch.optim.Adamax(params, 0.01),
    "rprop": lambda params: torch.optim.Rprop(params, 0.01),
}
SCHEDULES: dict[str, Any] = {
    "constant": 0.6,
    "linear": {"type": "linear", "init": 0.2, "slope": 0.05},
    "cosine": {"type": "cosine", "init": 0.4, "minimum": 0.8, "half_period": 10},
    "periodic": {"type": "periodic", "values": [0.4, 0.6, 0.5], "period": 3},
    "cubic": {
        "type": "cubic",
        "init_sparsity": 0.2,
        "end_sparsity": 0.8,
        "sparsity_start_step": 0,
        "sparsity_end_step": 9,
        "prune_every_k_steps": 2,
    },
}


class NotConforming(AssertionError):
    """An algorithm does not do what each is expected to; the message says what."""


@dataclass(frozen=True)
class Case:
    """A class of algorithms, and arguments that make its masks move within a few steps.

    ``arguments`` are those of its constructor besides ``sparsity`` and ``seed``. By default a
    dynamic algorithm updates its masks at every second step, and one that drops and grows drops
    half at first. ``follows_sparsity`` is False if masks need not have the sparsity that was asked
    for.
    """

    cls: type[SparsityAlgorithm]
    arguments: dict[str, Any] = field(default_factory=dict)
    follows_sparsity: bool = True

    @property
    def is_dynamic(self) -> bool:
        """Whether it takes an ``update``."""
        return issubclass(self.cls, DynamicSparsityAlgorithm)

    def make(self, sparsity: Any = 0.6, **options: Any) -> SparsityAlgorithm:
        """A new algorithm, with a seed of its own."""
        defaults: dict[str, Any] = {"seed": 3}
        if self.is_dynamic:
            defaults["update"] = {"freq": 2}
        if issubclass(self.cls, DropAndGrow):
            defaults["drop_fraction"] = {"type": "cosine", "init": 0.5, "half_period": 20}
        return self.cls(sparsity=sparsity, **(defaults | self.arguments | options))

    def start(
        self, sparsity: Any = 0.6, *, optimizer: str = "sgd", **options: Any
    ) -> tuple[nn.Module, SparsityAlgorithm, Optimizer]:
        """A model, a new algorithm and an optimizer, with the algorithm applied to both."""
        model = make_model()
        algorithm = self.make(sparsity, **options)
        algorithm.apply(model)
        made = OPTIMIZERS[optimizer](model.parameters())
        algorithm.apply(made)
        return model, algorithm, made

    def updating(self, update: Any) -> dict[str, Any]:
        """The option that makes masks move at other steps, where there is one."""
        return {"update": update} if self.is_dynamic else {}


def check_algorithm(
    cls: type[SparsityAlgorithm], *, follows_sparsity: bool = True, **arguments: Any
) -> None:
    """Put a class of algorithms, with these arguments, through all checks; see `Case`.

    Takes seconds on one core. Models are small and on the CPU.

    Raises:
        NotConforming: Naming each check that fails, and how.
        TypeError: If ``cls`` is no such class, or takes no such argument.
    """
    if not (isinstance(cls, type) and issubclass(cls, SparsityAlgorithm)):
        raise TypeError(f"cls must be a class of algorithms, not {cls!r}")
    case = Case(cls, arguments, follows_sparsity)
    case.make()  # what is wrong with an argument is said once
    failed = []
    for check in CHECKS:
        try:
            check(case)
        except Exception as error:
            kind = "" if isinstance(error, NotConforming) else f"{type(error).__name__}: "
            failed.append(f"\n{check.__name__}: {kind}{error}")
    if failed:
        raise NotConforming(f"{cls.__name__} fails {len(failed)} checks:{''.join(failed)}")


def make_model(seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Two linear layers, of 12 to 16 to 6 features; the second has no bias."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 6, bias=False))
    return model.to(dtype)


def train(
    model: nn.Module,
    optimizer: Optimizer,
    num_steps: int,
    start: int = 0,
    after: Callable[[], None] | None = None,
) -> None:
    """Train the model of `make_model`; the data of a step depend on its number alone."""
    dtype = next(model.parameters()).dtype
    for step in range(start, start + num_steps):
        data = torch.randn(8, 12, generator=torch.Generator().manual_seed(step), dtype=dtype)
        optimizer.zero_grad()
        model(data).pow(2).sum(1).sub(1).pow(2).mean().backward()
        optimizer.step()
        if after is not None:
            after()


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the model's state, masks included."""
    return {name: value.clone() for name, value in model.state_dict().items()}


def expect(condition: Any, sentence: str) -> None:
    """Raise `NotConforming` unless a condition holds."""
    if not condition:
        raise NotConforming(sentence)


def expect_equal(first: dict[str, Tensor], second: dict[str, Tensor], when: str) -> None:
    """Two states have the same names and the same bits."""
    expect(list(first) == list(second), f"{when}, names differ")
    for name in first:
        expect(torch.equal(first[name], second[name]), f"{when}, {name!r} differs")


def expect_enforced(algorithm: SparsityAlgorithm, optimizer: Optimizer | None = None) -> None:
    """Weights are zero where masked; states that the algorithm masks are what they begin with."""
    expect(algorithm.sparse_params, "no parameter is sparse")
    members = [(a, *item) for a in algorithm.algorithms for item in a.sparse_params.items()]
    for member, name, sparse in members:
        off = ~sparse.mask
        expect(not sparse.param.detach()[off].any(), f"{name!r} is not zero where it is masked")
        if optimizer is not None and member.masks_states:
            for key, state in optimizer.state[sparse.param].items():
                if isinstance(state, Tensor) and state.shape == sparse.param.shape:
                    start = start_of(optimizer, key, sparse.param)
                    says = f"{key} of {name!r} is not {start:g} where masked"
                    expect((state[off] == start).all(), says)


def masked_positions_are_zero_after_every_step(case: Case) -> None:
    """Weights and optimizer states, with any optimizer."""
    for optimizer in OPTIMIZERS:
        model, algorithm, optim = case.start(optimizer=optimizer)
        expect_enforced(algorithm)
        train(model, optim, 6, after=functools.partial(expect_enforced, algorithm, optim))
        expect(algorithm.step == 6, f"step is {algorithm.step} after 6 steps")


def counts_are_exact_at_every_update(case: Case) -> None:
    """Each mask, or all together, has `num_nonzero(target, n)` weights, as the class says."""
    for schedule in SCHEDULES.values() if case.follows_sparsity else ():
        model, algorithm, optim = case.start(schedule)

        def check(algorithm: SparsityAlgorithm = algorithm) -> None:
            counts = {
                f"the mask of {name!r} has": (
                    int(sparse.mask.sum()),
                    num_nonzero(sparse.target, sparse.mask.numel()),
                )
                for name, sparse in algorithm.sparse_params.items()
            }
            if algorithm.counts_per == "model":
                totals = (sum(column) for column in zip(*counts.values(), strict=True))
                counts = {"all masks have": tuple(totals)}
            for masks, (count, asked) in counts.items():
                expect(
                    count == asked or (not algorithm.exact_counts and count < asked),
                    f"{masks} {count} weights at step {algorithm.step}, not {asked}",
                )

        train(model, optim, 8, after=check)


def nan_at_masked_positions_never_reaches_the_optimizer(case: Case) -> None:
    """Nor infinities, where gradients are masked."""
    model, algorithm, optim = case.start(**case.updating(None))
    if not algorithm.masks_gradients:
        return  # the next check says what it gets
    for value in (math.nan, math.inf):
        for sparse in algorithm.sparse_params.values():
            sparse.param.grad = torch.zeros_like(sparse.param).masked_fill(~sparse.mask, value)
        optim.step()
        expect_enforced(algorithm, optim)
        for name, param in model.named_parameters():
            expect(param.isfinite().all(), f"{name!r} has values that are not finite")


def the_optimizer_sees_the_gradients_that_the_algorithm_says(case: Case) -> None:
    """Masked ones where ``masks_gradients`` is True, else dense ones."""
    model, algorithm, optim = case.start(**case.updating(100))
    seen: list[bool] = []

    def look(*_: Any) -> None:
        for sparse in algorithm.sparse_params.values():
            gradient = sparse.param.grad
            seen.append(gradient is not None and bool(gradient[~sparse.mask].any()))

    optim.register_step_pre_hook(look)
    train(model, optim, 1)
    said = "masked" if algorithm.masks_gradients else "dense"
    expect(seen and any(seen) is not algorithm.masks_gradients, f"gradients are not {said}")


def no_global_random_numbers_are_used(case: Case) -> None:
    """All randomness comes from ``self.generator``."""
    model = make_model()
    algorithm = case.make(seed=None)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        state = torch.get_rng_state()
        algorithm.apply(model)
        optim = torch.optim.SGD(model.parameters(), 0.1)
        algorithm.apply(optim)
        train(model, optim, 4)
        expect(torch.equal(state, torch.get_rng_state()), "the global generator was used")


def masks_do_not_depend_on_other_layers(case: Case) -> None:
    """A layer's first mask is the same whatever else is in the model."""
    alone = nn.ModuleDict({"old": nn.Linear(9, 9)})
    joined = nn.ModuleDict({"new": nn.Linear(9, 9), "old": copy.deepcopy(alone["old"])})
    for model in (alone, joined):
        case.make().apply(model)
    first, mask, other = (
        layer.get_buffer("weight_mask") for layer in (alone["old"], joined["old"], joined["new"])
    )
    expect(torch.equal(first, mask), "a mask depends on other layers")
    if not mask.all():  # some start dense
        expect(not torch.equal(other, mask), "two layers got the same mask")


def a_skipped_step_changes_nothing(case: Case) -> None:
    """A step that a GradScaler skips is none."""
    model, algorithm, optim = case.start(**case.updating(None))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    before = snapshot(model)
    for factor, steps in ((math.inf, 0), (1.0, 1)):
        optim.zero_grad()
        scaler.scale(model(torch.ones(2, 12)).pow(2).sum() * factor).backward()
        scaler.step(optim)
        scaler.update()
        expect(algorithm.step == steps, f"step is {algorithm.step}, not {steps}")
        if not steps:
            expect_equal(before, snapshot(model), "after a skipped step")
    expect_enforced(algorithm, optim)


def copies_go_on_identically(case: Case) -> None:
    """``copy.deepcopy`` and ``pickle`` of model and algorithm together, where pickle can."""
    clones: list[Callable] = [copy.deepcopy]
    if getattr(sys.modules.get(case.cls.__module__), case.cls.__qualname__, None) is case.cls:
        clones.append(lambda both: pickle.loads(pickle.dumps(both)))
    for clone in clones:
        model, algorithm, optim = case.start()
        train(model, optim, 3)
        twin, twin_algorithm = clone((model, algorithm))
        expect_equal(snapshot(model), snapshot(twin), "after copying")
        twin_optim = OPTIMIZERS["sgd"](twin.parameters())
        twin_algorithm.apply(twin_optim)
        twin_optim.load_state_dict(copy.deepcopy(optim.state_dict()))
        train(model, optim, 3, start=3)
        train(twin, twin_optim, 3, start=3)
        expect_equal(snapshot(model), snapshot(twin), "three steps after copying")
        expect(algorithm.step == twin_algorithm.step == 6, "steps of a copy differ")


def a_resume_goes_on_identically(case: Case) -> None:
    """From states saved at an update and between two of them."""
    for stop in (3, 4, 5):
        model, algorithm, optim = case.start(optimizer="adamw", **case.updating({"freq": 4}))
        train(model, optim, stop)
        saved = copy.deepcopy((model.state_dict(), algorithm.state_dict(), optim.state_dict()))
        twin, twin_algorithm, twin_optim = case.start(
            optimizer="adamw", **case.updating({"freq": 4})
        )
        twin.load_state_dict(saved[0])
        twin_algorithm.load_state_dict(saved[1])
        twin_optim.load_state_dict(saved[2])
        train(model, optim, 6, start=stop)
        train(twin, twin_optim, 6, start=stop)
        when = f"six steps after a resume at step {stop}, with updates at every fourth"
        expect_equal(snapshot(model), snapshot(twin), when)
        expect_equal(_states(optim), _states(twin_optim), when)


def _states(optimizer: Optimizer) -> dict[str, Tensor]:
    found = [(i, *item) for i, s in optimizer.state_dict()["state"].items() for item in s.items()]
    return {f"{key} of parameter {index}": torch.as_tensor(value) for index, key, value in found}


def a_copied_model_alone_keeps_its_zeros(case: Case) -> None:
    """Masks of a copy of the model are enforced on its gradients without an algorithm."""
    model, _, _ = case.start()
    twin = copy.deepcopy(model)
    train(twin, torch.optim.AdamW(twin.parameters(), 0.1), 3)
    for module in (twin[0], twin[2]):  # type: ignore[index]
        weight, mask = module.weight.detach(), module.weight_mask
        expect(not weight[~mask].any(), "a copied model lost its zeros")
        expect(weight[mask].any(), "a copied model has no weights")


CHECKS: tuple[Callable[[Case], None], ...] = (
    masked_positions_are_zero_after_every_step,
    counts_are_exact_at_every_update,
    nan_at_masked_positions_never_reaches_the_optimizer,
    the_optimizer_sees_the_gradients_that_the_algorithm_says,
    no_global_random_numbers_are_used,
    masks_do_not_depend_on_other_layers,
    a_skipped_step_changes_nothing,
    copies_go_on_identically,
    a_resume_goes_on_identically,
    a_copied_model_alone_keeps_its_zeros,
)
"""All checks, each of which takes a ``Case`` and raises ``NotConforming``."""
