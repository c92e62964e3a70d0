"""Render the page of a study, the index of a scale, and the committed reference report.

A page is one HTML file without scripts or requests: styles are inline, pictures lie beside it, and
its Markdown twin shows the same content on a code host.
"""

import functools
import os
import re
import shutil
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from experiments import published
from experiments.analysis import figures, tables
from experiments.analysis.claims import ledger as ledger_module
from experiments.analysis.claims import policy
from experiments.analysis.methods import INK, Method
from experiments.errors import UserError
from experiments.report import provenance, summary, text
from experiments.specs.code import ROOT
from experiments.specs.lookup import rerun_command
from experiments.specs.planned import PlannedStudy
from experiments.store import machine, parquet, tidy
from experiments.store.record import Record

TEMPLATES = Path(__file__).with_name("templates")
HEADINGS = {
    "contradicted": "Not reproduced: contradicted",
    "suggests against": "Exploratory or post hoc: the runs suggest against it",
    "inconclusive": "Open: inconclusive",
    "suggests": "Exploratory or post hoc: the runs suggest it",
    "holds": "Reproduced or consistent: holds",
    "open question": "Open questions: the source takes no side; difference and interval",
    "not tested": "Without a verdict: not tested at this scale",
}
#: Negative results by verdict, as the front page lists them: number of claims, then these words.
NEGATIVE = {
    "contradicted": "contradicted",
    "suggests against": "that the runs suggest against",
    "inconclusive": "inconclusive",
}
#: The two lists of findings on the front page: anchor, title, and the verdicts in the order shown.
FOUND = {
    "for": (
        "Claims that hold or that the runs suggest, by training",
        (policy.HOLDS, policy.SUGGESTS),
    ),
    "against": (
        "Claims that are contradicted or that results suggest against",
        (policy.CONTRADICTED, policy.SUGGESTS_AGAINST),
    ),
}
#: The figure that shows the source's own numbers.
SOURCE = "source_by_sparsity"
#: Columns of a table of runs that the page shows with or beside each run's spec instead.
RUN_FACTS = ("model", "method", "algorithm", "family", "sparsity", "recipe", "data hash")
RUN_FACTS += ("machine", "processor", "threads", "versions", "command")


@functools.cache
def environment(*, html: bool) -> jinja2.Environment:
    """Return the template environment; pages escape every value, for HTML or for Markdown."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        finalize=None if html else text.markdown,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    env.filters["cell"] = text.format_cell
    env.filters["md"] = text.markdown_cell
    env.filters["code"] = text.markdown_code
    env.filters["anchor"] = text.anchor
    env.filters["words"] = text.in_words
    env.filters["p"] = text.p_value
    env.filters["sentence"] = text.sentence
    return env


def on_page(method: Method) -> Method:
    """Return a method as a page shows it, where dark ink is the page's text colour."""
    return replace(method, color="currentColor") if method.color == INK else method


def _read_table(
    name: str, folder: Path, behind: provenance.Register, *, sourced: bool
) -> dict[str, Any]:
    path = folder / f"{name}.csv"
    shown = {"name": name, "title": name.replace("_", " "), "caption": tables.caption(name)}
    shown |= {"columns": [], "numeric": [], "rows": [], "missing": not path.exists()}
    if provenance.has_rows(path):
        table = pd.read_csv(path)
        hidden = RUN_FACTS if "run" in table else ()
        if not sourced:
            hidden = (*hidden, *(name for name in table.columns if "(published" in name))
        shown["columns"] = [column for column in table.columns if column not in hidden]
        shown["numeric"] = list(table.select_dtypes("number").columns)
        shown["rows"] = table.to_dict("records")
        for row in shown["rows"]:
            row["behind"] = behind.add(row.get("runs"))
    return shown


def _read_figure(
    name: str, records: pd.DataFrame, curves: pd.DataFrame, study: PlannedStudy, *, empty: bool
) -> dict[str, Any]:
    caption = figures.caption(name, records, curves, study)
    title = name.replace("_", " ")
    return {"name": name, "title": title, "caption": caption, "empty": empty}


def _read_details(
    study: PlannedStudy, records: dict[str, Record], present: set[str], committed: set[str]
) -> list[dict[str, Any]]:
    """What stands behind each run: the command always, its record where it is finished."""
    details = []
    for run in study.runs:
        record = records.get(run.id)
        details.append(
            {
                "id": run.id,
                "finished": run.id in present,
                "command": rerun_command([run.id]) if record is None else record.command,
                "facts": {
                    "record": "committed, not made here" if run.id in committed else None,
                    "seed": run.spec.seed,
                    **({} if record is None else _facts(record)),
                },
            }
        )
    return details


