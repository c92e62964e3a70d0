"""Pages: complete, self-contained, linked, and honest about what is missing."""

import html.parser
import re
import shutil

import pandas as pd
import pytest

from experiments.analysis import tables
from experiments.analysis.claims import ledger as claims
from experiments.report import provenance, render, summary
from experiments.report import text as words
from experiments.specs.lookup import rerun_command
from experiments.specs.run import FirstPhase
from experiments.store import parquet, paths, tidy
from experiments.store.collect import curves_table, records_table
from experiments.store.record import Flops, Record, make_record, read_record
from tests.experiments.analysis import synthetic
from tests.experiments.report.example import DRAWN, collect_study, make_site

VOID = {"meta", "link", "br", "img"}


class Page(html.parser.HTMLParser):
    """Collects ids, links and what the page would load; checks that tags close."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.loads, self.stack = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if "id" in attrs:
            self.ids.append(attrs["id"])
        if tag == "a":
            self.links.append(attrs["href"])
        if tag in ("script", "img", "iframe", "object") or tag == "link":
            self.loads.append(attrs.get("src") or attrs.get("href") or tag)
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Folder of the reports, and the study with two missing runs."""
    return make_site(tmp_path_factory.mktemp("site"))


def pages(site):
    return sorted(site[0].rglob("index.html"))


def test_pages_load_nothing_and_every_link_resolves(site):
    read = {path.resolve(): Page(path.read_text()) for path in pages(site)}
    ids = {path: set(page.ids) for path, page in read.items()}
    for path, page in read.items():
        assert page.stack == []
        assert [load for load in page.loads if load != "data:,"] == []
        assert len(page.ids) == len(set(page.ids))
        for link in page.links:
            target, _, fragment = link.partition("#")
            if target:
                assert (path.parent / target).exists(), link
            if fragment:
                assert fragment in ids[(path.parent / target).resolve() if target else path], link


def test_missing_runs_and_figures_are_said(site):
    reports, study = site
    for name in ("index.html", "README.md"):
        text = (reports / "quick" / study.name / name).read_text()
        assert "2 runs are missing" in text
        assert study.runs[0].id in text
        assert "This figure has not been drawn yet." in text


def test_methods_without_a_finished_run_are_named_after_the_description(tmp_path):
    """RigL has none of its three runs, GraNet one: only RigL is named."""
    made = synthetic.make(make_record)
    study = synthetic.study(made, figures=[], tables=["runs"])
    finished = [
        record for record in made
        if "__rigl" not in record["run"]
        and ("__granet" not in record["run"] or record["run"].endswith("seed1"))
    ]  # fmt: skip
    said = "Planned, without a finished run yet: RigL 80% (0 of 3)."
    collect_study(tmp_path / "some", study, finished)
    collect_study(tmp_path / "all", study, made)
    for name in ("index.html", "README.md"):
        some, whole = (
            (tmp_path / which / "reports/quick" / study.name / name).read_text()
            for which in ("some", "all")
        )
        assert said in some and some.index(study.description) < some.index(said)
        assert some.index(said) < some.index("runs finished")
        assert "Planned, without" not in whole


def test_a_figure_without_data_stands_for_no_study(site, tmp_path):
    reports, study = site
    folder = shutil.copytree(reports / "quick" / study.name / "figures", tmp_path / "figures")
    first = render._pictures(study, folder)[0]["name"]
    data = folder / f"{first}.csv"
    data.write_text("run,value\nr,1\n")
    assert render._pictures(study, folder)[0]["name"] == first
    data.write_text("run,value\n")
    assert first not in [picture["name"] for picture in render._pictures(study, folder)]


def test_verdicts_are_words(site):
    text = (site[0] / "index.html").read_text()
    for word in ("holds", "contradicted", "inconclusive", "not tested"):
        assert word in text


def test_specs_are_escaped(site):
    text = (site[0] / "quick" / site[1].name / "index.html").read_text()
    assert "<b>&" not in text and "&lt;b&gt;&amp;" in text


