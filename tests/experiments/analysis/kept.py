"""Committed records of one workload of `sparsity_library`: dense and five algorithms at 80%."""

import copy
import functools

from experiments.specs.lookup import planned_study
from experiments.specs.run import Run, RunSpec
from experiments.store import reference
from experiments.store.collect import curves_table, records_table

METHODS = ("dense", "static", "set", "rigl", "granet", "gmp")


@functools.cache
def workload():
    """Record by method and seed, and the study."""
    study = planned_study("sparsity_library", "small")
    asked = {
        run.id: (run.spec.method, run.spec.seed)
        for run in study.runs
        if run.spec.method in METHODS and run.spec.seed < 3
        if run.id.startswith("small__llama-0.2m__") and "__enwiki-slice-v1024__" in run.id
        if run.spec.recipe.name in ("full-batch", "half-batch")
    }
    found = reference.find_all(asked)
    return {asked[name]: record for name, record in found.items()}, study


def make(*, seeds=3, methods=METHODS):
    """Records of every method and seed."""
    records, _ = workload()
    chosen = [records[method, seed] for method in methods for seed in range(seeds)]
    return copy.deepcopy(chosen)


def study(records, **changes):
    """The study, as one that asks for these records' runs alone."""
    runs = tuple(Run(RunSpec.model_validate(record["spec"])) for record in records)
    return workload()[1].model_copy(update={"runs": runs, **changes})


def frames(made, **changes):
    """Tidy records and curves, and their study."""
    facts = study(made, **changes)
    return records_table(made, facts), curves_table(made), facts
