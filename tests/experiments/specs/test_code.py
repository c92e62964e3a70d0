"""A file reruns what uses it, and nothing else: over all files of the repository."""

import ast
import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from experiments import data
from experiments.evaluation.code import evaluation_code_hash
from experiments.evaluation.suite import load_suite
from experiments.specs import code
from experiments.specs.code import training_code_hash
from experiments.specs.expand import all_runs, computation_costs
from experiments.specs.schema import module_names
from tests.test_imports import run_nodes

ROOT = code.ROOT
EXPERIMENTS = ROOT / "experiments"
SUITES = EXPERIMENTS / "evaluation" / "suites"
TASKS = EXPERIMENTS / "evaluation" / "lm" / "tasks"
KEPT = (".py", ".yaml", ".csv", ".j2")
RUNS = {run_id: run.spec for run_id, run in all_runs("smoke").items()}
KINDS = {kind: module_names(EXPERIMENTS / "analysis" / kind) for kind in ("figures", "tables")}
COMPUTATIONS = sorted(computation_costs("smoke"))
#: Data folder -> file of the dataset, and task.
PREPARED = {
    run.data_label: (data.file_of(run.spec.data.name), run.spec.task)
    for scale in ("smoke", "quick")
    for run in all_runs(scale).values()
}


def params() -> dict[str, str]:
    """The hashes of code that rules have as parameters."""
    return {
        **{f"train {name}": training_code_hash(spec) for name, spec in RUNS.items()},
        **{f"evaluate {name}": evaluation_code_hash(spec) for name, spec in RUNS.items()},
        **{
            f"{kind} {name}": code.analysis_code_hash(kind, name)
            for kind, names in KINDS.items()
            for name in names
        },
        **{
            f"prepare {label}": code.preparation_code_hash(*made)
            for label, made in PREPARED.items()
        },
        **{f"compute {name}": code.computation_code_hash(name) for name in COMPUTATIONS},
        "page": code.page_code_hash(),
        "collect": code.collecting_code_hash(),
        "archive": code.archive_code_hash(),
    }


