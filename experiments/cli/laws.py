"""Commands that ask the laws of a study: what to expect, and what to choose."""

from __future__ import annotations

import datetime
import sys
from typing import Annotated, Any

import typer

from experiments.cli.options import Scale, StudyName, app
from experiments.cli.report import planned
from experiments.specs.planned import PlannedStudy
from experiments.specs.read import load_study, study_names
from experiments.specs.schema import SpecError, check_choice
from experiments.store import paths
from experiments.store.io import write_json

#: Weights, tokens or images that a question may be about.
MOST = 1e18


def _records(study: str, scale: str) -> tuple[Any, PlannedStudy]:
    """The study's finished runs: those of this folder, and committed ones where it has none."""
    from experiments.store.collect import records_table
    from experiments.store.record import read_record

    facts = planned(study, scale)
    found = []
    for run in facts.runs:
        own = paths.run(scale, run.id) / "record.json"
        record = own if own.is_file() else paths.committed(run.id)
        if record.is_file():
            found.append(read_record(record))
    return records_table(found, facts), facts


@app.command()
def predict(study: StudyName, scale: Scale = "small") -> None:
    """Register what a study's laws say of its held-out runs, before these are trained.

    What is registered stays; methods that had no law then are added.
    """
    from experiments.analysis import predictions

    file = predictions.path(study, scale)
    earlier = predictions.registered(study, scale)
    if earlier is not None and all("predicted" in loss for loss in earlier["losses"]):
        raise SpecError(f"{file.name} is registered already; a prediction is made once")
    records, facts = _records(study, scale)
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    content = predictions.predict(records, facts, date=date, earlier=earlier)
    write_json(file, content)
    print(f"{file}: {len(content['losses'])} losses, {len(content['signs'])} signs; commit it now")


def _fits_laws(study: str) -> bool:
    return "laws" in load_study(study).tables


@app.command()
def advise(
    params: Annotated[
        float,
        typer.Option(
            help="non-zero weights of the blocks (images: stage weights of the dense network)"
        ),
    ],
    tokens: Annotated[
        float, typer.Option(help="training tokens (bytes of text), or training images")
    ],
    device: Annotated[
        str, typer.Option(help="whose times (of text alone): cpu, or cs2 (simulated)")
    ] = "cpu",
    study: StudyName = "scaling",
    scale: Scale = "small",
) -> None:
    """Say which method and sparsity to choose at a size and budget, by the fitted laws."""
    import pandas as pd

    from experiments.analysis import advice, law_cells
    from experiments.analysis.tables import law_contrasts

    for key, value in (("params", params), ("tokens", tokens)):
        if not 1 <= value <= MOST:  # not a number is in no range
            raise SpecError(f"{key} is {value:g}, but must be a number from 1 to {MOST:g}")
    check_choice("device", device, advice.DEVICES)
    check_choice("study", study, [name for name in study_names() if _fits_laws(name)])
    records, facts = _records(study, scale)
    finished = law_cells.finished(records, facts)
    fitted = int((~finished["held_out"].astype(bool)).sum())
    print(
        f"laws of {fitted} runs; to fit them takes some seconds where that is new",
        file=sys.stderr,
        flush=True,
    )
    rows = advice.options(records, facts, params, tokens, device)
    waiting = law_cells.waiting(finished, facts)
    contrasts = law_contrasts.make(records, pd.DataFrame(), facts)
    print(advice.text(rows, facts, params, tokens, waiting, contrasts))
