"""The workflow's commands, and which jobs they run."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from experiments.specs.code import ROOT
from experiments.specs.expand import all_runs, study_runs
from experiments.specs.read import load_study, study_names
from experiments.store import parquet, reference

pytestmark = pytest.mark.slow


def snakemake(
    *arguments: str, cwd: Path = ROOT, python: str = sys.executable
) -> subprocess.CompletedProcess:
    """Call snakemake; never raises."""
    call, env = [python, "-m", "snakemake", *arguments], {**os.environ, "PYTHONPATH": str(cwd)}
    return subprocess.run(call, cwd=cwd, capture_output=True, text=True, env=env)


def said(*arguments: str, **options) -> str:
    """Snakemake's output, where it succeeds."""
    done = snakemake(*arguments, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A copy of the tracked and untracked sources, without any results."""
    target = tmp_path_factory.mktemp("checkout") / "repository"
    ignore = shutil.ignore_patterns(
        ".venv", ".git", ".snakemake", "state", "logs", "resources", "__pycache__",
        ".*_cache", ".hypothesis", "smoke", "quick", "small", "gpu", "paper",
    )  # fmt: skip
    shutil.copytree(ROOT, target, ignore=ignore)
    return target


@pytest.fixture
def copy(checkout, tmp_path) -> Path:
    """A copy of it that a test may change."""
    return shutil.copytree(checkout, tmp_path / "repository")


def test_dry_run_of_all_studies_on_a_clean_checkout(checkout):
    """Other scales are planned by the same code, which `test_request` asks in process."""
    text = said("-n", "reproduce", "--config", "scale=small", cwd=checkout)
    shown = {name for name in study_names() if load_study(name).shows("small")}
    assert set(re.findall(r"^page_(\w+) +1$", text, re.MULTILINE)) == shown
    assert "Missing data:" in text


def test_another_workflow_takes_the_rules_as_a_module_with_a_partial_config(tmp_path):
    """Where nothing is trained, computed tables are the committed ones; a clone may be a link."""
    (tmp_path / "sparse-training").symlink_to(ROOT)
    example = (ROOT / "config/README.md").read_text().split("```python\n")[1].split("```")[0]
    change = '"study": "flops"', '"study": "flops", "reuse": "only"'
    (tmp_path / "Snakefile").write_text(example.replace(*change))
    run = f"results/smoke/runs/{min(all_runs('smoke'))}/record.json"
    options = ("-np", "--quiet", "host", "--cores", "1", "sparse_reproduce", run)
    place = ("--directory", str(tmp_path), "--snakefile", str(tmp_path / "Snakefile"))
    text = said(*options, *place)
    assert re.search(r"^sparse_page_flops +1$", text, re.MULTILINE)
    assert "experiments compute --scale smoke --committed" in text


def test_a_wrong_key_or_sparsity_argument_fails_before_any_job_in_one_sentence(copy):
    path = copy / "experiments/studies/sparsity_library.yaml"
    path.write_text(path.read_text().replace("drop_fraction:", "drop_fractoin:", 1))
    for key, words in (("sacle", "did you mean 'scale'"), ("scale", "drop_fractoin")):
        done = snakemake("-n", "reproduce", "--config", f"{key}=smoke", cwd=copy)
        text = done.stdout + done.stderr
        assert done.returncode != 0 and words in text and "Traceback" not in text


def test_rerun_does_what_it_names_and_nothing_else(checkout):
    """Two runs of one study: their jobs, the study's page, and no page of all studies."""
    committed = reference.entries()
    runs = [run for run in all_runs("small").values() if run.id in committed]
    runs = [run.id for run in runs if run.studies == ("sparsity_library",)][:2]
    verbose = ("-n", "rerun", "--quiet", "host")
    text = said(*verbose, "--config", f"run={','.join(runs)}", cwd=checkout)
    assert set(re.findall(r"results/small/runs/(\S+)/train\.json", text)) == set(runs)
    assert "results/reference/sparsity_library/runs.parquet" in text
    assert set(re.findall(r"reports/small/(\w+)/index\.html", text)) == {"sparsity_library"}
    jobs = dict(re.findall(r"^(\w+) +(\d+)$", text, re.MULTILINE))
    assert {name: int(jobs[name]) for name in ("train", "evaluate", "collect")} == {
        "train": 2, "evaluate": 2, "collect": 1
    }  # fmt: skip
    assert int(jobs["total"]) <= 12 and "index" not in jobs


def test_verify_is_no_rerun_and_what_differs_fails(copy):
    """A record that an earlier verification trained stands for a training."""
    run = next(run for run in all_runs("quick").values() if run.id in reference.entries())
    (copy / "resources/data" / run.spec.data.label).mkdir(parents=True)
    (copy / "resources/data" / run.spec.data.label / "meta.json").write_text("{}")
    made = copy / "results/quick/verify" / run.id / "record.json"
    made.parent.mkdir(parents=True)
    record = reference.find(run.id)
    verify = ("verify", "--cores", "1", "--config", f"run={run.id}", "preload=False")
    for loss, verdict, is_good in ((0.0, "same bits", True), (9.0, "differs", False)):
        record["final"]["validation_loss"] += loss
        made.write_text(json.dumps(record))
        done = snakemake(*verify, cwd=copy)
        text = done.stdout + done.stderr
        assert re.search(rf"^{verdict} .*{run.id}", text, re.MULTILINE), text
        assert (done.returncode == 0) == is_good
        assert "goes on where" not in text and "Pages and figures" not in text
    assert not [*(copy / "state").glob("*.json"), *(copy / "results/quick").glob("runs/*")]


def test_a_run_trains_again_after_its_code_changed_and_not_after_other_code(copy):
    run = next(r for r in all_runs("smoke").values() if r.spec.algorithm == "set")
    asked = ("--cores", "1", f"results/smoke/runs/{run.id}/train.json", "--config", "scale=smoke")
    said(*asked, cwd=copy)
    for name, is_its_own in (("rigl", False), ("set", True)):
        with (copy / f"sparse_lib/algorithms/{name}.py").open("a") as file:
            file.write("\nCHANGED = True\n")
        text = said("-n", *asked, cwd=copy)
        assert bool(re.search(r"^train +1$", text, re.MULTILINE)) == is_its_own, text


def test_records_alone_are_kept_and_those_of_studies_without_runs_stay(copy):
    run = next(run for run in all_runs("smoke").values() if run.studies == ("spdf",))
    record = reference.find(next(name for name in reference.entries() if "llama" in name))
    record |= {"run": run.id, "spec": run.spec.to_json(), "spec_hash": run.spec.hash}
    made = copy / "results/smoke/runs" / run.id / "record.json"
    made.parent.mkdir(parents=True)
    made.write_text(json.dumps(record))
    parquet.write([record], copy / "results/smoke/spdf")
    unkept = "spdf/records.csv", "sparse_ift_vision/records.csv", "computations/flops/published.csv"
    for name in unkept:
        path = copy / "results/smoke" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"new {name}")
    other = [
        *copy.glob("results/reference/[!s]*/*"),
        *copy.glob("results/reference/sparse_ift_vision/*"),
    ]
    before = [path.read_bytes() for path in other]
    keep = [sys.executable, "-m", "experiments", "keep", "--scale", "smoke"]
    first, second = (
        subprocess.run(keep, cwd=copy, capture_output=True, text=True, check=True) for _ in range(2)
    )
    tables = {f"results/reference/spdf/{name}.parquet" for name in parquet.TABLES}
    assert {*first.stdout.split()} <= tables and not second.stdout
    assert not first.stderr and "has no other record" in second.stderr
    assert parquet.read(copy / "results/reference/spdf", [run.id]) == [record]
    assert [path.read_bytes() for path in other] == before


