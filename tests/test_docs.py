"""The documentation: every example runs, every link leads somewhere, every key is taken."""

import doctest
import gc
import importlib
import inspect
import pkgutil
import re
import runpy
import shutil
import tomllib
import types
from pathlib import Path
from statistics import mean

import nbformat
import pytest
import torch
import yaml
from nbclient import NotebookClient
from typer.main import get_command

import sparse_lib as sl
from experiments.cli.app import app
from experiments.specs.expand import all_runs
from sparse_lib.core.algorithm import SparsityAlgorithm
from sparse_lib.core.drop_and_grow import DropAndGrow
from sparse_lib.core.dynamic import DynamicSparsityAlgorithm
from sparse_lib.core.registry import algorithm_classes, constructor_keys

ROOT = Path(__file__).parents[1]
PAGES = sorted(ROOT.glob("[A-Z]*.md")) + sorted(
    [*ROOT.glob("*s/README.md"), *ROOT.glob("docs/*.md")]
)
# The kernels, where an install has built them, are a shared library that Python does not import.
MODULES = ["sparse_lib"] + sorted(
    module.name
    for module in pkgutil.walk_packages(sl.__path__, "sparse_lib.")
    if not module.name.startswith("sparse_lib.execution._kernels")
)
DOCTEST_OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
BUILT_IN = {n: c for n, c in algorithm_classes().items() if c.__module__.startswith("sparse_lib.")}


def drop_defined() -> None:
    """Have the algorithms that an example defined leave the registry."""
    if algorithm_classes().keys() - BUILT_IN.keys():
        gc.collect()  # which takes half a second


