"""A study like those at scale ``small``, with records that follow a known law.

Two corpora, three sizes at equal tokens per weight, three sparsities and two budgets, so that
whatever mixes them is caught.
"""

from pathlib import Path

from experiments.specs.expand import study_runs
from experiments.specs.lookup import planned_study
from experiments.specs.read import load_study
from experiments.specs.schema import Study
from experiments.store.collect import curves_table, records_table
from experiments.store.record import make_record
from tests.experiments.analysis import synthetic

FILE = Path(__file__).with_suffix(".yaml")


def load() -> Study:
    """The study of ``grids.yaml``."""
    return load_study("grids", folder=FILE.parent)


def frames(study, *, keep=lambda run: True, **law):
    """Records, curves and the planned study; ``law`` goes to `synthetic.planned_record`."""
    facts = planned_study(study, "small")
    runs = [run for run in study_runs(study, "small") if keep(run)]
    made = [synthetic.planned_record(make_record, run, **law) for run in runs]
    return records_table(made, facts), curves_table(made), facts
