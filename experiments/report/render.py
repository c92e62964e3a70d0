"""Render the page of a study, the index of a scale, and the committed reference report.

A page is one HTML file without scripts or requests: styles and figures are inline, and its
Markdown twin shows the same content on a code host.
"""

import json
import math
import os
import re
import shutil
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from experiments.analysis import claims as ledger_module
from experiments.analysis import figures, tables
from experiments.analysis import records as tidy
from experiments.analysis.style import AXES, INK, method_style

TEMPLATES = Path(__file__).with_name("templates")
AXIS_LABELS = {"tokens": "tokens", "steps": "steps", "flops": "FLOPs"}


def environment(*, html: bool) -> jinja2.Environment:
    """Return the template environment; HTML pages escape every value."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=html,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    env.filters["cell"] = format_cell
    env.filters["md"] = markdown_cell
    env.filters["anchor"] = anchor
    env.filters["seed"] = seed_label
    env.globals["look"] = method_style
    return env


def format_cell(value: Any, column: str = "") -> str:
    """Return a table value as text: 4 significant digits, counts in full, nothing for missing."""
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if column == "sparsity":
        return f"{100 * float(value):g}%"
    if column in ("p", "p_adjusted"):
        return "< 0.001" if value < 0.001 else f"{value:.3f}"
    if isinstance(value, bool) or isinstance(value, str):
        return str(value) if value != "" else "–"
    number = float(value)
    if number.is_integer() and abs(number) < 1e9:
        return f"{int(number):,}"
    if abs(number) >= 1e6:
        return f"{number:.3e}".replace("e+0", "e").replace("e+", "e")
    return f"{number:.4g}" if abs(number) < 1000 else f"{number:,.1f}"


def markdown_cell(value: str) -> str:
    """Escape what would end a cell of a Markdown table."""
    text = str(value).strip().replace("|", "\\|").replace("<", "&lt;")
    return text.replace("\n", "<br>").replace("  ", "&nbsp;&nbsp;")


def anchor(run: str) -> str:
    """Return the HTML id of a run."""
    return "run-" + re.sub(r"[^A-Za-z0-9_-]", "-", run)


def seed_label(run: str) -> str:
    """Return the short name of a run: its seed."""
    found = re.search(r"seed(\d+)$", run)
    return f"seed {found.group(1)}" if found else run


def inline_svg(path: Path, *, prefix: str, title: str) -> Markup:
    """Return an SVG for inclusion in a page.

    Ids get a prefix, since several figures share a page; dark ink becomes the page's text colour,
    and the white background goes, so that the figure follows the page's theme.
    """
    text = path.read_text(encoding="utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(<g id="background">\s*<path [^>]*?)style="[^"]*"', r'\1fill="none"', text)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}-", text)
    text = text.replace(INK, "currentColor").replace(INK.upper(), "currentColor")
    label = str(Markup.escape(title))
    text = re.sub(r"<svg ", f'<svg role="img" aria-label="{label}" ', text, count=1)
    return Markup(text)


def _read_table(name: str, folder: Path) -> dict[str, Any]:
    path = folder / f"{name}.csv"
    shown = {"name": name, "title": name.replace("_", " "), "caption": tables.caption(name)}
    shown |= {"columns": [], "rows": [], "missing": not path.exists()}
    if path.exists() and path.stat().st_size > 2:
        table = pd.read_csv(path)
        shown["columns"] = list(table.columns)
        shown["rows"] = table.to_dict("records")
    return shown


def _read_figure(
    name: str, folder: Path, records: pd.DataFrame, curves: pd.DataFrame, study: dict[str, Any]
) -> dict[str, Any]:
    title = name.replace("_", " ")
    variants = []
    for axis in AXES:
        file = name if axis == "tokens" else f"{name}-by-{axis}"
        path = folder / f"{file}.svg"
        if path.exists():
            svg = inline_svg(path, prefix=f"{file}", title=f"{title}, by {AXIS_LABELS[axis]}")
            variants.append({"axis": AXIS_LABELS[axis], "file": file, "svg": svg})
    caption = figures.caption(name, records, curves, study)
    return {"name": name, "title": title, "caption": caption, "variants": variants}


def _read_details(study: dict[str, Any], runs_dir: Path, present: set[str]) -> list[dict[str, Any]]:
    """What stands behind each run: its spec always, its record where it is finished."""
    details = []
    for run in study.get("runs", []):
        record: dict[str, Any] = {}
        for path in (runs_dir / run["id"] / "record.json", runs_dir / f"{run['id']}.json"):
            if path.exists():
                record = tidy.read_json(path)
                break
        spec = record.get("spec") or run.get("spec") or {}
        details.append(
            {
                "id": run["id"],
                "finished": run["id"] in present,
                "command": record.get("command") or run.get("command"),
                "spec": json.dumps(spec, indent=2),
                "facts": {
                    "data": (record.get("data") or {}).get("name"),
                    "data hash": (record.get("data") or {}).get("hash"),
                    "spec hash": record.get("spec_hash"),
                    "code hash": record.get("code_hash"),
                    "processor": record.get("cpu"),
                    "threads": record.get("num_threads"),
                    "wall time (s)": record.get("wall_s"),
                    "versions": "; ".join(
                        f"{name} {version}"
                        for name, version in (record.get("versions") or {}).items()
                    ),
                },
            }
        )
    return details


def _ledger(path: Path, study: dict[str, Any]) -> dict[str, Any]:
    """The ledger in the order a reader needs: primary, exploratory, exact, not tested."""
    if not Path(path).exists():
        return {"tested": [], "untested": [], "counts": {}, "missing": True}
    table = ledger_module.read(path)
    order = {"primary": 0, "exploratory": 1, "exact": 2, "": 3}
    table = table.assign(rank=table["role"].map(order)).sort_values(["rank", "id"])
    rows = table.to_dict("records")
    shown = [row for row in rows if row["verdict"] != "not tested" or row["role"]]
    for row in shown:
        row["counter"] = [r["id"] for r in rows if row["id"] in str(r["concerns"]).split()]
    counts = {name: sum(r["verdict"] == name for r in rows) for name in ledger_module.VERDICTS}
    untested = [row for row in rows if row not in shown]
    return {"tested": shown, "untested": untested, "counts": counts, "missing": False}


def render_study(
    study: dict[str, Any],
    records_csv: Path,
    curves_csv: Path,
    runs_dir: Path,
    figures_dir: Path,
    tables_dir: Path,
    claims_csv: Path,
    out_dir: Path,
) -> Path:
    """Write ``index.html`` and ``README.md`` of a study.

    Args:
        study: The study as ``experiments.plan`` describes it.
        records_csv: Tidy records.
        curves_csv: Tidy curves.
        runs_dir: Folder with ``<run id>/record.json`` or ``<run id>.json``.
        figures_dir: Folder with the figures' SVG files.
        tables_dir: Folder with the tables' CSV files.
        claims_csv: The ledger.
        out_dir: Folder to write to.

    Returns:
        The path of ``index.html``.
    """
    records, curves = tidy.read_records(records_csv), tidy.read_curves(curves_csv)
    out_dir.mkdir(parents=True, exist_ok=True)
    wall = records[(records["metric"] == "wall_s")].drop_duplicates("run")["value"].sum()
    context = {
        "study": study,
        "missing": tidy.missing_runs(records, study),
        "num_runs": records["run"].nunique(),
        "wall_s": float(wall),
        "tables": [_read_table(name, Path(tables_dir)) for name in study.get("tables", [])],
        "figures": [
            _read_figure(name, Path(figures_dir), records, curves, study)
            for name in study.get("figures", [])
        ],
        "details": _read_details(study, Path(runs_dir), set(records["run"])),
        "ledger": _ledger(Path(claims_csv), study),
        "figures_path": _relative(figures_dir, out_dir),
        "tables_path": _relative(tables_dir, out_dir),
    }
    _render("study", context, out_dir)
    return out_dir / "index.html"


def _relative(folder: Path, start: Path) -> str:
    """Path from a page to a folder, so that a report can be moved as a whole."""
    return Path(os.path.relpath(folder, start)).as_posix()


def _render(template: str, context: dict[str, Any], out_dir: Path) -> None:
    for suffix, file in (("html", "index.html"), ("md", "README.md")):
        page = environment(html=suffix == "html").get_template(f"{template}.{suffix}.j2")
        text = page.render(**context)
        text = re.sub(r"[ \t]+\n", "\n", re.sub(r"\n{3,}", "\n\n", text)).strip() + "\n"
        (out_dir / file).write_text(text, encoding="utf-8")


def merge_ledgers(ledgers: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Return one row per claim: that of the study with the most to say about it.

    A study that lists the claim goes before one that does not, a test before none.
    """
    rows = [table.assign(study=name) for name, table in ledgers.items()]
    if not rows:
        return pd.DataFrame(columns=[*ledger_module.COLUMNS, "study"])
    merged = pd.concat(rows, ignore_index=True)
    rank = merged["role"].map({"primary": 0, "exploratory": 1, "exact": 2}).fillna(3)
    untested = merged["verdict"] == ledger_module.NOT_TESTED
    rank += 4 * untested.astype(int)
    merged = merged.assign(rank=rank).sort_values(["id", "rank"], kind="stable")
    return merged.drop_duplicates("id").drop(columns="rank")


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
        results_dir: ``results/<scale>``, holding ``<study>/records.csv`` and ``claims.csv``.
        out_dir: ``reports/<scale>``, holding ``<study>/index.html``.
        command: Command that repeats the whole; None takes ``snakemake reproduce``.

    Returns:
        The path of ``index.html``.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    shown, ledgers = [], {}
    for study in studies:
        folder = Path(results_dir) / study["name"]
        row = {"study": study, "finished": 0, "wall_s": 0.0, "counts": {}, "missing": []}
        row["num_runs"] = len(study.get("runs", []))
        if (folder / "records.csv").exists():
            records = tidy.read_records(folder / "records.csv")
            row["finished"] = records["run"].nunique()
            row["wall_s"] = float(records[records["metric"] == "wall_s"]["value"].sum())
            row["missing"] = tidy.missing_runs(records, study)
        if (folder / "claims.csv").exists():
            ledgers[study["name"]] = ledger_module.read(folder / "claims.csv")
        shown.append(row)
    merged = merge_ledgers(ledgers)
    groups = {word: merged[merged["verdict"] == word].to_dict("records") for word in
              ("contradicted", "inconclusive", "holds", "not tested")}  # fmt: skip
    context = {"rows": shown, "scale": scale, "groups": groups}
    context["command"] = command or f"snakemake reproduce --config scale={scale}"
    context["num_claims"] = len(merged)
    _render("index", context, out_dir)
    return out_dir / "index.html"


def publish(scale_dir: Path, reports_dir: Path) -> Path:
    """Copy a scale's report to ``reports/``, where it is committed as the reference.

    Args:
        scale_dir: ``reports/<scale>`` with its index and study folders.
        reports_dir: ``reports``; its ``index.html``, ``README.md`` and study folders are replaced.

    Returns:
        The path of the committed ``index.html``.

    Raises:
        ValueError: If the scale has no report yet.
    """
    scale_dir, reports_dir = Path(scale_dir), Path(reports_dir)
    if not (scale_dir / "index.html").exists():
        raise ValueError(f"{scale_dir.name} has no report: run `snakemake report` first")
    for page in sorted(scale_dir.glob("*/index.html")):
        target = reports_dir / page.parent.name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(page.parent, target)
    for name in ("index.html", "README.md"):
        shutil.copyfile(scale_dir / name, reports_dir / name)
    return reports_dir / "index.html"
