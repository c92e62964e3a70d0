"""A file reruns what uses it, and nothing else: over all files of the repository."""

import subprocess
import sys
from pathlib import Path

import pytest

from experiments import data
from experiments.specs import code, plan

ROOT = code.ROOT
RUNS = {run.spec.method: run.spec for run in plan.all_runs("smoke").values()}


def params() -> dict[str, str]:
    """The hashes that rules have as parameters, a few of each kind."""
    analysis = (("figures", "loss_curves"), ("figures", "tuning"), ("tables", "perplexity"))
    lm, vision = RUNS["rigl"], next(s for s in RUNS.values() if s.task == "vision")
    return {
        "train rigl": plan.training_code_hash(lm),
        "train vision": plan.training_code_hash(vision),
        "evaluate lm": plan.evaluation_code_hash(lm),
        "evaluate vision": plan.evaluation_code_hash(vision),
        **{f"{kind} {name}": code.analysis_code_hash(kind, name) for kind, name in analysis},
        **{
            f"prepare {name}": code.preparation_code_hash(data.file_of(name), task)
            for name, task in (("grammar", "lm"), ("docs-prose", "lm"), ("glyphs", "vision"))
        },
        "claims": code.claims_code_hash(),
        "page": code.page_code_hash(),
        "collect": code.collecting_code_hash(),
        "compute flops": code.computation_code_hash("flops"),
    }


@pytest.fixture
def touched(monkeypatch):
    """The hashes that change when one file's content does; nothing on disk is changed."""
    read_text, read_bytes = Path.read_text, Path.read_bytes
    before = params()

    def changes(path: Path) -> set[str]:
        if path.suffix == ".py":
            addition = "\nTOUCHED = 1\n"
        else:
            addition = "\n# touched\n"

        def text(self, *args, **options):
            return read_text(self, *args, **options) + (addition if self == path else "")

        def content(self):
            return read_bytes(self) + (addition.encode() if self == path else b"")

        monkeypatch.setattr(Path, "read_text", text)
        monkeypatch.setattr(Path, "read_bytes", content)
        code._syntax.cache_clear()
        code.code_hash.cache_clear()
        after = params()
        monkeypatch.undo()
        return {name for name in before if before[name] != after[name]}

    yield changes
    code._syntax.cache_clear()
    code.code_hash.cache_clear()


UNUSED = [
    "experiments/data/cifar.py", "experiments/data/imagenet.py", "experiments/models/resnet.py",
    "experiments/analysis/figures/roofline.py", "experiments/analysis/tables/device_facts.py",
    "sparse_lib/algorithms/granet.py", "experiments/evaluation/suites/leaderboard.yaml",
    "experiments/evaluation/lm/tasks/data_to_text.yaml", "experiments/computations/device.py",
]  # fmt: skip


def test_a_file_of_another_dataset_model_figure_method_or_suite_changes_nothing(touched):
    used = {"experiments/models/resnet.py": {"train vision"}}
    for name in UNUSED:
        found = touched(ROOT / name)
        assert found <= used.get(name, set()), name


USED = {
    "sparse_lib/algorithms/rigl.py": {"train rigl", "train vision"},  # both train with RigL
    "experiments/training/loop.py": {"train rigl", "train vision"},
    "experiments/evaluation/suites/smoke.yaml": {"evaluate lm"},
    "experiments/evaluation/suites/vision.yaml": {"evaluate vision"},
    "experiments/evaluation/lm/tasks/grammar_pairs.yaml": {"evaluate lm"},
    "experiments/data/grammar.py": {"prepare grammar"},
    "experiments/data/glyphs.py": {"prepare glyphs"},
    "experiments/data/docs_prose.json": {"prepare docs-prose"},
    "experiments/analysis/figures/loss_curves.py": {"figures loss_curves"},
    "experiments/analysis/tables/perplexity.py": {"tables perplexity"},
    "experiments/report/templates/index.html.j2": {"page"},
}


def test_a_file_reruns_what_uses_it_and_nothing_else(touched):
    for name, expected in USED.items():
        assert touched(ROOT / name) == expected, name


@pytest.mark.parametrize("entry", ["experiments.analysis.figures.loss_curves",
                                   "experiments.store.collect",
                                   "experiments.data.grammar"])  # fmt: skip
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