def page_id(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_examples_of_pages_run_in_order(page, tmp_path, monkeypatch):
    text = page.read_text()
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = {"__name__": "__main__"}
    for match in re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        code, line = match[1], text.count("\n", 0, match.start()) + 1
        saved = re.match(r"# (\S+\.py)\n", code)
        if saved and (ROOT / saved[1]).exists():
            continue  # a reader has saved the example, as the page says
        if ">>>" not in code:
            exec(compile("\n" * line + code, page.name, "exec"), names)
            continue
        test = doctest.DocTestParser().get_doctest(code, names, page.name, str(page), line)
        runner = doctest.DocTestRunner(optionflags=DOCTEST_OPTIONS, verbose=False)
        report: list[str] = []
        runner.run(test, out=report.append, clear_globs=False)
        assert not runner.failures, "".join(report)
        names = test.globs
    names.clear()
    drop_defined()


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings_run(name):
    if name.startswith("sparse_lib.integrations.") and not name.endswith(".common"):
        pytest.importorskip(name.rsplit(".", 1)[1])
    result = doctest.testmod(importlib.import_module(name), optionflags=DOCTEST_OPTIONS)
    assert result.failed == 0
    drop_defined()


@pytest.mark.parametrize("name", sl.__all__)
def test_public_names_have_docstrings(name):
    value = getattr(sl, name)
    assert inspect.getdoc(value), name
    bases = [b for b in getattr(value, "__mro__", ()) if b.__module__.startswith("sparse_lib")]
    for member, kind in ((member, kind) for base in bases for member, kind in vars(base).items()):
        if not member.startswith("_") and isinstance(
            kind, property | types.FunctionType | classmethod | staticmethod
        ):
            assert inspect.getdoc(getattr(value, member)), member


def test_pages_name_commands_and_changes_that_exist_and_the_citation_the_package():
    known = {command.name for command in get_command(app).commands.values()}
    for page in [*PAGES, ROOT / "docs/tutorial.ipynb"]:
        named = set(re.findall(r"python -m experiments (\w+)", page.read_text()))
        assert named <= known, page.name
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == project["version"] == sl.__version__
    assert citation["license"] == project["license"]
    assert [heading for heading, _ in DIFFS] == list(CHANGES)


def _anchors(page: Path) -> set[str]:
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    named = re.findall(r'^<h\d id="([^"]+)"', text, re.MULTILINE)
    return {heading.strip().replace(" ", "-") for heading in plain} | {*named}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_between_pages_lead_somewhere(page):
    prose = re.sub(r"```.*?```|`[^`\n]*`", "code", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        if anchor and linked.suffix == ".md":
            assert anchor in _anchors(linked), target


OWNERS: dict[str, type] = {"all": SparsityAlgorithm, "dynamic": DynamicSparsityAlgorithm}
OWNERS |= {"drop and grow": DropAndGrow, **BUILT_IN}


def _keys_of_the_table() -> dict[str, type]:
    """Key to the class from which on it is taken, from the table in ``docs/library.md``."""
    section = (ROOT / "docs/library.md").read_text().split("### Keys of a config")[1]
    rows = re.findall(r"^\| `(\w+)` \| ([\w ]+) \|", section.split("\n#")[0], re.MULTILINE)
    return {key: OWNERS[owner] for key, owner in rows}


@pytest.mark.parametrize("name", BUILT_IN)
def test_documented_keys_are_the_keys_that_configs_take(name):
    cls = BUILT_IN[name]
    listed = {key for key, owner in _keys_of_the_table().items() if issubclass(cls, owner)}
    taken = constructor_keys(cls) | {"algorithm", "param_filter", "schedule"}
    page = (ROOT / "docs/algorithms.md").read_text()
    if re.search(rf"^## .*\b{cls.__name__}\b", page, re.MULTILINE):
        assert listed == taken
    # Of an algorithm that no page describes, the table need not know the keys of its own.
    for key in taken - listed:
        assert re.search(rf"^ *{key} \(.*\): ", inspect.getdoc(cls) or "", re.MULTILINE), key


# Every script of `examples/` runs, stays short, and does what its first line says

EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py"))


DO = {
    # Half of the points are right by chance.
    "train_with_rigl.py": lambda it: it["accuracy"] > 0.8 and abs(it["sparsity"] - 0.9) < 1e-3,
    "fine_tune_pruned.py": lambda it: it["revived"] == 0 and it["after"] < 0.5 * it["before"],
    "new_algorithm.py": lambda losses: (
        mean(losses["inputset"]) < mean(losses["static"]) and losses["inputset"] != losses["set"]
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_short_and_listed_and_does_what_it_says(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert len((EXAMPLES / name).read_text().splitlines()) < 80
    assert f"]({name})" in (EXAMPLES / "README.md").read_text()
    assert DO[name](runpy.run_path(str(EXAMPLES / name))["main"]())
    drop_defined()


# The tutorial runs from its first cell to its last and prints what it shows

NOTEBOOK = ROOT / "docs" / "tutorial.ipynb"


def printed(notebook):
    """Text that each code cell prints; pictures and warnings are left out."""
    return [
        "".join(out.text for out in cell.outputs if out.get("name") == "stdout")
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


@pytest.mark.slow
def test_the_tutorial_prints_what_it_shows(tmp_path):
    shown = nbformat.read(NOTEBOOK, as_version=4)
    run = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(run, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()  # raises at the first cell that fails
    assert printed(run) == printed(shown)
    assert "same bits as in one go: True\n" in printed(run)


# Each diff of `docs/change-one-thing.md` changes the runs that its heading says

CHANGE_ONE_THING = (ROOT / "docs" / "change-one-thing.md").read_text()
DIFFS = re.findall(
    r"^\*\*([^*]+)\*\*:.*?^```diff\n(.*?)^```", CHANGE_ONE_THING, re.DOTALL | re.MULTILINE
)
#: Runs of sparsity_library that each change adds under new ids, and that it alters under old ones.
CHANGES = {
    "Another sparsity": (3, 0),
    "More seeds": (4, 0),
    "More tokens": (0, 15),
    "Another learning rate for one method": (0, 3),
    "Another model": (15, 0),
}


def hashes(folder):
    runs = all_runs("quick", folder=folder)
    return {name: run.spec.hash for name, run in runs.items() if "sparsity_library" in run.studies}


@pytest.mark.parametrize(("heading", "diff"), DIFFS, ids=[heading for heading, _ in DIFFS])
def test_a_diff_changes_what_it_says(heading, diff, tmp_path):
    shutil.copytree(ROOT / "experiments" / "studies", tmp_path, dirs_exist_ok=True)
    study = tmp_path / "sparsity_library.yaml"
    before, text = hashes(tmp_path), study.read_text()
    old, new = (
        "".join(f"{line[1:]}\n" for line in diff.splitlines() if line[0] in f" {s}") for s in "-+"
    )
    assert text.count(old) == 1
    study.write_text(text.replace(old, new))
    after = hashes(tmp_path)
    altered = {name for name in before.keys() & after.keys() if before[name] != after[name]}
    assert (len(after.keys() - before.keys()), len(altered)) == CHANGES[heading]
