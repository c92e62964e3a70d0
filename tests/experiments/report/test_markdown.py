"""The Markdown twin shows values as they are, by the word of a Markdown parser."""

import html
import re
from types import SimpleNamespace

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from experiments.report import render, text

PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
HOSTILE = [
    "a|b", "|", "<script>alert(1)</script>", "<b>x</b>", "[x](http://evil)", "![x](y)", "`code`",
    "``", "a`b", "*x*", "**x**", "_x_", "__x__", "a_b_c", "~~x~~", "# x", "1. x", "- x", "+ x",
    "> x", "---", "===", "&lt;", "&amp;", "&#60;", "\\", "a\\|b", "\\`x\\`", "x\ny",
    "x\r\n\r\n# y", "[a]: http://e", "<http://evil>", "<!-- x -->", "a  b", "x\u2028# y", "$x$",
    "-0.5", "80%", "loss (nats)", "[1, 2]",
]  # fmt: skip


def shown(markup: str) -> str:
    """What a reader sees of HTML: its text, without tags, which must be those of a paragraph."""
    assert set(re.findall(r"</?(\w+)", markup)) <= {"p"}, markup
    return html.unescape(re.sub(r"</?p>", "", markup)).strip()


def on_one_line(value: str) -> str:
    return re.sub(r"\s*[\r\n\v\f\x85\u2028\u2029]\s*", " ", value).strip()


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize(("before", "after"), [("", ""), ("of ", " it"), ("", " it"), ("(", ")")])
def test_a_value_reads_as_it_is(value, before, after):
    page = PARSER.render(f"{before}{text.markdown(value)}{after}")
    assert shown(page) == f"{before}{on_one_line(value)}{after}".strip()


@settings(max_examples=300, derandomize=True, database=None, deadline=None)
@given(st.text(st.sampled_from("ab1 \n\\`*_[]()<>|~$#-+.=&;!:\"'"), max_size=12))
def test_any_text_reads_as_it_is(value):
    page = shown(PARSER.render(f"x{text.markdown(value)}x"))
    assert re.sub(r"\s+", " ", page) == re.sub(r"\s+", " ", f"x{on_one_line(f'x{value}x')[1:-1]}x")


@pytest.mark.parametrize("value", [value for value in HOSTILE if "\n" not in value])
def test_code_reads_as_it_is(value):
    page = PARSER.render(f"run {text.markdown_code(value)} again")
    found = re.fullmatch(r"<p>run <code>(.*)</code> again</p>\s*", page, re.DOTALL)
    assert found is not None and html.unescape(found[1]) == " ".join(value.split())


@pytest.mark.parametrize("value", HOSTILE)
def test_a_cell_stays_one_cell(value):
    page = PARSER.render(f"| a | b |\n|---|---|\n| {text.markdown_cell(value)} | end |\n")
    cells = re.findall(r"<td>(.*?)</td>", page, re.DOTALL)
    assert len(cells) == 2 and cells[1] == "end"
    read = html.unescape(re.sub(r"<br>|&lt;br&gt;", "\n", cells[0])).replace("\xa0", " ")
    assert [line.strip() for line in read.split()] == value.replace("\u2028", "\n").split()
    assert not set(re.findall(r"<(\w+)", cells[0])) - {"br"}


def test_titles_labels_and_cells_of_a_page_are_escaped():
    evil = "a|b <b>[x](y) `c` *d* # e"
    cost = dict.fromkeys(("runs", "training", "evaluation", "executed"), 1.0)
    table = {"name": "t", "title": evil, "caption": evil, "missing": False, "numeric": []}
    table |= {"columns": [evil, "method"], "rows": [{evil: evil, "method": "m"}]}
    page = render.environment(html=False).get_template("study.md.j2").render(
        study={"title": evil, "name": "s", "scale": "quick", "source": evil, "description": evil,
               "runs": []},
        trials=False, sourced=False, missing=[], unfinished={evil: 2}, committed=[], cost=cost,
        behind=[],
        look=lambda method: SimpleNamespace(name=evil),
        figures=[{"title": evil, "name": "f", "caption": evil, "empty": False}],
        tables=[table], figures_path="figures", tables_path="tables",
    )  # fmt: skip
    read = PARSER.render(page)
    assert re.findall(r"<(?:b|script|em)>[^<]*", read) == ["<em>(published)"]
    assert set(re.findall(r"<code>(.*?)</code>", read)) == {"s"}
    assert f"<h1>{html.escape(evil, quote=False)}</h1>" in read
    assert read.count("<td>") == 2 and read.count("<th>") == 2
    links = set(re.findall(r'href="(.*?)"', read))
    assert links == {"../README.md"}
    assert html.unescape(re.sub(r"<[^>]*>", "", read)).count(evil) >= 8


def test_numbers_of_the_committed_tables_need_no_escape():
    for value in pd.Series([0.5, -3, 1e-9, 1.25e12, float("nan")]):
        assert text.markdown_cell(text.format_cell(value)) == text.format_cell(value)
