"""Pages: the front page with the nine results, the supporting claims, and a page for each study.

A page is written once, as Markdown; its HTML twin is made from that, one file without scripts or
requests, with its pictures beside it.
"""

import functools
import itertools
import re
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from experiments import machine
from experiments.analysis import figures, style, tables
from experiments.analysis.methods import Methods
from experiments.errors import UserError
from experiments.findings import claim as claims
from experiments.findings import ledger
from experiments.findings.estimate import OPPOSITE, SMALLER
from experiments.findings.evidence import Evidence
from experiments.findings.ledger import Finding
from experiments.report import cards, forest, text
from experiments.specs.lookup import rerun_command
from experiments.specs.run import RunSpec
from experiments.specs.schema import PlannedStudy, SpecError
from experiments.store import parquet, paths, verification
from experiments.store.record import Record

TEMPLATES = Path(__file__).with_name("templates")
#: Columns of the table of runs that a page leaves to its CSV.
RUN_FACTS = "model,method,algorithm,family,sparsity,recipe,data hash,machine,processor".split(",")
RUN_FACTS += ["threads", "versions", "command"]
FOREST = "replication.png"
#: Tables of finished runs that `cost` reads.
COST_TABLES = ("runs", "curves")
#: Rows of a table that stands before the disclosures.
MOST_ROWS = 20


