"""Each addition of `docs/extending.md` is the one file that it shows, and is found and used."""

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from experiments.specs.lookup import planned_study
from experiments.store import reference
from experiments.store.collect import write_tables

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text()
BLOCK = re.compile(r"^```\w+\n# (\S+/\S+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
#: Heading of a section to the files that it shows: path and text.
FILES = {
    section.splitlines()[0]: BLOCK.findall(section)
    for section in re.split(r"^## ", PAGE, flags=re.M)
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A copy of the code, and of one study's committed records as results of scale small."""
    folder = tmp_path_factory.mktemp("repository")
    ignore = shutil.ignore_patterns("__pycache__", ".mypy_cache")
    for name in ("sparse_lib", "experiments", "config", "tests", "workflow", "profiles", "docs"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    for name in ("Snakefile", "pyproject.toml", "README.md", "CITATION.cff"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def tidy_table(study, folder):
    """The tidy table of a study's committed records."""
    facts = planned_study(study, "small")
    records = reference.find_all(run.id for run in facts.runs)
    write_tables(records.values(), facts, folder)
    return folder / "records.csv"


@contextmanager
def written(path, text):
    """The file with that text; afterwards as before."""
    before = path.read_bytes() if path.exists() else None
    path.write_text(text)
    try:
        yield path
    finally:
        path.unlink() if before is None else path.write_bytes(before)


@contextmanager
def added(repository, heading):
    """The file of a section at its place."""
    ((name, text),) = FILES[heading]
    path = repository / name
    assert not path.exists(), f"{name} is taken"
    with written(path, text):
        yield path


def run(repository, *command):
    """The output of a Python command, run in the copy."""
    env = {**os.environ, "PYTHONPATH": str(repository), "OMP_NUM_THREADS": "1"}
    call = [sys.executable, *command]
    done = subprocess.run(call, cwd=repository, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_each_section_shows_one_file_and_the_table_lists_it():
    shown = {heading: files for heading, files in FILES.items() if files}
    assert all(len(files) == 1 for files in shown.values())
    for heading, ((name, _),) in shown.items():
        anchor = heading.lower().replace(" ", "-")
        row = next(line for line in PAGE.splitlines() if f"](#{anchor})" in line)
        pattern = row.split("`")[1].replace("<name>", "*")
        assert Path(name).match(pattern), heading


RUN_FILE = """
model: {name: %s, label: tiny, hidden_size: 32, num_layers: 1, num_heads: 2}
data: {name: %s, vocab_size: 300, context: 32}
recipe: {tokens: 4096, batch_size: 16, learning_rate: 0.01, validations: 1, validation_tokens: 1024}
sparsity: %s
"""


@pytest.mark.slow
def test_an_algorithm(repository):
    with added(repository, "An algorithm"):
        tests = ("tests/sparse_lib/algorithms/test_conformance.py", "tests/test_imports.py")
        options = ("-k", "rowset", "-p", "no:cacheprovider", "-vv")
        covered = run(repository, "-m", "pytest", *tests, *options)
        assert len(re.findall(r"rowset.* PASSED", covered)) > 8


#: What the workflow's jobs do, in one process; `test_workflow` runs a study by Snakemake.
STUDY = """
from experiments.cli.app import app
from experiments.specs.expand import study_runs
from experiments.specs.read import load_study

def call(*words):
    app([*words], standalone_mode=False)

study = ("--study", "my_question", "--scale", "smoke")
call("plan", *study)
runs = study_runs(load_study("my_question"), "smoke")
call("prepare", "--data", runs[0].spec.data.label)
for run in runs:
    call("train", "--run", run.id, "--score")
    call("evaluate", "--run", run.id)
call("collect", *study, *(f"results/smoke/runs/{run.id}/record.json" for run in runs))
call("report", *study)
"""


@pytest.mark.slow
def test_a_study(repository):
    with added(repository, "A study"):
        assert re.search(r"in 3 runs", run(repository, "-c", STUDY))
        page = (repository / "reports/smoke/my_question/index.html").read_text()
        assert "Does it matter where growth is?" in page and "missing" not in page.split("<h2")[0]


@pytest.mark.slow
def test_a_model_trains_on_a_dataset_by_an_algorithm(repository):
    config = "{algorithm: rowset, sparsity: 0.8, update: {freq: 2}}"
    names = ("An algorithm", "A model", "A dataset")
    with added(repository, names[0]), added(repository, names[1]), added(repository, names[2]):
        (repository / "run.yaml").write_text(RUN_FILE % ("qwen2", "sums", config))
        command = ("-m", "experiments", "run", "--params", "run.yaml", "--model_dir", "out")
        scores = run(repository, *command, "--mode", "train_and_eval", "--max_steps", "8")
        assert '"perplexity"' in scores
        assert '"model_type": "qwen2"' in (repository / "out/model/config.json").read_text()
        facts = (repository / "resources/data/sums-v300/meta.json").read_text()
        assert '"test": 720' in facts  # documents: one of twenty of 120 x 120
        documents = (repository / "resources/data/sums-v300/text/test.jsonl").read_text()
        assert "8 + 5 = 13." in documents
        (repository / "own.yaml").write_text("tasks: [{task: right_sums, limit: 50}]\n")
        task = "task: right_sums\ninclude: _pairs_template\n"
        task += "dataset_kwargs: {file: right_sums.jsonl}\n"
        command = ("-m", "experiments", "evaluate", "--model", "out/model", "--suite", "own.yaml")
        with written(repository / "experiments/evaluation/lm/tasks/right_sums.yaml", task):
            run(repository, *command, "--data", "resources/data/sums-v300", "--out", "scores.json")
        scores = json.loads((repository / "scores.json").read_text())["scores"]
        (accuracy,) = (row for row in scores if row["task"] == "right_sums")
        assert accuracy["num_items"] == 50 and 0 <= accuracy["value"] <= 1


DRAW = """
import sys
from pathlib import Path
import pandas as pd
from experiments.analysis import figures, tables
from experiments.specs.lookup import planned_study
from experiments.store.tidy import read_records
records, study = read_records(Path(sys.argv[1])), planned_study("spdf", "small")
{kind}.write({name!r}, records, pd.DataFrame(), study, Path("drawn"))
if {kind!r} == "figures":
    figures.data({name!r}, records, pd.DataFrame(), study).to_csv("drawn/{name}.csv", index=False)
header, *rows = Path("drawn/{name}.csv").read_text().splitlines()
assert "seconds" in header.split(",") and len(rows) > 10
assert Path("drawn/{name}.png").exists() == ({kind!r} == "figures")
assert "torch" not in sys.modules
"""


BROKEN = """
from experiments import data, models, tasks
from experiments.analysis import figures
from experiments.errors import UserError
assert "glyphs" in data.names() and data.get("glyphs").name == "glyphs"
assert tasks.units() == ["tokens", "images"]
for find in (data.get, models.get, figures.load, tasks.get):
    try:
        find("broken")
    except UserError as error:
        print(error)
"""


def test_a_broken_file_is_named_where_it_is_asked_for(repository):
    folders = "data", "models", "analysis/figures", "tasks"
    names = [f"experiments/{folder}/broken.py" for folder in folders]
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(written(repository / name, "DATASETS = (\n"))
        said = run(repository, "-c", BROKEN).splitlines()
    why = "SyntaxError: '(' was never closed (broken.py, line 1)"
    assert said == [f"{name} cannot be imported: {why}" for name in names]


RESULT = """
import sys
from pathlib import Path
from experiments.specs.lookup import planned_study
from experiments.findings import claim, ledger
from experiments.findings.evidence import gather
from experiments.store.tidy import read_records
evidence = gather([planned_study("sparsity_library", "small")], [read_records(Path(sys.argv[1]))])
(own,) = [one for one in claim.nine() if one.name == "granet-perplexity"]
found = ledger.of_claim(own, evidence)[0]
assert str(found.word) == "same direction" and found.estimate.seeds[0] >= 3
"""


DEVICE = """
import torch
from sparse_lib.simulation.devices import SPECS, device_spec
from sparse_lib.simulation.timing import simulate
step = simulate(torch.nn.Linear(64, 64), device_spec("l40s"), batch_size=8)
assert "l40s" in SPECS and all(row["source"] for row in step.device.records())
"""


SUITE = """
from experiments.evaluation.suite import load_suite
from experiments.specs.read import suite_names
suite = load_suite("glance")
assert "glance" in suite_names() and suite.perplexity.splits == ("test",)
assert suite.tasks[0].task == "data_to_text"
"""


TASK = """
from pathlib import Path
from experiments import tasks
from experiments.specs.expand import load_single
spec = load_single(Path("run.yaml"), run_id="out", max_steps=8)
assert spec.task == "backwards"
module = tasks.get(spec.task)
folder = Path("resources/data") / spec.data.label
if not (folder / "meta.json").is_file():
    module.prepare(spec.data, out=folder, offline=True)
task, forwards = (tasks.get(name).Task(spec, folder) for name in (spec.task, "lm"))
assert task.batch(3).flip(1).equal(forwards.batch(3))
model = task.build_model()
task.loss(model, task.batch(0)).backward()
scores = task.validate(model, full=False)
assert scores.keys() == {"loss", "perplexity"}
assert abs(scores["perplexity"] - 257) < 90  # untrained: a choice among 257 tokens
"""


@pytest.mark.slow
def test_a_task(repository):
    (text,) = re.findall(r"^```yaml\n(# run.yaml\n.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (repository / "run.yaml").write_text(f"task: backwards\n{text}")
    with added(repository, "A task"):
        run(repository, "-c", TASK)


METRIC = """
import numpy as np
from experiments.evaluation import metrics
from experiments.evaluation.outputs import Images
from experiments.evaluation.suite import ImageSuite
suite = ImageSuite(name="mine", metrics=("brier_score",))
logits = np.log([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1]])
(row,) = metrics.rows(Images(logits, np.array([0, 2]), ["a", "b", "c"]), suite.metrics, task="t")
assert abs(row["value"] - (0.25 + 0.09 + 0.04 + 0.01 + 0.64 + 0.81) / 2) < 1e-9
assert row["num_items"] == 2
"""


@pytest.mark.parametrize(
    ("heading", "code", "study"),
    [
        ("A device", DEVICE, None),
        ("A suite", SUITE, None),
        ("An evaluation metric", METRIC, None),
        ("A figure", DRAW.format(kind="figures", name="training_time"), "spdf"),
        ("A table", DRAW.format(kind="tables", name="seconds"), "spdf"),
        ("A result", RESULT, "sparsity_library"),
    ],
)
def test_an_addition_does_its_part(repository, heading, code, study, tmp_path):
    records = [str(tidy_table(study, tmp_path))] if study else []
    with added(repository, heading):
        run(repository, "-c", code, *records)
