"""Every entry of the race at each of its budgets: text that it read, seconds of its steps on one
thread (validations excluded) and the held-out loss at its end, in nats per byte; means over seeds.
Seconds are of one machine each (its key), and only runs that ran there side by side compare, one
per core, with nothing else running; docs/race.md has the rules."""

import pandas as pd

from experiments.analysis import race
from experiments.analysis.methods import Methods
from experiments.specs.planned import PlannedStudy
from experiments.store import tidy

EVERY_RECIPE = True
COLUMNS = ["entry", "method", "sparsity", "budget", "machine", "seeds", "steps", "tokens"]
COLUMNS += ["parameters", "non-zero", "seconds", "processor seconds", "loss", "spread of seeds"]
COLUMNS += ["runs"]
COUNTS = {"steps": "steps", "tokens": "tokens", "num_parameters": "parameters",
          "num_nonzero": "non-zero"}  # fmt: skip


def make(records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy) -> pd.DataFrame:
    """One row per entry, budget and machine, the least loss first."""
    finished, looks = race.ends(records), Methods(study)
    for metric, name in COUNTS.items():
        rows = tidy.select(records, metric)[["run", "value"]].rename(columns={"value": name})
        finished = finished.merge(rows, on="run", how="left")
    keys = ["method", "sparsity", "recipe", "machine"]
    table = []
    for (method, sparsity, recipe, machine), own in finished.groupby(keys, sort=False):
        row = {"entry": method, "method": looks.treatment(method, sparsity), "sparsity": sparsity}
        row |= {"budget": recipe, "machine": machine, "seeds": own["seed"].nunique()}
        row |= {name: int(own[name].iloc[0]) for name in COUNTS.values()}
        row |= {name: own[name].mean() for name in ("seconds", "loss")}
        row["processor seconds"] = own["cpu_seconds"].mean()
        row |= {"spread of seeds": own["loss"].std(), "runs": " ".join(own["run"])}
        table.append(row)
    return pd.DataFrame(table, columns=COLUMNS).sort_values("loss", kind="stable")