def test_pictures_lie_beside_the_page(site):
    folder = site[0] / "quick" / site[1].name
    loads = Page((folder / "index.html").read_text()).loads
    pictures = [folder / name for name in loads if name.endswith(".png")]
    assert len(pictures) == len(site[1].figures)
    assert {*DRAWN} == {
        (folder / picture).stem for picture in pictures if (folder / picture).is_file()
    }
    assert (folder / "index.html").stat().st_size < 200_000


def test_only_markdown_and_pictures_are_published(site):
    published = [
        path for path in site[0].rglob("*") if "quick" not in path.parts and path.is_file()
    ]
    assert {path.suffix for path in published} == {".md", ".png"}


def test_markdown_tables_have_equal_columns(site):
    text = (site[0] / "quick" / site[1].name / "README.md").read_text()
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1, block[:200]


def test_nothing_names_the_machine(site, tmp_path):
    for path in site[0].rglob("*"):
        if path.suffix in (".html", ".md", ".csv", ".svg"):
            assert str(tmp_path.parent.parent) not in path.read_text()


def test_publish_needs_a_report(tmp_path):
    with pytest.raises(ValueError, match="has no report"):
        render.publish(tmp_path / "quick", tmp_path)


@pytest.mark.parametrize(
    ("value", "column", "text"),
    [
        (float("nan"), "x", "–"),
        (0.8, "sparsity", "80%"),
        (0.0001, "p", "< 0.001"),
        (1234567.0, "x", "1,234,567"),
        (1.25e12, "x", "1.250e12"),
        (12.3456, "x", "12.35"),
        (-2.8e-17, "x", "0"),
        ("a", "x", "a"),
    ],
)
def test_cells(value, column, text):
    assert words.format_cell(value, column) == text


def index(site, name="index.html"):
    return (site[0] / "quick" / name).read_text()


def test_trials_are_labelled_and_come_last(site):
    text = index(site)
    studies = text[text.index('id="studies"') : text.index('id="contradicted"')]
    names = re.findall(r'<a href="(\w+)/index.html">', studies)
    assert names == ["device", site[1].name, "a_tuning"]
    twin = index(site, "README.md")
    for name in names:
        page = (site[0] / "quick" / name / "index.html").read_text()
        is_trials = name == "a_tuning"
        assert ("Tuning trials" in page) == is_trials
        assert ('id="claims"' in page) != is_trials
    assert "Tuning trials" in studies and "Tuning trials" in twin
    # The only ledger that names runs is that of the main study.
    table = pd.read_csv(site[0] / "quick" / "commands.csv")
    assert set(table[table["table"] == "claims"]["study"]) == {site[1].name}


def test_the_front_page_counts_verdicts_and_cost(site):
    ledger = claims.read(site[0].parent / "results/quick" / site[1].name / "claims.csv")
    text = index(site)
    for word in summary.ORDER:
        number = (ledger["verdict"] == word).sum()
        tile = rf'<li><b>{number}</b> <span class="verdict {word.replace(" ", "-")}">{word}</span>'
        assert re.search(tile, text), word
    # Each took 12 s of training and 3 s of evaluation on one thread; the trials are shared runs.
    assert "16 of 18 runs finished" in text
    assert f"{words.in_words(16 * 12 / 3600)} core-hours of training" in text
    assert f"{words.in_words(16 * 3 / 3600)} of evaluation" in text


