"""Memory in FP16, in GB: weights dense and as CSR (a value, a column per non-zero, row starts), and
the activations that the backward pass of one sequence of 2,048 tokens needs, kept or computed again
block by block. A CS-2 keeps activations only, in 40 GB; the weights are streamed."""

import pandas as pd

from experiments.specs.planned import PlannedStudy
from experiments.store import tidy


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per model and sparsity."""
    rows = tidy.computed(study.scale, "device", "memory")
    return pd.DataFrame(
        {
            "model": rows["model"],
            "sparsity": rows["sparsity"],
            "parameters": rows["num_parameters"],
            "weights, dense": rows["dense_bytes"] / 1e9,
            "weights, CSR": rows["csr_bytes"] / 1e9,
            "activations, kept": rows["activation_bytes"] / 1e9,
            "activations, computed again": rows["recomputed_activation_bytes"] / 1e9,
            "fits a CS-2": rows["fits"].map({True: "kept", False: "computed again"}),
        }
    )
