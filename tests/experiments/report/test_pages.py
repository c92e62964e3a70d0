"""Pages from findings: what they say, and what they refuse."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest

from experiments.analysis import figures, tables
from experiments.findings.claim import nine
from experiments.findings.estimate import Estimate, Word
from experiments.findings.evidence import gather
from experiments.findings.ledger import Finding
from experiments.report import cards, render
from experiments.specs.lookup import planned_study
from experiments.specs.schema import Answer, SpecError
from experiments.store import paths
from tests.experiments.analysis import kept
from tests.experiments.report.example import make_site


def finding(word: str, size: str = "") -> Finding:
    claim = nine()[0]
    return Finding(claim, claim, Word(word, size))


def study(when: str):
    own = planned_study("sparsity_library", "smoke")
    return own.model_copy(
        update={"answer": {"smoke": Answer(text="It is {set}.", when={"set": when})}}
    )


def test_answer_is_short_and_replaced_or_refused_when_it_no_longer_holds():
    found = {"set": finding("same direction", "smaller")}
    assert render.answer(study("same direction, smaller"), found) == "It is –."
    found = {"set": finding("opposite")}
    said = render.answer(study("same direction"), found)
    assert "It is" not in said and "opposite" in said
    with pytest.raises(SpecError, match="set is opposite, not same direction"):
        render.answer(study("same direction"), found, strict=True)
    with pytest.raises(ValueError, match="61 words, but at most 60"):
        Answer(text="word " * 61)


@pytest.mark.parametrize(
    "mine, said",
    [
        ((-0.02, -0.03, -0.01), "yes, by direction"),
        ((0.02, 0.01, 0.03), "no"),
        ((-0.02, -0.05, 0.01), "not resolved"),
    ],
)
def test_a_result_agrees_with_the_reference_only_where_its_interval_excludes_zero(mine, said):
    claim = nine()[0]
    own = Estimate(*mine, 0.01, 0.01, (3, 3), (3.0, 3.0), 0.5, None)
    found = Finding(claim, claim, Word("own word"), estimate=own)
    kept = {"word": "their word", "effect": -0.01, "low": -0.02, "high": -0.005}
    assert cards.agreement(found, kept) == said
    assert cards.agreement(finding("no fair test"), kept) == "–"


@pytest.mark.parametrize("kind", [figures, tables])
def test_caption_has_at_most_forty_words(kind):
    words = {name: len(kind.load(name).__doc__.split()) for name in kind.names()}
    assert words
    assert {name: count for name, count in words.items() if count > 40} == {}


def test_pages_have_regions_and_links_and_tables_what_is_known():
    page = "# Title\n\n| a | b |\n|---|---|\n| 1 | [x](other/README.md#y) |\n\n![alt](p.png)\n"
    html = render.to_html(page)
    assert "<title>Title</title>" in html
    assert html.count('tabindex="0"') == 2
    assert 'href="other/index.html#y"' in html
    assert 'alt="alt"' in html
    assert (cards.number(-0.0117, 3), cards.number(float("nan"), 2)) == ("−0.012", "–")
    made = cards.table(["a", "b", "c"], [["1", "–", "3"], ["4", "–", "–"]])
    assert "b" not in made.splitlines()[0]
    assert made.splitlines()[2] == "| 1 | 3 |"


@pytest.mark.parametrize(
    "first, shortest, whole",
    [
        ("", "One run, 1 minute", "All 3 runs, 26 minutes of one core"),
        ("d", "One run, 16 minutes",  # all start from one run of 900 s
         "All 3 runs and the runs they start from, 41 minutes of one core"),
    ],
)  # fmt: skip
def test_a_card_of_long_runs_offers_the_shortest(first, shortest, whole):
    times = pd.Series({"a": 1200.0, "b": 60.0, "c": 300.0, "d": 900.0})
    evidence = SimpleNamespace(
        scale="small",
        runs=pd.DataFrame({"run": list("abc"), "first": first, "method": "m"}),
        of_runs=lambda metric, runs: times.reindex(list(runs)),
    )
    made = cards.card(replace(finding("opposite"), a=("m",), runs=("a", "b", "c")), evidence, {})
    assert made["commands"][0] == (shortest, "snakemake verify --config run=b")
    assert made["commands"][1][0] == whole


def test_a_card_without_runs_has_no_line_on_their_size():
    found, evidence = finding("no fair test"), gather([study("opposite")], [])
    assert "{weights}" in found.claim.card.differs
    assert cards.card(found, evidence, {})["differs"] == ""


def test_a_site_says_what_was_trained_again_and_is_published_without_a_dead_link(
    tmp_path, monkeypatch
):
    run = kept.make(seeds=1)[0]["run"]
    monkeypatch.setattr(paths, "REFERENCE", tmp_path)
    (tmp_path / "verified.csv").write_text(f"run,machine,verdict\n{run},a,same bits\n")
    front, *_, study = make_site(tmp_path / "small")
    page = study.with_name("README.md").read_text()
    assert "| trained again |" in page
    assert "runs, on 1 kind of machine: as recorded |" in page
    out = tmp_path / "reports"
    out.mkdir()
    assert render.publish(front.parent, out) == out / "README.md"
    for page in (out / "index.html", out / "claims.html"):
        links = re.findall(r'(?:href|src)="([^"#:]+)["#]', page.read_text())
        assert [link for link in links if not (out / link).is_file()] == []
        assert links
