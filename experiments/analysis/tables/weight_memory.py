"""Memory in FP16, in GB: weights, dense and as CSR, and the activations for the backward pass of
one sequence of 2,048 tokens, kept or recomputed. A CS-2 streams the weights and keeps activations
alone, in 40 GB.
"""

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
