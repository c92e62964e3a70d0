"""Runs whose losses come from known laws, in the form that `law_cells` reads."""

import numpy as np
import pandas as pd

from experiments.analysis.law_cells import COLUMNS
from experiments.analysis.laws import SparsityLaw

#: Non-zero weights in the blocks of the three sizes that are fitted, and the held-out one.
SIZES = {"bytes-32": 75_264, "bytes-48": 169_344, "bytes-64": 301_056}
HELD_OUT = ("bytes-96", 677_376, 8_192_000)
TOKENS = (512_000, 1_024_000, 2_048_000, 4_096_000)
LEVELS = (0.5, 0.75, 0.875)
UNITS = {"unit_n": 1e5, "unit_d": 1e6}
#: Sparse models gain at equal non-zeros; RigL gains more than Static, but learns more slowly.
LAWS = {
    "static": SparsityLaw(0.35, 0.3, 0.4, 0.3, 0.12, 0.6, 1.2, **UNITS),
    "rigl": SparsityLaw(0.35, 0.5, 0.4, 0.3, 0.12, 0.6, 1.2, **UNITS, b_x=0.35),
}


def runs(
    laws: dict[str, SparsityLaw],
    *,
    seeds: int = 3,
    seed_sd: float = 0.004,
    cell_sd: float = 0.0,
    source: int = 0,
    held_out: bool = False,
    tokens=TOKENS,
) -> pd.DataFrame:
    """Runs of the dense model and of each algorithm; log losses scatter by seed and by cell."""
    generator = np.random.default_rng(source)
    rows = []
    any_law = next(iter(laws.values()))
    dense = SparsityLaw(0.0, 0.0, any_law.a_s + any_law.c_s, any_law.b_n, any_law.a_d,
                        any_law.b_d, any_law.floor, **UNITS, b_m=any_law.b_m)  # fmt: skip
    places = [
        (model, weights, budget, False) for model, weights in SIZES.items() for budget in tokens
    ]
    if held_out:
        places.append((*HELD_OUT, True))
    for algorithm, law in {"dense": dense, **laws}.items():
        for level in (0.0,) if algorithm == "dense" else LEVELS:
            noise: dict = {}
            for model, weights, budget, is_held_out in places:
                misfit = generator.normal(0, cell_sd)
                for seed in range(seeds):
                    line = noise.setdefault((model, seed), generator.normal(0, seed_sd))
                    nonzero = weights * (1 - level)
                    loss = float(law(level, nonzero, budget)) * np.exp(line + misfit)
                    method = algorithm if not level else f"{algorithm}-{100 * level:g}"
                    run = f"{model}__{method}__{budget}__seed{seed}"
                    values = (run, method, algorithm, model, level, seed, weights, nonzero, budget,
                              is_held_out, loss)  # fmt: skip
                    rows.append(dict(zip(COLUMNS, values, strict=True)))
    return pd.DataFrame(rows, columns=COLUMNS)
