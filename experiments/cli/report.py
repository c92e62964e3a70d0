"""Commands that turn records into tables, figures, verdicts and pages."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from experiments.cli.options import Scale, StudyName, app
from experiments.specs.code import ROOT, training_code_hash
from experiments.specs.lookup import planned_study, rerun_command
from experiments.specs.read import study_names
from experiments.specs.schema import SpecError, check_choice, module_names
from experiments.store import paths
from experiments.store.io import read_json

FIGURES = ROOT / "experiments" / "analysis" / "figures"
Names = Annotated[list[str], typer.Argument(help="one or several names")]


@app.command()
def collect(
    study: StudyName,
    scale: Scale,
    files: Annotated[list[Path] | None, typer.Argument(help="records of its runs")] = None,
    committed: Annotated[
        bool, typer.Option("--committed", help="take committed records of the other runs")
    ] = False,
) -> None:
    """Collect the records of a study into tidy tables."""
    folder, facts, files = paths.study(scale, study), planned_study(study, scale), files or []
    if not files and not committed:
        raise SpecError(f"no records of {study} are given; --committed takes the committed ones")
    from experiments.store import reference
    from experiments.store.collect import write_tables
    from experiments.store.record import read_record

    known, records = {run.id: run for run in facts.runs}, {}
    for path in files:
        run = read_record(path).run
        if run not in known:
            raise SpecError(f"{path} is of run {run!r}, which {study} does not have")
        records[run] = read_json(path)
    made = ((run, record["code_hash"]) for run, record in records.items())
    if old := [run for run, code in made if code != training_code_hash(known[run].spec)]:
        print(
            f"{len(old)} records were trained by other code than is here: {', '.join(old[:3])}"
            f"{', ...' if len(old) > 3 else ''}; `{rerun_command(old)}` trains them again"
        )
    others = [
        name
        for name, run in known.items()
        if committed and name not in records and reference.reusable(run)
    ]
    own = [*records.values(), *reference.find_all(others).values()]
    write_tables(own, facts, folder, committed=others)


def read_study(study: str, scale: str) -> tuple:
    """Records, curves and the study: what every table and figure takes."""
    facts = planned_study(study, scale)
    if not facts.shows(scale):
        raise SpecError(f"study {study!r} has nothing at scale {scale!r}")
    from experiments.store import results

    return *results.tables(facts), facts


@app.command()
def figure(
    names: Names,
    study: StudyName,
    scale: Scale = "quick",
    formats: Annotated[
        list[str] | None,
        typer.Option("--format", help="pdf, svg, png or csv (its data); repeatable; default: png"),
    ] = None,
    style: Annotated[
        Path | None, typer.Option(help="style sheet of matplotlib: sizes, fonts, lines")
    ] = None,
    width: Annotated[float | None, typer.Option(min=1, max=40, help="in inches")] = None,
    out: Annotated[
        Path | None, typer.Option(help="file to write; its ending is the format")
    ] = None,
) -> None:
    """Draw figures of a study, from what was trained here or else from committed records.

    Prints the files that it wrote: without --out those of the study's page.
    """
    for name in names:
        check_choice("figure", name, module_names(FIGURES), "experiments/analysis/figures")
    from experiments.analysis import figures

    if out is not None and (len(names) > 1 or len(formats or []) > 1):
        raise SpecError(f"out is {str(out)!r}, but there are several figures or formats to write")
    if out is not None:
        ending = [out.suffix.removeprefix(".")]
        if (formats := formats or ending) != ending:
            raise SpecError(f"out is {str(out)!r}, but its ending is not the format {formats[0]!r}")
    for kind in (formats := formats or ["png"]):
        check_choice("format", kind, ("pdf", "svg", "png", "csv"))
    if style is not None and not style.is_file():
        raise SpecError(f"style is {str(style)!r}, but there is no such file")
    facts = read_study(study, scale)
    for name in names:
        drawn = None
        for kind in formats:
            path = out or paths.page(scale, study) / "figures" / f"{name}.{kind}"
            if kind == "csv":
                path.parent.mkdir(parents=True, exist_ok=True)
                figures.data(name, *facts).to_csv(path, index=False)
            else:
                drawn = drawn or figures.draw(name, *facts, sheet=style, width=width)
                figures.save(drawn, path, kind)
            print(path)
        if drawn is not None and not figures.has_data(drawn):
            why = " ".join(text.get_text() for panel in drawn.axes for text in panel.texts)
            print(f"{name} has no data: study {study!r}, scale {scale!r}: {why}", file=sys.stderr)


@app.command()
def report(study: StudyName, scale: Scale) -> None:
    """Write the page of a study with its tables and its figures."""
    page = paths.page(scale, study)
    records, curves, facts = read_study(study, scale)
    from experiments.analysis import figures, tables
    from experiments.findings import claim, evidence
    from experiments.report import render
    from experiments.store import results

    judged = any(study == own.study for own in (*claim.nine(), *claim.supporting()))
    for name in facts.tables:
        tables.write(name, records, curves, facts, page / "tables")
    empty = [
        name
        for name in facts.figures
        if not figures.write(name, records, curves, facts, page / "figures")
    ]
    render.render_study(
        facts,
        records,
        results.collected(scale, study, (run.id for run in facts.runs), tables=render.COST_TABLES),
        evidence.judged(scale, study) if judged else evidence.gather([facts], [records]),
        page,
        empty=empty,
    )


@app.command()
def index(scale: Scale) -> None:
    """Write the front page over all studies of a scale."""
    results, reports = paths.scale(scale), paths.reports(scale)
    names = [name for name in study_names() if paths.page(scale, name).is_dir()]
    if not names:
        raise SpecError(
            f"scale {scale!r} has no pages yet: run `snakemake reproduce --config scale={scale}`"
        )
    from experiments.findings import evidence
    from experiments.report import render

    studies = [planned_study(name, scale) for name in names]
    render.render_index(studies, evidence.judged(scale), results, reports)


@app.command()
def publish(scale: Scale) -> None:
    """Make the report of a scale the committed reference, with its records and computed tables."""
    from experiments.findings import evidence, ledger
    from experiments.report import render

    check_choice("scale", scale, [paths.REFERENCE_SCALE])
    judged = evidence.judged(scale)
    for name in study_names():
        render.answer(planned_study(name, scale), ledger.named(judged), strict=True)
    render.publish(paths.reports(scale), paths.REPORTS)
    render.update_readme(Path("README.md"), ledger.nine(judged))
    keep(scale)
    _keep(paths.reports(scale) / "findings.csv", paths.REFERENCE / "findings.csv")
    for path in sorted((paths.scale(scale) / "computations").glob("*/*.csv")):
        _keep(path, paths.REFERENCE / path.parent.name / path.name)


@app.command()
def keep(
    scale: Scale = "quick",
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", help="folder with records that came back from a pack, in place of a scale"
        ),
    ] = None,
) -> None:
    """Fold finished records of a scale into results/reference, with what `verify` found.

    Records that no study plans leave. One of --from is refused where its spec, code or data are
    not those of here.
    """
    paths.scale(scale)
    from experiments.cli.verify import judged
    from experiments.store import reference, verification

    if source is None:
        kept = reference.fold(reference.read_own(scale))
        verification.keep(judged(scale, folder=paths.verified))
    else:
        from experiments.pack import returned

        kept = reference.fold(read_json(path) for _, path in returned(source))
    _say_kept(kept)
    if not kept:
        print(f"Nothing new: {source or paths.scale(scale)} has no other record", file=sys.stderr)


def _keep(path: Path, kept: Path) -> None:
    """Copy a file, where it exists, among the committed ones."""
    if path.is_file():
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, kept)
        _say_kept([kept])


def _say_kept(files: Iterable[Path]) -> None:
    for file in files:
        print(file.relative_to(ROOT))