@functools.cache
def environment() -> jinja2.Environment:
    """The template environment; every value is escaped for Markdown but through ``raw``."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        finalize=text.markdown,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    env.filters |= {
        "raw": Markup,
        "code": text.markdown_code,
        "words": text.in_words,
        "alt": text.alt,
    }
    return env


def write_page(template: str, context: dict[str, Any], folder: Path, name: str = "README") -> Path:
    """Write a page as Markdown and as HTML; returns the path of the latter."""
    made = environment().get_template(f"{template}.md.j2").render(**context)
    made = re.sub(r"[ \t]+\n", "\n", re.sub(r"\n{3,}", "\n\n", made)).strip() + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(made, encoding="utf-8")
    out = folder / ("index.html" if name == "README" else f"{name}.html")
    out.write_text(to_html(made), encoding="utf-8")
    return out


def to_html(page: str) -> str:
    """A page of Markdown as one HTML file."""
    import markdown

    body = markdown.markdown(page, extensions=["tables", "md_in_html", "attr_list", "sane_lists"])
    body = re.sub(r'(href="[^":]*?)README\.md', r"\1index.html", body)
    body = re.sub(r'(href="[^":]*?)\.md(#[^"]*)?"', r'\1.html\2"', body)
    region = '<div class="scroll" tabindex="0" role="region" aria-label="table">'
    body = body.replace("<table>", f"{region}<table>").replace("</table>", "</table></div>")
    body = re.sub(r"<p>(<img [^>]*>)</p>", rf"{region.replace('table', 'figure')}\1</div>", body)
    heading = re.search(r"^# (.+)$", page, re.MULTILINE)
    title = re.sub(r"[\\*`]", "", heading[1]) if heading else "Report"
    base = (TEMPLATES / "base.html.j2").read_text(encoding="utf-8")
    return base.replace("{title}", str(Markup.escape(title))).replace("{body}", body)


def answer(study: PlannedStudy, findings: Mapping[str, Finding], *, strict: bool = False) -> str:
    """The answer of a study at its scale: its text where its words hold, else one from the words.

    Args:
        findings: By their name in the text, see `experiments.findings.ledger.named`.

    Raises:
        SpecError: If it is strict and a word differs.
    """
    own = {name: found for name, found in findings.items() if found.claim.study == study.name}
    written = study.answer.get(study.scale)
    if written is not None:
        wrong = [
            f"{name} is {own[name].word if name in own else 'missing'!s}, not {said}"
            for name, said in written.when.items()
            if name not in own or str(own[name].word) != said
        ]
        if not wrong:
            known = {name.replace("-", "_"): cards.ours(found) for name, found in own.items()}
            return written.text.format(**known)
        if strict:
            raise SpecError(f"{study.name}.yaml: answer.{study.scale}: {'; '.join(wrong)}")
    said = [
        f"{found.claim.title}: {cards.word(found)}"
        for name, found in own.items()
        if name == found.claim.name
    ]
    return ". ".join(said) + "." if said else ""


def cost(records: Iterable[Record]) -> dict[str, Any]:
    """Cost and size of finished runs, each run and each shared step counted once.

    Args:
        records: Records; a run that several studies show may occur several times.

    Returns:
        ``runs``, and how many of them are ``continued``: from the state of another one, whose steps
        they do not count again; core-hours of ``training`` and ``evaluation`` (wall time times
        threads); the number of ``machines`` that were recorded; ``executed`` training FLOPs, 2 per
        multiply-add; least and largest number of ``parameters``.
    """
    runs = list({record.run: record for record in records}.values())
    here = {record.run for record in runs}
    continued = {
        record.run
        for record in runs
        if (start := record.spec.starts_from) and start.step and start.run in here
    }
    training = evaluation = executed = 0.0
    for record in runs:
        share = (record.num_threads or 1) / 3600
        borrowed = record.borrowed_s if record.run in continued else 0.0
        training += share * (record.wall_s - borrowed)
        if record.evaluation is not None:
            evaluation += share * (record.evaluation.wall_s or 0.0)
        executed += record.flops.executed
        if record.run in continued:
            executed -= record.shared_flops().executed
    sizes = [record.num_parameters for record in runs]
    return {
        "runs": len(runs),
        "continued": len(continued),
        "training": training,
        "evaluation": evaluation,
        "machines": len(set(filter(machine.is_known, (record.machine_key for record in runs)))),
        "executed": executed,
        "parameters": (min(sizes), max(sizes)) if sizes else None,
    }


def render_study(
    study: PlannedStudy,
    records: pd.DataFrame,
    finished: Iterable[dict[str, Any]],
    evidence: Evidence,
    out_dir: Path,
    *,
    empty: Collection[str] = (),
) -> Path:
    """Write ``index.html`` and ``README.md`` of a study.

    Args:
        finished: The JSON form of the records of its finished runs, `COST_TABLES` of it.
        empty: Figures without data yet.
    """
    made = [Record.model_validate(value) for value in finished]
    methods, present = Methods(study), set(records["run"])
    committed = set(records.loc[records["committed"], "run"])
    names = {run.id: (_name(run.spec, methods), run.spec.seed) for run in study.runs}
    behind: dict[tuple[str, ...], None] = {}
    nine = ledger.nine(evidence, study.name)
    files = sorted((out_dir / "figures").glob("*.png"))
    pictures = {file.stem: f"figures/{file.name}" for file in files if file.stem not in empty}
    pictures |= {f"{study.name}.{name}": path for name, path in pictures.items()}
    shown = [_read_table(out_dir / "tables", name, behind, names, methods) for name in study.tables]
    own = [cards.card(found, evidence, pictures) for found in nine]
    used = {path for each in own for _, path in each["pictures"]}
    context = {
        "study": study,
        "answer": answer(study, ledger.named(evidence, study.name)),
        "cards": own,
        "supporting": cards.supporting(evidence, study.name),
        "link": cards.link,
        "main": [table for table in shown[:1] if 0 < table["lines"] <= MOST_ROWS],
        "tables": [table for table in shown if table["text"]],
        "figures": [
            {"path": pictures[name], "caption": figures.caption(name)}
            for name in study.figures
            if name not in empty and pictures[name] not in used
        ],
        "missing": [run.id for run in study.runs if run.id not in present],
        "committed": committed & names.keys(),
        "cost": cost(made),
        "behind": [([names[run] for run in ids], rerun_command(ids)) for ids in behind],
    }
    return write_page("study", context, out_dir)


def _name(spec: RunSpec, methods: Methods) -> str:
    """Model, treatment, data and recipe of a run."""
    treatment = methods.treatment(spec.method or "", spec.final_sparsity or 0.0)
    parts = spec.model.label, treatment, spec.data.name, spec.recipe.name
    return " · ".join(part for part in parts if part)


def _read_table(
    folder: Path,
    name: str,
    behind: dict[tuple[str, ...], None],
    names: Mapping[str, tuple[str, int]],
    methods: Methods,
) -> dict[str, Any]:
    """A table as Markdown, without columns in which nothing is known; adds its runs to others."""
    path, made = folder / f"{name}.csv", ""
    if path.stat().st_size > 2:  # it has a header
        table = pd.read_csv(path)
        if "runs" in table:
            cells = table["runs"].fillna("").astype(str)
            groups = [tuple(sorted({*cell.split()}, key=names.__getitem__)) for cell in cells]
            behind |= dict.fromkeys(filter(None, groups))
            table["trained again"] = [verification.repeats(ids) or None for ids in groups]
        hidden = ["runs", *(RUN_FACTS if "run" in table else ())]
        table = table.drop(columns=hidden, errors="ignore")
        if "method" in table:
            table["method"] = [methods[key].name for key in table["method"]]
        rows = [
            [str(text.markdown_cell(text.format_cell(value, key))) for key, value in row.items()]
            for row in table.to_dict("records")
        ]
        made = cards.table(list(table), rows) if rows else ""
    title, caption = name.replace("_", " "), tables.caption(name)
    return {"title": title, "caption": caption, "text": made, "lines": made.count("\n") - 1}


def render_index(
    studies: Sequence[PlannedStudy], evidence: Evidence, results_dir: Path, out_dir: Path
) -> Path:
    """Write the front page of a scale with its forest, and the page of supporting claims.

    Returns:
        The path of ``index.html``. Beside it are ``claims.md``, ``replication.png`` and
        ``findings.csv``.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    nine, pooled = ledger.nine(evidence), ledger.forest(evidence)
    with style.sheet():
        figures.save(forest.draw(nine, pooled), out_dir / FOREST, "png")
    names = {study.name for study in studies}
    finished: dict[str, dict[str, Any]] = {}
    for study in studies:
        if (results_dir / study.name / "runs.parquet").exists():
            records = parquet.read(results_dir / study.name, tables=COST_TABLES)
            finished |= {record["run"]: record for record in records}
    kept = None if evidence.scale == paths.REFERENCE_SCALE else cards.reference()
    pictures = {
        f"{path.parent.parent.name}.{path.stem}": path.relative_to(out_dir).as_posix()
        for path in sorted(out_dir.glob("*/figures/*.png"))
    }
    shown = []
    for found in nine:
        start = f"{found.claim.study}."
        own = {n.removeprefix(start): path for n, path in pictures.items() if n.startswith(start)}
        shown.append(cards.card(found, evidence, own | pictures))
    context = {
        "scale": evidence.scale,
        "names": names,
        "titles": {study.name: study.title for study in studies},
        "sentence": cards.summary(nine),
        "nine": _nine(nine, kept, evidence),
        "forest": FOREST,
        "miss": round(100 * (1 - 0.95 ** sum(found.is_fair for found in nine))),
        "cards": shown,
        "negative": [
            (found, ("" if found in nine else "claims.md") + f"#{found.claim.name}")
            for word in (OPPOSITE, SMALLER)
            for found in (*nine, *itertools.chain(*ledger.supporting(evidence, "")))
            if found.word.word == word
            if not (word == SMALLER and found.is_cost)
        ],
        "ours": cards.ours,
        "workload": cards.workload,
        "studies": [study for study in studies if not study.trials],
        "trials": [study for study in studies if study.trials],
        "cost": cost(map(Record.model_validate, finished.values())),
        "sources": list(claims.sources().values()),
    }
    cards.findings_table(list(nine)).to_csv(out_dir / "findings.csv", index=False)
    groups = cards.supporting(evidence)
    claimed = {"scale": evidence.scale, "groups": groups, "link": cards.link, "names": names}
    write_page("claims", claimed, out_dir, "claims")
    return write_page("index", context, out_dir)