def test_the_front_page_begins_with_what_was_found(site):
    ledger = claims.read(site[0].parent / "results/quick" / site[1].name / "claims.csv")
    trained = ledger[~ledger["role"].isin(claims.UNTRAINED)]
    expected = {
        "for": [*trained[trained["verdict"] == "holds"]["id"]]
        + [*trained[trained["verdict"] == "suggests"]["id"]],
        "against": [*ledger[ledger["verdict"] == "contradicted"]["id"]]
        + [*ledger[ledger["verdict"] == "suggests against"]["id"]],
    }
    text = index(site)
    begins = [text.index(f'id="{name}"') for name in ("verdicts", "found-for", "found-against")]
    begins += [text.index('id="pictures"'), text.index('id="negative"')]
    assert begins == sorted(begins)
    for name, start in (("for", begins[1]), ("against", begins[2])):
        part = text[start : begins[2] if name == "for" else begins[3]]
        lines = re.findall(r"<li>.*</li>", part)
        assert [re.search(r">(C\d+)</a>", line).group(1) for line in lines] == expected[name]
        for line, claim in zip(lines, expected[name], strict=True):
            row = ledger.set_index("id").loc[claim]
            assert words.format_cell(row["effect"]) in line
            assert f"95% {row['interval']}" in line
            assert f"({row['means']})" in line
            assert f'href="{site[1].name}/index.html#claim-{claim}"' in line
    twin = index(site, "README.md")
    assert (
        twin.index("## Verdicts") < twin.index("### Claims that hold") < twin.index("## Pictures")
    )


def test_what_is_computed_is_listed_only_where_it_contradicts():
    rows = [
        {"id": "C1", "role": "exact", "verdict": "holds"},
        {"id": "C2", "role": "exact", "verdict": "contradicted"},
        {"id": "C3", "role": "primary", "verdict": "holds"},
    ]
    groups = {word: [row for row in rows if row["verdict"] == word] for word in summary.ORDER}
    found = [[row["id"] for row in part["rows"]] for part in render._found(groups)]
    assert found == [["C3"], ["C2"]]


def test_pictures_of_unfinished_studies_come_last_with_their_runs(tmp_path):
    """Of a study whose name is first in the alphabet 16 of 18 runs are there, of another all."""
    made = synthetic.make(make_record)
    some = synthetic.study(made, name="a_part", figures=[*DRAWN], tables=[])
    whole = synthetic.study(made, name="b_whole", figures=[*DRAWN], tables=[])
    collect_study(tmp_path, some, made[2:])
    collect_study(tmp_path, whole, made)
    out = tmp_path / "reports" / "quick"
    render.render_index([some, whole], "quick", tmp_path / "results" / "quick", out)
    for name in ("index.html", "README.md"):
        text = (out / name).read_text()
        start = text.index("Pictures")
        pictures = text[start : text.index("Negative results", start)]
        assert 0 < pictures.index("b_whole") < pictures.index("a_part")
        assert pictures.count("16 of 18 runs") == pictures.count(" runs)") == 1


def test_cost_counts_a_shared_run_once():
    (made, *_) = synthetic.make(make_record, seeds=1)
    record = Record.model_validate({
        **made, "run": "a", "wall_s": 1800.0, "num_threads": 2, "num_parameters": 10, "cpu": "B",
        "machine": None,
        "flops": {"executed": 3.0, "dense_equivalent": 5.0}, "evaluation": {"wall_s": 900.0},
        "curve": [{"kind": "train", "step": 1, "tokens": 7}],
    })  # fmt: skip
    other = record.model_copy(update={"run": "b", "num_parameters": 4})
    cost = summary.cost([record, record, other])
    (hours,) = cost["machines"].values()
    assert (cost["runs"], hours["training"], hours["evaluation"]) == (2, 2.0, 1.0)
    assert (cost["executed"], cost["dense"]) == (6.0, 10.0)
    assert (cost["parameters"], cost["tokens"]) == ((4, 10), 7)
    assert cost["images"] is None


