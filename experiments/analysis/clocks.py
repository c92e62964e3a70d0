"""What training takes by a law: the products of the blocks, on this CPU and on a simulated CS-2.

A step's time is that of its masked products: measured with the kernels of this library in the
computation ``device``, or simulated at peak rate. Embeddings, attention's products of activations,
the optimizer and mask updates are left out of both. The products are those of linear layers;
convolutions have no clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from experiments.analysis import law_cells
from experiments.analysis.laws import SparsityLaw
from experiments.specs.planned import PlannedStudy
from experiments.store import paths

#: Key to series of the computation's table of speedups, and title.
DEVICES = {
    "cpu": ("measured", "Law, by kernels measured on this CPU"),
    "cs2": ("simulated", "Law, by a simulated CS-2"),
}
FLOPS_PER_WEIGHT = 6
#: Sizes that are tried for each budget, as factors of the fitted ones.
REACH, NUM_SIZES = 32.0, 80


@dataclass(frozen=True)
class Clock:
    """Time of training steps on a device.

    Attributes:
        title: Of a panel.
        unit_s: Seconds per weight of a dense layer and token, forward and backward.
        levels: Sparsities at which the speedup is known, ascending.
        speedups: Of a masked product over the dense one.
    """

    title: str
    unit_s: float
    levels: tuple[float, ...]
    speedups: tuple[float, ...]

    def speedup(self, sparsity: Any) -> Any:
        """Speedup of a layer's step; where skipping does not pay, the layer runs dense: 1."""
        return np.maximum(1.0, np.interp(sparsity, self.levels, self.speedups))

    def cost(self, path: np.ndarray) -> float:
        """Time of a training over that of the same model dense, by its sparsities over steps."""
        return float(np.mean(1 / self.speedup(path)))


def clocks(scale: str) -> dict[str, Clock]:
    """The clocks of `DEVICES` by the tables of this scale, else by the committed ones."""
    folders = (paths.computation(scale, "device"), paths.REFERENCE / "device")
    folder = next((path for path in folders if (path / "speedup.csv").is_file()), None)
    if folder is None:
        return {}
    names = ("speedup", "layer_speed", "facts")
    speed, layer, facts = (pd.read_csv(folder / f"{name}.csv") for name in names)
    facts = facts[facts["device"].str.contains("CS-2")].set_index("fact")["value"]
    first = layer.iloc[0]
    units = {
        "cpu": first["dense_s"] / (first["width"] ** 2 * first["tokens"]),
        "cs2": FLOPS_PER_WEIGHT / float(facts["peak_flops"]),
    }
    made = {}
    for key, (series, title) in DEVICES.items():
        own = speed[speed["series"] == series].sort_values("sparsity")
        made[key] = Clock(title, float(units[key]), tuple(own["sparsity"]), tuple(own["speedup"]))
    return made


def of_study(study: PlannedStudy) -> dict[str, Clock]:
    """The clocks of a study's models; none where these are convolutional."""
    return clocks(study.scale) if law_cells.subject(study).is_timed else {}


def missing(study: PlannedStudy) -> str:
    """One sentence on why `of_study` has no clock."""
    if not law_cells.subject(study).is_timed:
        return "Times of convolutions are not measured here."
    return "Times are unknown until `python -m experiments compute device` has run."


def path(study: PlannedStudy, algorithm: str, sparsity: float) -> np.ndarray:
    """Sparsities over the steps of a training that ends at one, at 200 even places.

    What an algorithm's runs of the study do: constant, or the cubic ramp of gradual pruning.
    """
    settings: dict[str, Any] = {}
    for run in study.runs:
        found = run.spec.mask_setting("sparsity")
        if run.spec.algorithm == algorithm and isinstance(found, dict):
            settings, steps = found, run.spec.recipe.steps
            break
    if settings.get("type") != "cubic":
        return np.full(200, sparsity)
    share = (np.arange(200) + 0.5) / 200
    start, end = (settings[f"sparsity_{name}_step"] / steps for name in ("start", "end"))
    ramp = np.clip((share - start) / (end - start), 0, 1)
    first = settings["init_sparsity"]
    return np.where(share < start, first, sparsity + (first - sparsity) * (1 - ramp) ** 3)


@dataclass(frozen=True)
class Best:
    """The best model of each training compute.

    Attributes:
        loss: Its loss, (T,).
        nonzero: Its non-zero weights, (T,).
        data: What it is trained on, (T,).
    """

    loss: np.ndarray
    nonzero: np.ndarray
    data: np.ndarray


def best(
    law: SparsityLaw, sparsity: float, compute: np.ndarray, sizes: tuple[float, float]
) -> Best:
    """The size of least loss for each compute: non-zero weights times data.

    Args:
        law: The law.
        sparsity: Of all sizes.
        compute: (T,).
        sizes: Least and largest number of non-zero weights.
    """
    tried = np.geomspace(*sizes, NUM_SIZES)  # (N,)
    data = compute[:, None] / tried
    losses = law(sparsity, tried, data)  # (T, N)
    at, rows = losses.argmin(1), np.arange(len(compute))
    return Best(losses[rows, at], tried[at], data[rows, at])


@dataclass(frozen=True)
class Tie:
    """Where the best sparse and the best dense model of each compute tie.

    Attributes:
        speedup: What a sparse step needs over a dense one of the same layers, (T,).
        dense: The dense models.
        sparse: The sparse ones.
    """

    speedup: np.ndarray
    dense: Best
    sparse: Best


def break_even(
    law: SparsityLaw, sparsity: float, compute: np.ndarray, sizes: tuple[float, float]
) -> Tie:
    """Speedup of a sparse step at which the best sparse and the best dense model tie in time.

    It is over a dense step of the same layers. At sparsity S it is 1 / (1 - S) where a non-zero
    weight is worth the same in both, and less where it is worth more in a sparse model.

    Args:
        law: The law of a method, with dense as its sparsity 0.
        sparsity: Of the sparse models, in (0, 1).
        compute: Weights times data of the dense models, (T,).
        sizes: Least and largest number of non-zero weights of either.

    Returns:
        The tie; its speedup is infinite where the sparse models need more than 30 times the
        compute, and 0 where they need less than a thirtieth.
    """
    dense = best(law, 0.0, compute, sizes)
    grid = np.geomspace(compute.min() / 30, compute.max() * 30, 240)
    losses = np.minimum.accumulate(best(law, sparsity, grid, sizes).loss)
    needed = np.exp(np.interp(-dense.loss, -losses, np.log(grid), left=-np.inf, right=np.inf))
    sparse = best(law, sparsity, np.clip(needed, grid[0], grid[-1]), sizes)
    return Tie(needed / ((1 - sparsity) * compute), dense, sparse)
