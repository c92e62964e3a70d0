"""The four Sparse-IFT transforms of one layer at sparsity 0.75, to scale: each square is a kept
weight, and all cost 64 multiply-adds per input. Blue weights lie where a mask lets them; grey
matrices are dense."""

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from experiments.analysis.methods import ALGORITHMS
from experiments.specs.schema import PlannedStudy

SPARSITY, INPUTS, OUTPUTS = 0.75, 8, 8
GAP, HEAD = 3.6, 4.2  # between matrices, and above them for the words; in weights
SPARSE, DENSE = ALGORITHMS["rigl"][1], ALGORITHMS["dense"][1]
TITLES = {
    "dense": "Dense: y = W x",
    "wide": "Sparse-Wide: inputs and outputs √(1/(1 − s)) times as many",
    "parallel": "Sparse-Parallel: 1/(1 − s) branches, a norm in each, summed",
    "factorized": "Sparse-Factorized: two factors, norm and ReLU between",
    "doped": "Sparse-Doped: sparse layer plus dense low-rank part",
}
SIGNS = {"parallel": "+++", "factorized": "×", "doped": "+×"}


def data(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """Matrices of each transform by the paper's formulas: outputs, inputs, sparsity, weights."""
    keep, area = 1 - SPARSITY, INPUTS * OUTPUTS
    wide = round((1 / keep) ** 0.5)
    inner = round(area / ((INPUTS + OUTPUTS) * keep))
    rank = round(SPARSITY * area / (INPUTS + OUTPUTS))
    shapes = [("dense", "W", OUTPUTS, INPUTS, 0.0)]
    shapes += [("wide", "W", wide * OUTPUTS, wide * INPUTS, SPARSITY)]
    shapes += [("parallel", f"W{i + 1}", OUTPUTS, INPUTS, SPARSITY) for i in range(round(1 / keep))]
    shapes += [("factorized", "V", OUTPUTS, inner, SPARSITY)]
    shapes += [("factorized", "U", inner, INPUTS, SPARSITY)]
    shapes += [("doped", "W", OUTPUTS, INPUTS, SPARSITY)]
    shapes += [("doped", "V", OUTPUTS, rank, 0.0), ("doped", "U", rank, INPUTS, 0.0)]
    rows = pd.DataFrame(shapes, columns=["transform", "matrix", "outputs", "inputs", "sparsity"])
    rows["weights"] = rows["outputs"] * rows["inputs"]
    rows["kept"] = (rows["weights"] * (1 - rows["sparsity"])).round().astype(int)
    return rows


def draw(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> Figure:
    """One panel per transform, one weight as large in all of them."""
    rows = data(records, curves, study)
    parts = [(key, rows[rows["transform"] == key]) for key in TITLES]
    heights = [part["outputs"].max() + HEAD for _, part in parts]
    width = max(part["inputs"].sum() + GAP * (len(part) - 1) for _, part in parts)
    inches = matplotlib.rcParams["figure.figsize"][0]
    figure = Figure(figsize=(inches, inches * sum(heights) / width))
    panels = figure.subplots(len(parts), 1, height_ratios=heights)
    generator = np.random.default_rng(0)
    for panel, (key, part), height in zip(panels, parts, heights, strict=True):
        panel.set_axis_off()
        panel.set(xlim=(0, width), ylim=(height, 0), aspect="equal", anchor="W")
        kept, weights = part["kept"].sum(), part["weights"].sum()
        panel.text(0, 1.2, TITLES[key], fontweight="bold", va="center")
        panel.text(0, 2.8, f"{kept} of {weights} weights", va="center", fontsize=9)
        left = 0.0
        for (_, matrix), sign in zip(part.iterrows(), [*SIGNS.get(key, ""), ""], strict=True):
            top = HEAD + (height - HEAD - matrix["outputs"]) / 2
            _draw_matrix(panel, matrix, left, top, generator)
            left += matrix["inputs"] + GAP
            if sign:
                middle = HEAD + (height - HEAD) / 2
                panel.text(left - GAP / 2, middle, sign, ha="center", va="center", fontsize=13)
    return figure


def _draw_matrix(
    panel: Axes, matrix: pd.Series, left: float, top: float, generator: np.random.Generator
) -> None:
    """Outputs from top to bottom, inputs from left to right."""
    outputs, inputs = matrix["outputs"], matrix["inputs"]
    color = SPARSE if matrix["sparsity"] else DENSE
    panel.add_patch(Rectangle((left, top), inputs, outputs, color=color, alpha=0.15, lw=0))
    places = generator.permutation(outputs * inputs)[: matrix["kept"]]
    squares = [
        Rectangle((left + place % inputs + 0.1, top + place // inputs + 0.1), 0.8, 0.8)
        for place in places
    ]
    panel.add_collection(PatchCollection(squares, facecolor=color, edgecolor="none"))
