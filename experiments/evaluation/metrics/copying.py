"""Nats per token that a passage costs less when it is read again: copying from the context, as by
induction heads (Olsson et al., 2022, arXiv:2209.11895); 0 without it."""

import numpy as np

from experiments.evaluation.outputs import Estimate, Repeats, mean

OF = Repeats


def compute(outputs: Repeats) -> Estimate:
    """First minus second reading."""
    return mean(np.subtract(outputs.first, outputs.second))