def _facts(record: Record) -> dict[str, Any]:
    """What a page says of how a run was made."""
    evaluation = record.evaluation
    return {
        "data": record.data.name,
        "data hash": record.data.hash,
        "spec hash": record.spec_hash,
        "code hash": record.code_hash,
        "machine": record.machine_key,
        "processor": machine.words(record.machine_facts, record.cpu),
        "threads": record.num_threads,
        "wall time of training (s)": record.wall_s,
        "of which shared with another run (s)": record.borrowed_s or None,
        "wall time of evaluation (s)": None if evaluation is None else evaluation.wall_s,
        "versions": "; ".join(f"{name} {version}" for name, version in record.versions.items()),
    }


def _ledger(path: Path, behind: provenance.Register) -> dict[str, Any]:
    """The ledger in the order a reader needs: primary, exploratory, computed, not tested."""
    if not Path(path).exists():
        return {"tested": [], "computed": [], "untested": [], "counts": [], "missing": True}
    table = ledger_module.read(path)
    table = table.assign(rank=table["role"].map(summary.ROLES).fillna(3))
    rows = with_counter_evidence(table.sort_values(["rank", "id"]).to_dict("records"))
    for row in rows:
        row["behind"] = behind.add(row["runs"])
    listed = [row for row in rows if row["role"] in ("primary", "exploratory", ledger_module.OPEN)]
    return {
        "tested": listed,
        "computed": [row for row in rows if row["role"] in ledger_module.UNTRAINED],
        "untested": [row for row in rows if not row["role"]],
        "counts": summary.verdict_counts(table),
        "missing": False,
    }