def _nine(nine: Sequence[Finding], kept: pd.DataFrame | None, evidence: Evidence) -> str:
    """The table of nine rows; beside a committed reference, with yours and whether they agree."""
    head = ["result", "published", "here, 95% interval", "agrees?"]
    head += ["at other settings", "weights and data, here / source", "learning rates"]
    rows = [cards.row(number, found, evidence) for number, found in enumerate(nine, 1)]
    if kept is not None:
        head[2:3] = ["reference", "yours, 95% interval", "as the reference?"]
        for found, row in zip(nine, rows, strict=True):
            own = kept.loc[found.claim.name] if found.claim.name in kept.index else None
            row[2:3] = [cards.kept_text(own), row[2], cards.agreement(found, own)]
    return cards.table(head, rows)


def short(nine: Sequence[Finding]) -> list[str]:
    """The nine rows in short, a line each, for the terminal and the README."""
    return [
        f"{found.claim.title}: {found.word}" + (f" ({cards.ours(found)})" if found.is_fair else "")
        for found in nine
    ]


def publish(scale_dir: Path, reports_dir: Path) -> Path:
    """Copy a scale's report to ``reports/``, where it is committed as the reference.

    Pages are their Markdown and its pictures, the front page as HTML too; tables are made on
    demand.

    Raises:
        UserError: If the scale has no report yet.
    """
    if not (scale_dir / "README.md").exists():
        raise UserError(f"{scale_dir.name} has no report: run `snakemake reproduce` first")
    for page in sorted(scale_dir.glob("*/README.md")):
        target = reports_dir / page.parent.name
        shutil.rmtree(target, ignore_errors=True)
        (target / "figures").mkdir(parents=True)
        shutil.copyfile(page, target / "README.md")
        for picture in sorted((page.parent / "figures").glob("*.png")):
            shutil.copyfile(picture, target / "figures" / picture.name)
    for name in ("README.md", "claims.md", "replication.png", "findings.csv"):
        shutil.copyfile(scale_dir / name, reports_dir / name)
    for name in ("index.html", "claims.html"):  # pages of studies are committed as Markdown alone
        written = (scale_dir / name).read_text(encoding="utf-8")
        made = written.replace('/index.html"', '/README.md"')
        (reports_dir / name).write_text(made, encoding="utf-8")
    return reports_dir / "README.md"