def test_cost_counts_shared_steps_once():
    """Trunk of 100 steps; runs to 50 and 90 steps from its steps 40 and 60; one second phase."""
    (made, *_) = synthetic.make(make_record, seeds=1)
    record = Record.model_validate({**made, "machine": None, "num_threads": 1, "evaluation": None})
    first = {"run": "trunk", "spec_hash": "0", "densify": False}

    def run(name, steps, wall_s, executed, curve, borrowed_s=0.0, start=None):
        spec = record.spec.model_copy(update={
            "recipe": record.spec.recipe.model_copy(update={"steps": steps}),
            "starts_from": None if start is None else FirstPhase(**first, step=start or None),
        })  # fmt: skip
        rows = [{"kind": "train", "step": s, "flops_executed": f} for s, f in curve]
        changes = {"run": name, "spec": spec, "wall_s": wall_s, "borrowed_s": borrowed_s}
        flops = Flops(executed=executed, dense_equivalent=20 * steps)
        return record.model_copy(update={**changes, "flops": flops, "curve": tuple(rows)})

    trunk = run("trunk", 100, 360.0, 1000, [(100, 1000)])
    # Logged between steps that are not the one it continues: 175 + (475 - 175) * 30 / 40 = 400.
    short = run("a", 50, 180.0, 480, [(10, 175), (50, 475)], 144.0, 40)
    long = run("b", 90, 324.0, 840, [(60, 600), (90, 840)], 216.0, 60)
    # Another kind of training, whose record holds its own steps alone.
    second = run("c", 10, 36.0, 77, [(10, 77)], 0.0, 0)
    assert short.shared_flops().executed == 400 and second.shared_flops().executed == 0

    def cost(*records):
        found = summary.cost(records)
        (hours,) = found["machines"].values()
        own = found["continued"], found["executed"], found["dense"]
        return *own, pytest.approx(hours["training"])

    assert cost(trunk, short, long, second) == (
        2, 1000 + 80 + 240 + 77, 20 * (100 + 10 + 30 + 10), (360 + 36 + 108 + 36) / 3600
    )  # fmt: skip
    # Without the trunk's record the later one of both counts what they share.
    assert cost(short, long) == (1, 840 + 80, 20 * (90 + 10), (324 + 36) / 3600)
    assert cost(short) == (0, 480, 20 * 50, 180 / 3600)


def test_the_cost_of_committed_runs_is_that_of_the_steps_that_were_trained():
    folder = paths.REFERENCE_RUNS
    for method in ("dense", "static-75-s0.75"):
        name = f"small__bytes-64__{method}__enwiki-slice-v257__*__seed0.json"
        records = [read_record(path) for path in sorted(folder.glob(name))]
        runs = [record for record in records if record.spec.recipe.stable is not None]
        steps = sum(
            record.spec.recipe.steps - (start.step if start else 0)
            for record in runs
            for start in [record.spec.starts_from]
        )
        flops = runs[0].flops
        found = summary.cost(runs)
        assert found["continued"] == len(runs) - 1 > 2
        assert found["dense"] == pytest.approx(steps * flops.dense_step, rel=1e-9)
        share = flops.executed / flops.dense_equivalent  # fixed masks: each step costs as much
        assert found["executed"] == pytest.approx(share * found["dense"], rel=1e-6)
        text = render.environment(html=False).get_template("parts.md.j2").module.shared(found)
        assert f"{len(runs) - 1} of these runs continue the state of another one" in text


def ledger(*rows):
    columns = ["id", "role", "verdict", "concerns"]
    table = pd.DataFrame(rows, columns=columns, dtype="string")
    return table.assign(statement="s", runs="", num_seeds=0)


def test_merged_ledger_takes_the_study_with_most_to_say():
    merged = summary.merge_ledgers(
        {
            "one": ledger(("C1", "", "not tested", ""), ("C2", "exploratory", "holds", "")),
            "two": ledger(("C1", "exact", "holds", ""), ("C2", "primary", "inconclusive", "")),
            "three": ledger(("C1", "primary", "not tested", ""), ("C3", "", "not tested", "")),
        }
    )
    chosen = {row.id: (row.study, row.verdict) for row in merged.itertuples()}
    assert chosen == {
        "C1": ("two", "holds"),
        "C2": ("two", "inconclusive"),
        "C3": ("three", "not tested"),
    }


