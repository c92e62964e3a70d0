"""Commands that turn records into tables, figures, verdicts and pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.cli.options import Scale, StudyName, app
from experiments.errors import UserError
from experiments.specs import code
from experiments.specs.code import ROOT
from experiments.specs.expand import all_runs
from experiments.specs.lookup import planned_study
from experiments.specs.planned import PlannedStudy
from experiments.specs.read import load_study, study_names
from experiments.specs.schema import SpecError, check_choice, module_names
from experiments.store import paths
from experiments.store.beyond import beyond
from experiments.store.current import changed_runs

ANALYSIS = ROOT / "experiments" / "analysis"
Names = Annotated[list[str], typer.Argument(help="one or several names")]


def planned(study: str, scale: str) -> PlannedStudy:
    """A study by its name, at a scale."""
    return planned_study(load_study(study), scale)


@app.command()
def collect(
    study: StudyName,
    scale: Scale,
    files: Annotated[list[Path] | None, typer.Argument(help="records of its runs")] = None,
    none: Annotated[bool, typer.Option("--none", help="let the tables be empty")] = False,
) -> None:
    """Collect the records of a study into tidy tables, and test its comparisons."""
    folder, facts, files = paths.study(scale, study), planned(study, scale), files or []
    if not files and not none:
        raise SpecError(f"no records of {study} are given; --none makes empty tables of it")
    from experiments.store.collect import write_tables
    from experiments.store.record import read_record

    known, ids = {run.id for run in facts.runs}, []
    for path in files:
        ids.append(read_record(path).run)
        if ids[-1] not in known:
            raise SpecError(f"{path} is of run {ids[-1]!r}, which {study} does not have")
    committed = [
        run
        for run, path in zip(ids, files, strict=True)
        if path.resolve().is_relative_to(paths.REFERENCE_RUNS.resolve())
    ]
    write_tables(files, facts, folder / "records.csv", committed=committed)
    _write_evidence(facts, folder)
    part, kept = folder / ".records", folder / "records"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    for path, run in zip(files, ids, strict=True):
        shutil.copy2(path, part / f"{run}.json")  # a later look compares times first
    shutil.rmtree(kept, ignore_errors=True)
    part.rename(kept)


def _write_evidence(facts: PlannedStudy, folder: Path) -> None:
    """Write what a study's comparisons leave to be judged together with other studies'."""
    from experiments.analysis.claims import ledger
    from experiments.store import tidy

    rows, origin = tidy.read_records(folder / "records.csv"), _evidence_key(folder, facts)
    ledger.write_evidence(rows, facts, folder / "evidence.csv", made_from=origin)


def _evidence_key(folder: Path, facts: PlannedStudy) -> str:
    """Hash of what a study's evidence is made from."""
    from experiments.store.made import file_digest

    return code.digest(
        [
            facts.inputs(),
            beyond(facts),
            file_digest(folder / "records.csv"),
            code.claims_code_hash(),
        ]
    )


def _evidence(scale: str) -> tuple[list[Path], list[str]]:
    """The evidence of all studies, and the studies whose evidence is not that of their records.

    A command may make some studies anew and leave others, which share runs with them, as they are.
    """
    from experiments.analysis.claims import ledger

    standing, left_out = [], []
    for file in sorted(paths.scale(scale).glob("*/evidence.csv")):
        folder, name = file.parent, file.parent.name
        current = name in study_names() and (folder / "records.csv").is_file()
        if current:
            facts = planned(name, scale)
            current = not changed_runs(scale, name, [run.id for run in facts.runs])
            current &= ledger.origin(file) in (None, _evidence_key(folder, facts))
        if current:
            standing.append(file)
        else:
            left_out.append(name)
    return standing, left_out


def _write_ledger(records: Any, facts: PlannedStudy, folder: Path) -> None:
    """Write a study's ledger, its claims judged with those of the scale's other studies."""
    from experiments.analysis.claims import ledger

    files, left_out = _evidence(facts.scale)
    left_out = [name for name in left_out if name != folder.name]
    others = [
        test for file in files if file.parent != folder for test in ledger.read_evidence(file)
    ]
    for name in left_out:
        print(
            f"the evidence of {name} is left out: its records, its tests or their code changed "
            f"since; `snakemake reproduce --config scale={facts.scale} study={name}` makes it "
            "anew"
        )
    studies = map(load_study, study_names())
    family = ledger.families(study for study in studies if study.shows(facts.scale))
    ledger.write(
        records,
        facts,
        folder / "claims.csv",
        others,
        num_primary=len(ledger.members(family["primary"])),
        num_exploratory=len(ledger.members(family["exploratory"])),
        left_out=left_out,
    )


