"""A small site from committed records: the front page, the supporting claims, and one study."""

from experiments.analysis import figures, tables
from experiments.findings.evidence import gather
from experiments.report import render
from experiments.store.collect import curves_table, records_table
from tests.experiments.analysis import kept


def make_site(root):
    """Render the site under ``root``; returns its pages, the front page first."""
    made = kept.make()
    study = kept.study(
        made, figures=["loss_curves", "granet_vs_rigl"], tables=["perplexity", "flops", "runs"]
    )
    records, curves = records_table(made, study), curves_table(made)
    page = root / study.name
    for name in study.tables:
        tables.write(name, records, curves, study, page / "tables")
    for name in study.figures:
        figures.write(name, records, curves, study, page / "figures")
    evidence = gather([study], [records])
    own = render.render_study(study, records, made, evidence, page)
    front = render.render_index([study], evidence, root / "results", root)
    return [front, root / "claims.html", own]
