"""Pages: complete, self-contained, linked, and honest about what is missing."""

import html.parser
import re

import pytest

from experiments.analysis import claims, figures, records, tables
from experiments.report import render
from tests.experiments.analysis import synthetic

VOID = {"meta", "link", "br", "input"}


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
    """A report of a study with two missing runs."""
    root = tmp_path_factory.mktemp("site")
    made = synthetic.make(records.make_record)
    study = synthetic.study(made, figures=["perplexity_by_method", "granet_vs_rigl", "schedules"])
    study["runs"][0]["spec"]["note"] = "<b>&"
    for record in made[2:]:
        records.write_record(record, root / "runs" / record["run"] / "record.json")
    files = [root / "runs" / run["id"] / "record.json" for run in study["runs"]]
    results = root / "results" / study["name"]
    path = records.collect(files, study, results / "records.csv")
    table, curves = records.read_records(path), records.read_curves(results / "curves.csv")
    claims.write(table, study, results / "claims.csv")
    page = root / "reports" / "quick" / study["name"]
    for name in study["tables"]:
        tables.write(name, table, curves, study, page / "tables")
    for name in study["figures"][:2]:
        figures.write(name, table, curves, study, page / "figures")
    render.render_study(
        study, path, results / "curves.csv", root / "runs", page / "figures", page / "tables",
        results / "claims.csv", page,
    )  # fmt: skip
    render.render_index([study], "quick", root / "results", root / "reports" / "quick")
    render.publish(root / "reports" / "quick", root / "reports")
    return root / "reports", study


def pages(site):
    return sorted(site[0].rglob("index.html"))


def test_pages_load_nothing_and_every_link_resolves(site):
    for path in pages(site):
        page = Page(path.read_text())
        assert page.stack == []
        assert [load for load in page.loads if load != "data:,"] == []
        assert len(page.ids) == len(set(page.ids))
        for link in page.links:
            target, _, fragment = link.partition("#")
            if target:
                assert (path.parent / target).exists(), link
            else:
                assert fragment in page.ids, link


def test_missing_runs_and_figures_are_said(site):
    reports, study = site
    for name in ("index.html", "README.md"):
        text = (reports / "quick" / study["name"] / name).read_text()
        assert "2 runs are missing" in text
        assert study["runs"][0]["id"] in text
        assert "This figure has not been drawn yet." in text


def test_verdicts_are_words(site):
    text = (site[0] / "index.html").read_text()
    for word in ("holds", "contradicted", "inconclusive", "not tested"):
        assert word in text


def test_specs_are_escaped(site):
    text = (site[0] / "quick" / site[1]["name"] / "index.html").read_text()
    assert "<b>&" not in text


def test_figures_follow_the_theme(site):
    text = (site[0] / "quick" / site[1]["name"] / "index.html").read_text()
    svg = text[text.index("<svg") : text.rindex("</svg>")]
    assert "currentColor" in svg and "#1b1f24" not in svg
    assert not re.search(r"url\(#(?!perplexity_by_method-|granet_vs_rigl)", svg)


def test_markdown_tables_have_equal_columns(site):
    text = (site[0] / "quick" / site[1]["name"] / "README.md").read_text()
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
        ("a", "x", "a"),
    ],
)
def test_cells(value, column, text):
    assert render.format_cell(value, column) == text