def read_study(study: str, scale: str) -> tuple:
    """Records, curves and the study's dict: what every table and figure takes.

    Raises:
        SpecError: If there is no such study or scale, or it has no results.
    """
    folder, facts = paths.study(scale, study), planned(study, scale)
    if not (folder / "records.csv").is_file():
        raise SpecError(
            f"study {study!r} has no results at scale {scale!r} yet: run "
            f"`snakemake reproduce --config scale={scale} study={study}`"
        )
    from experiments.store import tidy

    return (
        tidy.read_records(folder / "records.csv"),
        tidy.read_curves(folder / "curves.csv"),
        facts,
    )


def _check_names(kind: str, names: list[str]) -> None:
    """Raise `SpecError` for a name of no figure or table."""
    folder = ANALYSIS / f"{kind}s"
    for name in names:
        check_choice(kind, name, module_names(folder), f"experiments/analysis/{kind}s")


@app.command()
def figure(
    names: Names,
    study: StudyName,
    scale: Scale = "quick",
    x: Annotated[
        str | None,
        typer.Option(help="draw over this axis only: tokens, steps, flops", metavar="AXIS"),
    ] = None,
) -> None:
    """Draw figures of a study from its records."""
    _check_names("figure", names)
    folder = paths.page(scale, study) / "figures"
    from experiments.analysis import figures

    for name in names if x is not None else ():
        if not figures.x_axes(name):
            raise SpecError(f"x is {x!r}, but figure {name!r} has no other axis than its own")
        check_choice("x", x, figures.x_axes(name))
    facts = read_study(study, scale)
    for name in names:
        figures.write(name, *facts, folder, x=x)


@app.command()
def table(names: Names, study: StudyName, scale: Scale = "quick") -> None:
    """Make tables of a study from its records."""
    _check_names("table", names)
    folder = paths.page(scale, study) / "tables"
    from experiments.analysis import tables

    facts = read_study(study, scale)
    for name in names:
        tables.write(name, *facts, folder)


@app.command()
def claims(
    scale: Scale = "quick",
    study: Annotated[str | None, typer.Option(help="write this study's ledger")] = None,
    every: Annotated[bool, typer.Option(help="print claims without a test too")] = False,
) -> None:
    """Write the ledger of a study, or print those of a scale: the published ones if it has none."""
    paths.scale(scale)
    from experiments.analysis.claims import ledger

    if study is not None:
        records, _, facts = read_study(study, scale)
        _write_ledger(records, facts, paths.study(scale, study))
        return
    from experiments.cli import terminal

    made = {name: paths.study(scale, name) / "claims.csv" for name in study_names()}
    title = f"scale {scale}"
    if not any(path.is_file() for path in made.values()):
        made = {name: paths.REFERENCE / name / "claims.csv" for name in made}
        title = f"as published; scale {scale} has no results yet"
    for name, path in made.items():
        if path.is_file():
            rows = ledger.read(path)
            rows = rows[rows["role"] != ""] if not every else rows
            table = terminal.ledger(rows)
            table.title = f"Claims of {name}, {title}"
            terminal.show(table)


@app.command()
def report(study: StudyName, scale: Scale) -> None:
    """Write the page of a study; its ledger, tables and figures are made where they changed."""
    folder, page = paths.study(scale, study), paths.page(scale, study)
    records, curves, facts = read_study(study, scale)
    inputs = _inputs_digest(folder, facts)
    from experiments.analysis import figures, tables
    from experiments.report import render
    from experiments.store.made import Made

    made = Made(folder / "made.json")
    made.make(
        _ledger_key(inputs, scale),
        lambda: [folder / "claims.csv"],
        lambda: _write_ledger(records, facts, folder),
    )
    for name in facts.tables:
        made.make(
            code.digest([inputs, code.analysis_code_hash("tables", name)]),
            lambda name=name: [page / "tables" / f"{name}.csv"],
            lambda name=name: tables.write(name, records, curves, facts, page / "tables"),
        )
    for name in facts.figures:
        made.make(
            code.digest([inputs, code.analysis_code_hash("figures", name)]),
            lambda name=name: _figure_files(page / "figures", name),
            lambda name=name: figures.write(name, records, curves, facts, page / "figures"),
        )
    _remove_others(page / "tables", {f"{name}.csv" for name in facts.tables})
    shown = [file for name in facts.figures for file in _figure_files(page / "figures", name)]
    _remove_others(page / "figures", {file.name for file in shown})
    render.render_study(
        facts,
        records,
        curves,
        folder / "records",
        page / "figures",
        page / "tables",
        folder / "claims.csv",
        page,
    )


def _ledger_key(inputs: str, scale: str) -> str:
    """Hash of what a study's ledger is made from; ``inputs`` are its own."""
    from experiments.store.made import file_digest

    files, left_out = _evidence(scale)
    others = {file.as_posix(): file_digest(file) for file in files}
    return code.digest([inputs, others, left_out, code.claims_code_hash()])


