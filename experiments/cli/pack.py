"""Commands for machines without network: `pack`, and `keep --from` for what comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.cli.options import Scale, StudyName, app
from experiments.specs.expand import runs_of
from experiments.specs.lookup import find_run
from experiments.specs.run import Run
from experiments.specs.schema import SpecError, check_choice


@app.command()
def pack(
    study: StudyName,
    out: Annotated[Path, typer.Option(help="folder to write")],
    scale: Scale = "gpu",
    run: Annotated[list[str] | None, typer.Option(help="only these runs; repeatable")] = None,
    has: Annotated[
        str, typer.Option(help="packages that the machine has, with commas; default: torch, numpy")
    ] = "torch,numpy",
    python: Annotated[str | None, typer.Option(help="its Python, such as 3.12")] = None,
    limit_mb: Annotated[float, typer.Option(min=1, help="largest size of the pack")] = 500.0,
    piece_mb: Annotated[int, typer.Option(min=1, max=10_000, help="largest piece")] = 60,
) -> None:
    """Write a study as pieces that a machine without network unpacks and trains."""
    from experiments import pack as packs

    runs = {each.id: each for each in runs_of(scale, study)}
    if not runs:
        raise SpecError(f"study {study!r} has no runs at scale {scale!r}")
    for name in run or ():
        check_choice("run", name, runs)
    chosen: dict[str, Run] = {}
    for each in (runs[name] for name in (run or runs)):
        if each.first is not None:
            chosen.setdefault(each.first, find_run(each.first))
        chosen.setdefault(each.id, each)
    facts = packs.pack(
        list(chosen.values()),
        out,
        limit_mb=limit_mb,
        piece_mb=piece_mb,
        has=has.split(","),
        python=python,
    )
    print(
        f"{len(facts['runs'])} runs in {len(facts['pieces'])} pieces of {facts['bytes'] / 1e6:.0f} "
        f"MB in all. There: python {out.name}/go.py --to FOLDER; here again: python -m experiments "
        "keep --from BACK"
    )
