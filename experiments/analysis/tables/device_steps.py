"""Simulated training steps of 768 sequences of 2,048 tokens on one system at peak rates: time,
energy (power times time), memory in FP16 (sparse weights as CSR) and what bounds them. Devices that
cannot hold a sequence are left out.
"""

import pandas as pd

from experiments.specs.schema import PlannedStudy
from experiments.store import tidy


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per model, device and sparsity."""
    rows = tidy.computed(study.scale, "device", "steps")
    rows = rows[rows["fits"]]
    return pd.DataFrame(
        {
            "model": rows["model"],
            "device": rows["device"],
            "sparsity": rows["sparsity"],
            "seconds per step": rows["step_s"],
            "kJ per step": rows["energy_j"] / 1e3,
            "weights, GB": rows["weight_csr_bytes"] / 1e9,
            "activations, GB": rows["activation_bytes"] / 1e9,
            "utilisation": rows["utilisation"],
            "bound by": rows["bound_by"],
            "micro-batches": rows["num_micro_batches"],
            "activations": rows["recompute"].map({True: "computed again", False: "kept"}),
            "label": rows["label"],
        }
    )