def test_a_second_phase_waits_for_its_first(copy):
    study = yaml.safe_load((copy / "experiments/studies/sparsity_library.yaml").read_text())
    first = study["scales"]["smoke"][0]
    first.update(label="first", methods={"set": 1})
    second = {**first, "label": None, "pretrained": "first", "methods": {"finetuned": 1}}
    start = {"method": "set", "densify": True}
    study["methods"]["finetuned"] = {"recipe": "full-batch", "starts_from": start}
    study.update(name="phases", scales={"smoke": [first, second]})
    (copy / "experiments/studies/phases.yaml").write_text(yaml.safe_dump(study))
    phases = load_study("phases", folder=copy / "experiments/studies")
    run = next(run for run in study_runs(phases, "smoke") if run.spec.method == "finetuned")
    text = said("-n", f"results/smoke/runs/{run.id}/train.json", cwd=copy)
    assert re.search(r"^train +2$", text, re.MULTILINE)


@pytest.fixture
def small_project(copy) -> Path:
    """A copy with one study, whose only results are a computation of a moment."""
    for path in (copy / "experiments/studies").glob("*.yaml"):
        path.unlink()
    study = {"name": "alone", "title": "t", "source": "s", "description": "d"}
    study |= {"tables": ["library_overhead"], "figures": [], "computations": ["nothing"]}
    (copy / "experiments/studies/alone.yaml").write_text(yaml.safe_dump(study))
    (copy / "experiments/computations/nothing.py").write_text(
        "import pandas\n\n\n"
        "def compute(scale):\n    return {'rows': pandas.DataFrame({'x': [1]})}\n"
    )
    (copy / "experiments/analysis/tables/library_overhead.py").write_text(
        '"""One row."""\n\nfrom experiments.store.tidy import computed\n\n\n'
        "def make(records, curves, study):\n"
        "    return computed(study.scale, 'nothing', 'rows')\n"
    )
    return copy


def test_what_is_deleted_under_a_finished_report_comes_back(small_project):
    smoke = ("--cores", "1", "reproduce", "--config", "scale=smoke")
    text = said(*smoke, cwd=small_project)
    assert re.search(r"^compute +1$", text, re.M) and not re.search(r"^train ", text, re.M)
    table = small_project / "reports/smoke/alone/tables/library_overhead.csv"
    assert table.read_text() == "x\n1\n"
    # Also where Python is called by another name.
    called = str(Path(sys.executable).with_name("python3"))
    assert "Nothing to be done" in said(*smoke, cwd=small_project, python=called)
    for name in ("results/smoke/computations/nothing", "results/smoke/alone/records.csv"):
        path = small_project / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    table.unlink()
    said(*smoke, cwd=small_project)
    assert table.read_text() == "x\n1\n"
    assert (small_project / "results/smoke/computations/nothing/rows.csv").is_file()


def test_every_shell_command_quotes_what_it_is_given():
    """Even a name that the schema lets through by mistake stays one word of the command."""
    for path in [ROOT / "Snakefile", *sorted((ROOT / "workflow/rules").glob("*.smk"))]:
        for block in re.findall(r"shell:\n((?:\s+f?\"[^\n]*\n)+)", path.read_text()):
            fields = re.findall(r"{([^}]+)}", block)
            assert fields, block
            assert [field for field in fields if not field.endswith(":q")] in ([], ["threads"])
