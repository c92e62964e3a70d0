"""A small site from synthetic records: a study with missing runs, one of trials, one computed."""

import pandas as pd

from experiments.analysis import figures, tables
from experiments.analysis.claims import ledger as claims
from experiments.report import render
from experiments.specs.run import Run
from experiments.store import tidy
from experiments.store.collect import write_tables
from experiments.store.record import make_record
from tests.experiments.analysis import synthetic
from tests.experiments.specs.edit import edited

DRAWN = ["loss_curves", "perplexity_by_method"]
COMPUTED = pd.DataFrame({"speed-up (simulated)": [1.98, 9.1], "speed-up (published)": [2.0, None]})


def collect_study(root, study, made):
    """Write a study's results, tables and figures, and render its page."""
    results = root / "results" / "quick" / study.name
    write_tables(made, study, results)
    table = tidy.read_records(results / "records.csv")
    curves = tidy.read_curves(results / "curves.csv")
    claims.write(table, study, results / "claims.csv")
    page = root / "reports" / "quick" / study.name
    for name in study.tables:
        if name == "cs2_overhead":
            (page / "tables").mkdir(parents=True)
            COMPUTED.to_csv(page / "tables" / f"{name}.csv", index=False)
        else:
            tables.write(name, table, curves, study, page / "tables")
    for name in set(study.figures) & set(DRAWN):
        figures.write(name, table, curves, study, page / "figures")
    render.render_study(
        study, table, curves, made, page / "figures",
        page / "tables", results / "claims.csv", page,
    )  # fmt: skip


def make_site(root):
    """Render and publish the site under ``root``.

    Returns:
        The folder of the reports, and the study whose first two runs are missing; its figure
        ``schedules`` has not been drawn.
    """
    made = synthetic.make(make_record)
    main = synthetic.study(made, figures=[*DRAWN, "schedules"], trials=False)
    first, *others = main.runs
    marked = Run(edited(first.spec, lambda spec: spec.update(suite="<b>&")))
    main = main.changed(runs=(marked, *others))
    collect_study(root, main, made[2:])
    # Its name comes first in the alphabet, so its place shows that trials go last.
    trials = synthetic.study(made[2:5], name="a_tuning", figures=[], tables=["runs"], trials=True)
    collect_study(root, trials, made[2:5])
    computed = synthetic.study(
        [], name="device", figures=[], tables=["cs2_overhead"], claims={},
        computations=[{"name": "device"}],
    )  # fmt: skip
    collect_study(root, computed, [])
    render.render_index(
        [trials, main, computed], "quick", root / "results" / "quick", root / "reports" / "quick"
    )
    render.publish(root / "reports" / "quick", root / "reports")
    return root / "reports", main