@functools.cache
def imports(path: Path) -> set[Path]:
    """Files of the repository whose modules a file's import statements name."""
    names = set()
    for node in run_nodes(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    names -= {"sparse_lib"}  # its front imports all of it
    bases = [name.replace(".", "/") for name in names]
    return {ROOT / f"{base}{end}" for base in bases for end in (".py", "/__init__.py")} & FILES


def closure(*entries: Path, through_data: bool = False) -> set[Path]:
    """The entries and what they import, directly or not."""
    found, queue = set(entries), list(entries)
    while queue:
        for path in imports(queue.pop()) - found:
            if through_data or EXPERIMENTS / "data" not in path.parents:
                found.add(path)
                queue.append(path)
    return found


def beside(files: set[Path]) -> set[Path]:
    """The files, and the published tables or templates that code among them reads."""
    published, report = EXPERIMENTS / "published", EXPERIMENTS / "report"
    if published / "__init__.py" in files:
        files = files | {*published.glob("*.csv"), *published.glob("*.yaml")}
    kernels = ROOT / "sparse_lib" / "execution" / "kernels.py"
    if kernels in files:
        files = files | {kernels.with_suffix(".c")}
    if report / "render.py" in files:
        files = files | {*(report / "templates").glob("*.j2")}
        files = files | {*(EXPERIMENTS / "findings").rglob("*.yaml")}
    return files


def suite_uses(name: str) -> set[Path]:
    """A suite's file, and the files of the metrics and of our own tasks that it names."""
    suite, used = load_suite(name), {SUITES / f"{name}.yaml"}
    of = suite if suite.kind == "images" else suite.perplexity
    used |= {EXPERIMENTS / "evaluation" / "metrics" / f"{metric}.py" for metric in of.metrics}
    own = yaml.safe_load((SUITES / f"{name}.yaml").read_text()).get("tasks", [])
    for entry in own:
        path = TASKS / f"{entry['task']}.yaml"
        if "folder" not in entry and path.exists():
            functions = re.findall(r"!function (\w+)\.", path.read_text())
            used |= {path, *(TASKS / f"{module}.py" for module in functions)}
    return used


def expected() -> dict[str, set[Path]]:
    """The files that each parameter depends on, as imports and names say."""
    made: dict[str, set[Path]] = {}
    for name, spec in RUNS.items():
        task = EXPERIMENTS / "tasks" / f"{spec.task}.py"
        entries = [EXPERIMENTS / "training" / "loop.py", task]
        entries.append(EXPERIMENTS / "models" / f"{spec.model.name}.py")
        if spec.sparsity is not None:
            entries.append(ROOT / "sparse_lib" / "algorithms" / f"{spec.algorithm}.py")
        made[f"train {name}"] = beside(closure(*entries))
        scorer = {"lm": "lm/evaluate.py", "vision": "vision.py"}[spec.task]
        used = suite_uses(spec.suite)
        scripts = {path for path in used if path.suffix == ".py"}
        made[f"evaluate {name}"] = used | closure(EXPERIMENTS / "evaluation" / scorer, *scripts)
    for kind, names in KINDS.items():
        folder = EXPERIMENTS / "analysis" / kind
        for name in names:
            made[f"{kind} {name}"] = beside(closure(folder / "__init__.py", folder / f"{name}.py"))
    for label, (file, task) in PREPARED.items():
        tools = closure(file, EXPERIMENTS / "data" / "__init__.py", through_data=True)
        made[f"prepare {label}"] = beside(tools) | {EXPERIMENTS / "tasks" / f"{task}.py"}
    folder = EXPERIMENTS / "computations"
    for name in COMPUTATIONS:
        files = folder / "__init__.py", folder / f"{name}.py"
        made[f"compute {name}"] = beside(closure(*files, through_data=True))
    made["page"] = beside(closure(EXPERIMENTS / "report" / "render.py"))
    units = (EXPERIMENTS / "tasks").glob("*.py")
    made["collect"] = beside(closure(EXPERIMENTS / "store" / "collect.py", *units))
    made["archive"] = beside(closure(EXPERIMENTS / "report" / "archive.py"))
    return made


def tracked() -> list[Path]:
    """Files of code, settings, tables and templates that the repository has."""
    listed = subprocess.run(
        [*"git ls-files -zco --exclude-standard experiments sparse_lib workflow".split()],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    names = listed.stdout.split("\0")
    paths = [ROOT / name for name in names if name]
    if listed.returncode or not paths:  # an archive without its history
        paths = [
            path for name in ("experiments", "sparse_lib") for path in (ROOT / name).rglob("*")
        ]
    return [path for path in paths if path.suffix in KEPT and path.is_file()]


FILES = {*tracked()}


@pytest.fixture
def touched(monkeypatch):
    """The hashes that change when one file's content does; nothing on disk is changed.

    A change adds no import, so each closure is computed once.
    """
    syntax, read_text, read_bytes = code._syntax, Path.read_text, Path.read_bytes
    place: list[Path] = []

    def changed(path: Path) -> code.Syntax:
        said = syntax(path)
        return said._replace(digest="touched") if path in place else said

    def text(self, *args, **options):
        return read_text(self, *args, **options) + ("\n# touched\n" if self in place else "")

    def content(self):
        return read_bytes(self) + (b"\n# touched\n" if self in place else b"")

    monkeypatch.setattr(code, "imported_files", functools.cache(code.imported_files))
    before = params()
    monkeypatch.setattr(code, "_syntax", changed)
    monkeypatch.setattr(Path, "read_text", text)
    monkeypatch.setattr(Path, "read_bytes", content)

    def changes(path: Path) -> set[str]:
        place[:] = [path]
        code.code_hash.cache_clear()
        after = params()
        return {name for name in before if before[name] != after[name]}

    yield changes
    monkeypatch.undo()
    code.code_hash.cache_clear()


def test_each_file_reruns_what_imports_or_names_it_and_nothing_else(touched):
    """Files of the repository against every parameter, both directions; `FUZZ` takes all."""
    uses, wrong = expected(), {}
    kernels = ROOT / "sparse_lib" / "execution" / "kernels.c"
    for path in {kernels, *sorted(FILES)[:: 1 if "FUZZ" in os.environ else 7]}:
        users = {name for name, files in uses.items() if path in files}
        if found := touched(path) ^ users:
            wrong[path.relative_to(ROOT).as_posix()] = sorted(found)
    assert len(FILES) > 200 and not wrong, wrong


UNUSED = [
    "experiments/data/cifar.py", "experiments/data/imagenet.py",
    "experiments/models/mobilenet_v2.py", "experiments/evaluation/suites/leaderboard.yaml",
    "experiments/studies/device.yaml",
]  # fmt: skip
ONLY = {
    "experiments/analysis/figures/loss_curves.py": {"figures loss_curves"},
    "experiments/analysis/tables/perplexity.py": {"tables perplexity"},
    "experiments/report/templates/index.md.j2": {"page"},
    "experiments/findings/nine/1_set.yaml": {"page"},
    "sparse_lib/algorithms/granet.py": {
        *(f"train {name}" for name, spec in RUNS.items() if spec.method == "granet"),
    },
}
KIND = {
    "sparse_lib/algorithms/rigl.py": {"train", "compute"},
    "experiments/training/loop.py": {"train"},
    "experiments/data/wikipedia.py": {"prepare"},
    "experiments/evaluation/suites/smoke.yaml": {"evaluate"},
    "experiments/evaluation/lm/tasks/prose_pairs.yaml": {"evaluate"},
}


def test_named_files_rerun_what_they_are_for(touched):
    """Written out, so that the closures' own rule is judged too."""
    for name in UNUSED:
        assert touched(ROOT / name) == set(), name
    for name, only in ONLY.items():
        assert touched(ROOT / name) == only, name
    for name, kinds in KIND.items():
        assert {found.split()[0] for found in touched(ROOT / name)} == kinds, name


@pytest.mark.parametrize("entry", ["experiments.analysis.figures.loss_curves",
                                   "experiments.store.collect",
                                   "experiments.data.wikipedia"])  # fmt: skip
def test_what_is_imported_at_run_time_is_in_the_closure(entry):
    script = (
        f"import sys, {entry}\n"
        "print(*(m.__file__ for n, m in sorted(sys.modules.items())"
        " if n.startswith(('experiments.', 'sparse_lib.')) and m.__file__))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    loaded = {Path(name) for name in done.stdout.split()}
    path = ROOT.joinpath(*entry.split(".")).with_suffix(".py")
    closure = set(code.imported_files(path, data=True))
    packages = {file for file in loaded if file.name == "__init__.py"}
    assert path in loaded and loaded - packages <= closure | {
        file for package in packages for file in code.imported_files(package, data=True)
    }


def forget() -> None:
    """Drop what was read of files that a test rewrites."""
    code.code_hash.cache_clear()
    code._syntax.cache_clear()


def test_code_hash_ignores_comments_and_docstrings(tmp_path):
    texts = {
        "a": '"""Doc."""\nX = 1\n',
        "b": '"""Other."""\n\n# why\nX = 1\n',
        "c": "X = 2\n",
    }
    hashes = {}
    for name, text in texts.items():
        path = ROOT / "tests" / "experiments" / "_code_hash_probe.py"
        path.write_text(text)
        try:
            forget()
            hashes[name] = code.code_hash(path)
        finally:
            path.unlink()
    forget()
    assert hashes["a"] == hashes["b"] != hashes["c"]