def _is_judged(name: str, scale: str) -> bool:
    """Whether a study's verdicts are of the records and the evidence that there are.

    A study of the same records that was judged with other evidence is judged again.
    """
    from experiments.store.made import Made

    folder, facts = paths.study(scale, name), planned(name, scale)
    ledger = folder / "claims.csv"
    if not ledger.is_file():
        return True
    if changed_runs(scale, name, [run.id for run in facts.runs]):
        return False
    note = Made(folder / "made.json").notes.get(ledger.as_posix(), {})
    if note.get("key") != _ledger_key(_inputs_digest(folder, facts), scale):
        try:
            report(name, scale)
        except (UserError, OSError):
            return False
    return True


def _inputs_digest(folder: Path, facts: PlannedStudy) -> str:
    """Hash of what tables and figures are made from beside code."""
    from experiments.store.made import file_digest

    files = [folder / "records.csv", folder / "curves.csv"]
    for computation in facts.computations:
        tables = paths.computation(facts.scale, computation.name)
        files += sorted(tables.glob("*.csv"))
    digests = {file.as_posix(): file_digest(file) for file in files}
    return code.digest([facts.inputs(), beyond(facts), digests])


def _figure_files(folder: Path, name: str) -> list[Path]:
    """Files of a figure: over its own axis, its data, and over other axes."""
    own = [folder / f"{name}.{suffix}" for suffix in ("svg", "png", "csv")]
    return [*own, *sorted(folder.glob(f"{name}-by-*.svg"))]


def _remove_others(folder: Path, names: Iterable[str]) -> None:
    """Remove the files of what the study no more shows."""
    for path in folder.glob("*.*"):
        if path.name not in names:
            path.unlink()


@app.command()
def index(scale: Scale) -> None:
    """Write the front page over all studies of a scale."""
    results, reports = paths.scale(scale), paths.reports(scale)
    names = [name for name in study_names() if paths.page(scale, name).is_dir()]
    if not names:
        raise SpecError(
            f"scale {scale!r} has no pages yet: run `snakemake reproduce --config scale={scale}`"
        )
    from experiments.report import render

    outdated = [name for name in names if not _is_judged(name, scale)]
    for name in outdated:
        print(f"the verdicts of {name} are left out: its records or its evidence changed since")
    studies = [planned(name, scale) for name in names]
    render.render_index(studies, scale, results, reports, outdated=outdated)


@app.command()
def archive(
    scale: Scale,
    study: str = "all",
    config: Annotated[
        list[str] | None, typer.Argument(help="what else the workflow's --config says: key=value")
    ] = None,
) -> None:
    """Write Snakemake's own report of a scale: reports/<scale>/archive.html."""
    for item in config or []:
        if "=" not in item:
            raise SpecError(f"config is {item!r}, but must be key=value")
    out = paths.reports(scale) / "archive.html"
    check_choice("study", study, ["all", *study_names()], "experiments/studies")
    from experiments.report import archive as snakemake_report

    snakemake_report.write(scale, [f"study={study}", *(config or [])], out)


@app.command()
def publish(scale: Scale) -> None:
    """Make the report of a scale the committed reference, its records included."""
    results, reports = paths.scale(scale), paths.reports(scale)
    from experiments.analysis import figures
    from experiments.report import policy, readme, render

    render.publish(reports, paths.REPORTS)
    captions = {
        name: figures.findings(name, *read_study(study, scale))
        for study, name in readme.FIGURES
        if (paths.study(scale, study) / "records.csv").is_file()
    }
    readme.update(Path("README.md"), paths.REPORTS, scale, results, captions)
    policy.write(policy.PAGE, results)
    keep(scale)


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
    """Copy records, ledgers and computed tables of a scale to results/reference.

    A study's tidy table is left out: it follows from the records.
    """
    if source is not None:
        from experiments.pack import returned

        for run, path in returned(source):
            _keep(path, paths.committed(run.id))
        return
    paths.scale(scale)
    for run in all_runs(scale).values():
        _keep(paths.run(scale, run.id) / "record.json", paths.committed(run.id))
    for name in study_names():
        folder = paths.study(scale, name)
        if any((folder / "records").glob("*.json")) and not load_study(name).trials:
            _keep(folder / "claims.csv", paths.REFERENCE / name / "claims.csv")
    for path in sorted((paths.scale(scale) / "computations").glob("*/*.csv")):
        _keep(path, paths.REFERENCE / path.parent.name / path.name)


def _keep(path: Path, kept: Path) -> None:
    """Copy a file, where it exists, among the committed ones."""
    if path.is_file():
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, kept)
        print(kept.relative_to(ROOT))