BEGIN, END = "<!-- reference: written by `snakemake publish` -->", "<!-- end of reference -->"


def update_readme(readme: Path, nine: Sequence[Finding]) -> None:
    """Replace the README's block on the committed reference: the forest and the nine rows in short.

    Raises:
        UserError: If the README lacks the two lines that enclose the block.
    """
    page = readme.read_text(encoding="utf-8")
    block = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    if not block.search(page):
        raise UserError(f"{readme.name} must hold the lines {BEGIN!r} and {END!r}")
    lines = [
        f"[![Effects here relative to the published ones](reports/{FOREST})](reports/README.md)",
        "",
        "*Right is better. Top: multiples of the published effects (dots). Middle: no published "
        "number compares. Bottom: pooled over workloads.*",
        "",
    ]
    lines += [
        f"{cards.summary(tuple(nine))} These are the committed results, scale `small`. Differences "
        "of losses (nats) and perplexity below zero are better.",
        "",
    ]
    rows = [
        [f"{number}. {found.claim.title}", cards.published(found) + cards.relative(found)[0]]
        + [cards.ours(found) + cards.relative(found)[1], cards.short_word(found)]
        for number, found in enumerate(nine, 1)
    ]
    lines.append(cards.table(["result", "published", "here, 95% interval", "agrees?"], rows))
    body = "\n".join(lines)
    readme.write_text(block.sub(lambda _: f"{BEGIN}\n{body}\n{END}", page), encoding="utf-8")