def test_what_is_computed_never_counts_as_evidence_from_training():
    table = ledger(
        ("C1", "measured", "holds", ""),
        ("C2", "exact", "contradicted", ""),
        ("C3", "primary", "holds", ""),
        ("C4", "primary", "not tested", ""),
        ("C5", "exploratory", "inconclusive", ""),
    ).assign(num_seeds=[0, 0, 5, 0, 2])
    counts = {
        row["verdict"]: (row["trained"], row["computed"]) for row in summary.verdict_counts(table)
    }
    assert counts["holds"] == (1, 1) and counts["contradicted"] == (0, 1)
    assert counts["inconclusive"] == (1, 0) and counts["not tested"] == (0, 0)
    assert summary.outcome(table) == (
        "Of 3 claims for trained models at this scale: 2 judged (1 inconclusive, 1 hold), "
        "1 not tested. Of 2 claims for computing: 1 contradicted, 1 hold."
    )


def test_the_outcome_counts_every_claim_once():
    table = ledger(
        *[(f"C{n}", "exploratory", "holds", "") for n in range(3)],
        ("C4", claims.OPEN, "open question", ""),
        ("C5", "primary", "not tested", ""),
        ("C6", "exact", "not tested", ""),
        ("C7", "exact", "holds", ""),
        ("C8", "", "not tested", ""),
    )
    assert summary.outcome(table) == (
        "Of 5 claims for trained models at this scale: 3 judged (3 hold), 1 open question, "
        "1 not tested. Of 2 claims for computing: 1 hold, 1 not tested. "
        "1 claim is tested by no study of this scale."
    )
    nothing = table[table["verdict"] == "not tested"]
    assert summary.outcome(nothing).startswith("No claim about trained models has been tested")


def test_open_questions_have_no_counts_of_judged_claims(site):
    (tile,) = re.findall(r'<li><b>\d+</b> <span class="verdict open-question">.*</li>', index(site))
    assert "by training" not in tile and "by computing" not in tile


def test_counter_evidence_stands_beside_its_claim():
    rows = ledger(("C1", "primary", "holds", ""), ("C2", "", "not tested", "C1 C9")).to_dict(
        "records"
    )
    rows[1]["statement"] = "COUNTER-EVIDENCE: it is not"
    first, second = render.with_counter_evidence(rows)
    assert [row["id"] for row in first["counter"]] == ["C2"] and second["counter"] == []
    assert second["statement"] == "it is not"


def test_every_measured_number_links_to_the_runs_behind_it(site):
    text = (site[0] / "quick" / site[1].name / "index.html").read_text()
    table = text[text.index('id="table-perplexity"') : text.index('id="table-flops"')]
    row = re.search(r"<tr>.{0,200}RigL.*?</tr>", table, re.DOTALL).group()
    numbers = re.findall(r'<td class="number">(.*?)</td>', row)
    links = {
        re.search(r'href="#(behind-\d+)"', cell).group(1) for cell in numbers if "%" not in cell
    }
    assert len(links) == 1
    group = text[text.index(f'<details id="{links.pop()}">') :]
    group = group[: group.index("</details>")]
    runs = [run.id for run in site[1].runs if run.spec.method == "rigl"]
    assert rerun_command(runs) in group
    assert re.findall(r'href="#(run-[^"]+)"', group) == [words.anchor(run) for run in runs]


def test_commands_name_the_runs_of_each_row(site):
    table = pd.read_csv(site[0] / "quick" / "commands.csv", keep_default_na=False)
    row = table[(table["table"] == "perplexity") & (table["row"].str.contains("RigL 80%"))]
    runs = [run.id for run in site[1].runs if run.spec.method == "rigl"]
    assert row["command"].tolist() == [rerun_command(runs)]
    computed = table[table["study"] == "device"]["command"].unique()
    assert computed == ["snakemake reproduce --forcerun compute --config scale=quick study=device"]
    lines = list(provenance.listing(table))
    commands = [line.strip() for line in lines if "snakemake" in line]
    assert len(commands) == len(table[["study", "command"]].drop_duplicates())


