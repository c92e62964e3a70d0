"""A file reruns what uses it, and nothing else: over all files of the repository."""

import functools
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import data
from experiments.evaluation.suite import evaluation_code_hash
from experiments.specs import code
from experiments.specs.code import training_code_hash
from experiments.specs.expand import all_runs, computation_costs
from experiments.specs.schema import module_names

ROOT = code.ROOT
EXPERIMENTS = ROOT / "experiments"
RUNS = {run_id: run.spec for run_id, run in all_runs("smoke").items()}
KINDS = {kind: module_names(EXPERIMENTS / "analysis" / kind) for kind in ("figures", "tables")}
COMPUTATIONS = sorted(computation_costs("smoke"))
#: Data folder -> file of the dataset, and task.
PREPARED = {
    run.spec.data.label: (data.file_of(run.spec.data.name), run.spec.task)
    for scale in ("smoke", "quick")
    for run in all_runs(scale).values()
}


def params() -> dict[str, str]:
    """The hashes of code that rules have as parameters."""
    found = {"page": code.page_code_hash(), "collect": code.collecting_code_hash()}
    for name, spec in RUNS.items():
        found[f"train {name}"] = training_code_hash(spec)
        found[f"evaluate {name}"] = evaluation_code_hash(spec.task, spec.suite)
    for kind, names in KINDS.items():
        found |= {f"{kind} {name}": code.analysis_code_hash(kind, name) for name in names}
    found |= {f"prepare {k}": code.preparation_code_hash(*made) for k, made in PREPARED.items()}
    return found | {f"compute {k}": code.computation_code_hash(k) for k in COMPUTATIONS}


def forget() -> None:
    """Drop the hashes that were computed of files."""
    code.code_hash.cache_clear()
    evaluation_code_hash.cache_clear()


@pytest.fixture
def touched(monkeypatch):
    """The hashes that change when one file's content does; nothing on disk is changed.

    A change adds no import, so each closure is computed once.
    """
    syntax, read_text, file_digest = code._syntax, Path.read_text, code.file_digest
    place: list[Path] = []

    def changed(path: Path) -> code.Syntax:
        said = syntax(path)
        return said._replace(digest="touched") if path in place else said

    def text(self, *args, **options):
        return read_text(self, *args, **options) + ("\n# touched\n" if self in place else "")

    def content(path: Path) -> str:
        return "touched" if path in place else file_digest(path)

    monkeypatch.setattr(code, "imported_files", functools.cache(code.imported_files))
    before = params()
    monkeypatch.setattr(code, "_syntax", changed)
    monkeypatch.setattr(Path, "read_text", text)
    monkeypatch.setattr(code, "file_digest", content)

    def changes(path: Path) -> set[str]:
        place[:] = [path]
        forget()
        after = params()
        return {name for name in before if before[name] != after[name]}

    yield changes
    monkeypatch.undo()
    forget()


UNUSED = [
    "experiments/data/cifar.py",
    "experiments/evaluation/suites/data_to_text_validation.yaml", "experiments/studies/device.yaml",
]  # fmt: skip
ONLY = {
    "experiments/analysis/figures/spdf_by_sparsity.py": {"figures spdf_by_sparsity"},
    "experiments/analysis/tables/perplexity.py": {"tables perplexity"},
    "experiments/report/templates/index.md.j2": {"page"},
    "experiments/findings/nine/1_set.yaml": {"page"},
    "sparse_lib/algorithms/granet.py": {
        *(f"train {name}" for name, spec in RUNS.items() if spec.method == "granet")
    },
}
KIND = {
    "sparse_lib/algorithms/rigl.py": {"train"},
    "experiments/training/trainer.py": {"train"},
    "sparse_lib/execution/kernels.c": {"train", "evaluate", "compute"},
    "experiments/published/results.csv": {"figures", "tables", "compute"},
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


def test_code_hash_ignores_comments_and_docstrings(tmp_path):
    texts = ('"""Doc."""\nX = 1\n', '"""Other."""\n\n# why\nX = 1\n', "X = 2\n",
             "class A:\n    def f(self, *x): return []\n")  # fmt: skip
    hashes, path = [], ROOT / "tests" / "experiments" / "_code_hash_probe.py"
    for text in texts:
        path.write_text(text)
        code._syntax.cache_clear()
        forget()
        try:
            hashes.append(code.code_hash(path))
        finally:
            path.unlink()
    code._syntax.cache_clear()
    forget()
    assert hashes[0] == hashes[1] != hashes[2]
    # The same under Python 3.11, 3.12 and 3.13, so that records come back from other machines.
    assert hashes[3].startswith("f5a45856686b")


def test_files_are_parsed_once_for_all_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(code, "KEPT", tmp_path / "syntax.json")
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    entry, hashes = ROOT / "experiments" / "progress.py", []

    def hash_anew() -> str:
        for cached in (code._kept, code._syntax, code.code_hash):
            cached.cache_clear()
        return code.code_hash(entry)

    hashes.append(hash_anew())
    with monkeypatch.context() as without:
        without.setattr(code, "parse", None)
        hashes.append(hash_anew())
    code.KEPT.write_text(code.KEPT.read_text()[:-9])
    hashes.append(hash_anew())
    assert len(set(hashes)) == 1 and code.KEPT.read_text().endswith("}")
    monkeypatch.undo()
    hash_anew()
