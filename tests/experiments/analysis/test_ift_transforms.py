"""The drawn transforms are those of the library, and each costs what the dense layer does."""

import pandas as pd

from experiments.analysis import figures
from experiments.analysis.figures import ift_transforms
from experiments.specs.planned import NO_STUDY
from sparse_lib import ift


def test_every_drawn_transform_keeps_the_multiply_adds(tmp_path):
    nothing = pd.DataFrame()
    drawn = figures.draw("ift_transforms", nothing, nothing, NO_STUDY)
    figures.save(drawn, tmp_path / "f.svg", "svg")
    rows = figures.data("ift_transforms", nothing, nothing, NO_STUDY).set_index("transform")
    assert (rows.groupby("transform")["kept"].sum() == 64).all()
    s = ift_transforms.SPARSITY
    assert rows.loc["wide", "inputs"] == 8 * ift.wide_factor(s)
    assert len(rows.loc["parallel"]) == ift.parallel_branches(s)
    assert rows.loc["factorized", "inputs"].iloc[0] == ift.factorized_size(8, 8, s)
    assert rows.loc["doped", "inputs"].iloc[1] == ift.doped_rank(8, 8, s)
    assert rows.loc["doped", "sparsity"].tolist() == [s, 0, 0]
    assert (tmp_path / "f.svg").read_text().count("Sparse-Doped") == 1