def test_chance_is_said_in_words(site, tmp_path):
    scores = ["not distinguishable from chance", "above chance", "not distinguishable from chance"]
    pd.DataFrame({"score": [0.5, 0.9, 0.51], summary.CHANCE: scores}).to_csv(
        tmp_path / "lm_eval.csv", index=False
    )
    assert summary.chance_scores(tmp_path) == {"table": "lm_eval", "scores": 3, "lost": 2}
    assert summary.chance_scores(site[0] / "quick" / "device" / "tables") is None


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.0761, "0.0761"), (230208, "230 thousand"), (2.5e9, "2.5 billion"), (3.78e12, "3.78e12")],
)
def test_amounts_in_words(number, text):
    assert words.in_words(number) == text


def page_of(tmp_path, study, made, empty=(), **columns):
    """The page of a study whose records have some columns changed."""
    table = records_table(made, study).assign(**columns)
    table.to_csv(tmp_path / "records.csv", index=False)
    curves_table(made).to_csv(tmp_path / "curves.csv", index=False)
    curves = tidy.read_curves(tmp_path / "curves.csv")
    for name in study.tables:
        tables.write(name, table, curves, study, tmp_path / "tables")
    claims.write(table, study, tmp_path / "claims.csv")
    folders = [tmp_path / name for name in ("figures", "tables")]
    records = tidy.read_records(tmp_path / "records.csv")
    page = render.render_study(
        study,
        records,
        curves,
        made,
        *folders,
        tmp_path / "claims.csv",
        tmp_path / "page",
        empty=empty,
    )
    return page.read_text()


def test_an_own_study_shows_nothing_about_published_claims(tmp_path):
    made = synthetic.make(make_record, seeds=1)
    own = {
        "name": "mine",
        "source": "an idea",
        "claims": {},
        "figures": [],
        "tables": ["perplexity"],
    }
    text = page_of(tmp_path, synthetic.study(made, **own), made)
    assert "(published)" not in text and 'id="claims"' not in text and "not tested" not in text
    assert "mask sparsity" in text


def test_committed_records_are_marked_beside_the_numbers(tmp_path):
    made = synthetic.make(make_record, seeds=2)
    study = synthetic.study(made, figures=[], tables=["perplexity"])
    runs = records_table(made, study)["run"]
    kept = runs.str.contains("__dense__") | runs.str.endswith("seed0")
    text = page_of(tmp_path, study, made, committed=kept)
    assert "2 runs, committed" in text and "2 runs, 1 committed" in text
    assert text.count("record: committed, not made here") == runs[kept].nunique()
    assert "measured here" not in text
    assert "committed" not in page_of(tmp_path, study, made)


def test_only_studies_with_a_finished_run_have_a_picture_on_the_front_page(tmp_path):
    made = synthetic.make(make_record)
    started, waiting = (
        synthetic.study(made, name=name, figures=["loss_curves"], tables=[], trials=False)
        for name in ("started", "waiting")
    )
    results, reports = tmp_path / "results" / "quick", tmp_path / "reports" / "quick"
    for study in (started, waiting):
        collect_study(tmp_path, study, made)
    parquet.write([], results / "waiting")
    render.render_index([started, waiting], "quick", results, reports)
    text = (reports / "README.md").read_text()
    assert "started/figures/loss_curves.png" in text and "waiting/figures" not in text


def test_a_figure_without_data_says_so_on_its_page(tmp_path):
    made = synthetic.make(make_record, seeds=1)
    own = {"figures": ["loss_curves", "churn_itop"], "tables": ["perplexity"]}
    text = page_of(tmp_path, synthetic.study(made, **own), made, ["churn_itop"])
    drawn, waiting = text.split('id="figure-loss_curves"')[1].split('id="figure-churn_itop"')
    said = "There are no data for this figure yet"
    assert said not in drawn and said in waiting
    assert (tmp_path / "page" / "README.md").read_text().count(said) == 1