def with_counter_evidence(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add to each claim the rows of the ledger that speak against it, and what is derived here."""
    derived = published.claims().set_index("claim_id")["derived_here"]
    for row in rows:
        row["derived_here"] = derived.get(row["id"], "")
        row["statement"] = row["statement"].removeprefix("COUNTER-EVIDENCE: ")
        row["counter"] = [other for other in rows if row["id"] in other["concerns"].split()]
    return rows


def render_study(
    study: PlannedStudy,
    records: pd.DataFrame,
    curves: pd.DataFrame,
    finished: Iterable[dict[str, Any]],
    figures_dir: Path,
    tables_dir: Path,
    claims_csv: Path,
    out_dir: Path,
    *,
    empty: Collection[str] = (),
) -> Path:
    """Write ``index.html`` and ``README.md`` of a study.

    Args:
        study: The study as `experiments.specs.lookup.planned_study` makes it.
        records: Tidy records.
        curves: Tidy curves.
        finished: The JSON form of the records of its finished runs.
        figures_dir: Folder with the figures' PNG files.
        tables_dir: Folder with the tables' CSV files.
        claims_csv: The ledger.
        out_dir: Folder to write to.
        empty: Figures without data yet.

    Returns:
        The path of ``index.html``.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    made = {value["run"]: Record.model_validate(value) for value in finished}
    runs, sourced = provenance.Runs(study, records), published.is_source_of(study)
    behind = provenance.Register(runs)
    context = {
        "look": lambda method: on_page(runs.methods[method]),
        "study": study,
        "trials": study.trials,
        "sourced": sourced,
        "missing": tidy.missing_runs(records, study),
        "unfinished": runs.unfinished(set(records["run"])),
        "committed": [run.id for run in study.runs if run.id in runs.committed],
        "cost": summary.cost(made.values()),
        "ledger": _ledger(Path(claims_csv), behind),
        "tables": [
            _read_table(name, Path(tables_dir), behind, sourced=sourced) for name in study.tables
        ],
        "figures": [
            _read_figure(name, records, curves, study, empty=name in empty)
            for name in study.figures
        ],
        "details": _read_details(study, made, set(records["run"]), runs.committed),
        "behind": list(behind),
        "figures_path": _relative(figures_dir, out_dir),
        "tables_path": _relative(tables_dir, out_dir),
        "alpha": policy.ALPHA,
        "least_seeds": policy.MIN_SEEDS,
    }
    _render("study", context, out_dir)
    return out_dir / "index.html"


def _relative(folder: Path, start: Path) -> str:
    """Path from a page to a folder, so that a report can be moved as a whole."""
    return Path(os.path.relpath(folder, start)).as_posix()


def _render(template: str, context: dict[str, Any], out_dir: Path) -> None:
    for suffix, file in (("html", "index.html"), ("md", "README.md")):
        page = environment(html=suffix == "html").get_template(f"{template}.{suffix}.j2")
        made = page.render(**context)
        made = re.sub(r"[ \t]+\n", "\n", re.sub(r"\n{3,}", "\n\n", made)).strip() + "\n"
        (out_dir / file).write_text(made, encoding="utf-8")


def render_index(
    studies: list[dict[str, Any]],
    scale: str,
    results_dir: Path,
    out_dir: Path,
    *,
    command: str | None = None,
) -> Path:
    """Write the front page of a scale: what was reproduced, what was not, and what it cost.

    Args:
        studies: All studies of the scale.
        scale: Name of the scale.
        results_dir: ``results/<scale>``, holding ``<study>/records.csv``, Parquet files and
            ``claims.csv``.
        out_dir: ``reports/<scale>``, holding ``<study>/index.html`` and ``tables/``.
        command: Command that repeats the whole; None takes ``snakemake reproduce``.

    Returns:
        The path of ``index.html``. Beside it is ``commands.csv``, with the command behind each
        row of each table.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    shown, ledgers, finished, commands = [], {}, {"evidence": [], "trials": []}, []
    for study in sorted(studies, key=lambda study: (bool(study.trials), study.name)):
        folder, page = Path(results_dir) / study.name, Path(out_dir) / study.name
        is_collected = (folder / "runs.parquet").exists()
        own = list(map(Record.model_validate, parquet.read(folder))) if is_collected else []
        row = {"study": study, "num_runs": len(study.runs), "cost": summary.cost(own)}
        row |= {"trials": study.trials, "missing": []}
        if (folder / "records.csv").exists():
            row["missing"] = tidy.missing_runs(tidy.read_records(folder / "records.csv"), study)
        row["chance"] = summary.chance_scores(page / "tables")
        waits = study.runs and not own  # its pictures are empty
        row["pictures"] = [] if waits else _pictures(study)
        finished["trials" if study.trials else "evidence"] += own
        ledger = pd.DataFrame(columns=ledger_module.COLUMNS)
        if (folder / "claims.csv").exists() and published.is_source_of(study):
            ledger = ledgers[study.name] = ledger_module.read(folder / "claims.csv")
        row["counts"] = summary.verdict_counts(ledger[ledger["role"] != ""])
        commands.append(provenance.commands(study, page / "tables", ledger))
        shown.append(row)
    merged = summary.merge_ledgers(ledgers)
    rows = with_counter_evidence(merged.to_dict("records"))
    counts = summary.verdict_counts(merged)
    groups = {word: [r for r in rows if r["verdict"] == word] for word in summary.ORDER}
    context = {
        "rows": shown,
        "scale": scale,
        "pictured": sorted(
            (row for row in shown if row["pictures"]), key=lambda row: bool(row["missing"])
        ),
        "groups": groups,
        "found": _found(groups),
        "headings": HEADINGS,
        "negative": NEGATIVE,
        "counts": counts,
        "by_verdict": {row["verdict"]: row for row in counts},
        "outcome": summary.outcome(merged),
        "cost": summary.cost([*finished["evidence"], *finished["trials"]]),
        "trials_cost": summary.cost(finished["trials"]),
        "num_asked": len({run.id for study in studies for run in study.runs}),
        "num_claims": len(merged),
        "command": command or f"snakemake reproduce --config scale={scale}",
    }
    _render("index", context, out_dir)
    shutil.copyfile(ROOT / "docs" / "policy.md", out_dir / "policy.md")
    table = pd.concat(commands) if commands else pd.DataFrame(columns=provenance.COLUMNS)
    table.to_csv(out_dir / "commands.csv", index=False)
    return out_dir / "index.html"


def _found(groups: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The findings in short: what trained runs speak for, and what any result speaks against."""
    lists = []
    for anchor, (title, words) in FOUND.items():
        found = [row for word in words for row in groups[word]]
        if anchor == "for":
            found = [row for row in found if row["role"] not in ledger_module.UNTRAINED]
        lists.append({"anchor": f"found-{anchor}", "title": title, "rows": found})
    return lists


def _pictures(study: PlannedStudy) -> list[dict[str, Any]]:
    """The figures that stand for a study: its first that states findings, and its source's own."""
    ours = [n for n in study.figures if n != SOURCE and hasattr(figures.load(n), "caption")]
    chosen = [*ours[:1], *(name for name in study.figures if name == SOURCE)]
    return [
        {"name": name, "whose": "as published" if name == SOURCE else "here"} for name in chosen
    ]


def publish(scale_dir: Path, reports_dir: Path) -> Path:
    """Copy a scale's report to ``reports/``, where it is committed as the reference.

    Pages are their Markdown and its pictures; HTML, tables and other formats are made on demand.

    Args:
        scale_dir: ``reports/<scale>`` with its front page and study folders.
        reports_dir: ``reports``; its own files and study folders are replaced.

    Returns:
        The path of the committed ``README.md``.

    Raises:
        ValueError: If the scale has no report yet.
    """
    scale_dir, reports_dir = Path(scale_dir), Path(reports_dir)
    if not (scale_dir / "README.md").exists():
        raise UserError(f"{scale_dir.name} has no report: run `snakemake report` first")
    for page in sorted(scale_dir.glob("*/README.md")):
        target = reports_dir / page.parent.name
        shutil.rmtree(target, ignore_errors=True)
        (target / "figures").mkdir(parents=True)
        shutil.copyfile(page, target / "README.md")
        for picture in sorted((page.parent / "figures").glob("*.png")):
            shutil.copyfile(picture, target / "figures" / picture.name)
    for name in ("README.md", "policy.md"):
        shutil.copyfile(scale_dir / name, reports_dir / name)
    return reports_dir / "README.md"
