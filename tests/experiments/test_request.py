"""One command: its configuration, and the files behind its pages."""

import os
import shutil
import subprocess
from types import SimpleNamespace

import pytest
import yaml

from experiments import request
from experiments.errors import UserError
from experiments.request import checked
from experiments.specs import cost, read
from experiments.specs.code import ROOT
from experiments.specs.expand import all_runs
from experiments.specs.read import load_study, study_names
from experiments.specs.schema import SpecError
from experiments.store import parquet, paths

CONFIG = yaml.safe_load((ROOT / "config" / "config.yaml").read_text())
STUDY = "sparsity_library"
PLANNED = {run_id: run for run_id, run in all_runs("smoke").items() if STUDY in run.studies}
#: A run with a committed record that fits, one whose record is of another spec, one without.
FITS, STALE, ABSENT, *_ = sorted(PLANNED)


def ask(**keys) -> request.Request:
    return request.Request({**CONFIG, "scale": "smoke", **keys})


def own(run_id: str) -> str:
    return f"results/smoke/runs/{run_id}/record.json"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A working folder with committed records of two runs, one of them out of date."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SPARSE_MIRROR", raising=False)
    monkeypatch.setattr(request, "ROOT", tmp_path)
    monkeypatch.setattr(paths, "REFERENCE", tmp_path / "results" / "reference")
    commit((FITS, PLANNED[FITS].spec.hash), (STALE, "another"))
    return tmp_path


def commit(*runs: tuple[str, str]) -> None:
    """Write committed records of some runs with these hashes of their specs."""
    blank = {"data": {"hash": "of the data"}, "curve": [], "layers": [], "evaluation": None}
    made = [{"run": run_id, "spec_hash": spec_hash, **blank} for run_id, spec_hash in runs]
    for record in made:
        record["spec"] = PLANNED[record["run"]].spec.to_json()
    parquet.write(made, paths.REFERENCE / STUDY)


def records(asked: request.Request) -> set[str]:
    """Files of own records, and ids of the runs whose committed records are taken."""
    wildcards = SimpleNamespace(scale="smoke", study=STUDY)
    own, borrowed = asked.records("smoke", STUDY)
    files = [f"results/reference/{STUDY}/{name}.parquet" for name in parquet.TABLES]
    assert asked.committed_files(wildcards) == (sorted(files) if borrowed else [])
    return {*own, *borrowed}


def test_nothing_is_borrowed_or_what_fits_beside_new_runs_or_alone(folder):
    assert records(ask()) == {*map(own, PLANNED)}
    assert records(ask(reuse="reference")) == {FITS, *map(own, {*PLANNED} - {FITS})}
    assert records(ask(reuse="only")) == {FITS}
    (folder / own(ABSENT)).parent.mkdir(parents=True)
    (folder / own(ABSENT)).write_text("{}")
    assert records(ask(reuse="only")) == {FITS}  # pages are of committed records alone


@pytest.mark.parametrize(
    ("reuse", "others"),
    [("none", {own(FITS), own(STALE)}), ("reference", {FITS, own(STALE)}), ("only", {FITS})],
)
def test_a_rerun_trains_its_run_and_no_other(folder, reuse, others):
    """Records at hand stand for the other runs; a run's own comes before the committed one."""
    assert records(ask(reuse=reuse, run=ABSENT)) == {own(ABSENT), FITS}
    assert records(ask(reuse=reuse, run=FITS)) == {own(FITS)}
    for run_id in (FITS, STALE):
        (folder / own(run_id)).parent.mkdir(parents=True)
        (folder / own(run_id)).write_text("{}")
    assert records(ask(reuse=reuse, run=ABSENT)) == {own(ABSENT), *others}


def test_a_rerun_redoes_the_pages_that_show_its_run(folder):
    shared = next(run for run in all_runs("small").values() if len(run.studies) > 1)
    asked = ask(run=shared.id)
    names = sorted(shared.studies)
    assert asked.rerun_pages() == [f"reports/small/{name}/index.html" for name in names]
    assert asked.evidence("small") == [f"results/small/{name}/records.csv" for name in names]
    with pytest.raises(SpecError, match="^run is none: rerun needs --config run=<run id>$"):
        ask().rerun_pages()


def test_a_rerun_is_of_its_runs_scale_and_counted_once_written(folder):
    asked = ask(scale="quick", run=FITS)
    assert (asked.scale, asked.reruns) == ("smoke", {FITS: 1})
    assert ask(run=FITS).reruns == {FITS: 1}  # nothing is written before a command starts
    ask(run=FITS).note_reruns()
    assert ask(run=FITS).reruns == {FITS: 1}  # it has not ended: the same command goes on
    other = f"{FITS},{ABSENT}"
    assert ask(run=other).reruns == {FITS: 2, ABSENT: 1}
    ask(run=FITS).note_reruns(done=True)
    assert ask(run=FITS).reruns == {FITS: 2}
    ask().note_reruns()
    assert ask().reruns == {FITS: 1}


def test_studies_are_shown_where_they_have_something_else_warned_of():
    """A study of computations is shown at every scale, one of runs where it has a grid."""
    studies = {name: load_study(name) for name in study_names()}
    at_smoke = {name for name, s in studies.items() if s.scales.get("smoke") or s.computations}
    asked = ask()
    assert {*asked.shown("smoke")} == at_smoke and "flops" in at_smoke
    assert f"{STUDY}_tuning" not in at_smoke
    pages = [f"reports/smoke/{name}/index.html" for name in asked.shown("smoke")]
    assert asked.pages("smoke") == pages
    one = ask(study=STUDY)
    assert [*one.shown("smoke")] == [STUDY]
    files = [f"{n}.{suffix}" for n in studies[STUDY].figures for suffix in ("svg", "pdf", "csv")]
    assert one.figures("smoke") == [f"reports/smoke/{STUDY}/figures/{file}" for file in files]
    targets = one.targets("smoke")
    assert len(targets) == len({*targets}) and {*map(own, PLANNED)} <= {*targets}
    assert not [path for path in targets if "/spdf/" in path]
    assert ask().warnings() == []  # the data of smoke are made here
    assert ask(study=f"{STUDY}_tuning").warnings() == [
        f"Nothing to do: study '{STUDY}_tuning' has nothing at scale 'smoke'; its scales are small."
    ]


def test_missing_data_are_a_warning_unless_they_are_not_needed(folder, monkeypatch):
    monkeypatch.setattr(request.data, "available", lambda name, *_, **__: f"no {name}")
    keys = {"scale": "small", "study": STUDY}
    runs = [run for run in all_runs("small").values() if STUDY in run.studies]
    needed = {run.spec.data.label: run.spec.data.name for run in runs}
    said = [f"Missing data: no {name}" for name in needed.values()]
    assert len(said) > 1 and ask(**keys).warnings() == said
    assert ask(**keys, reuse="only").warnings() == []
    assert ask(**keys, offline=False).warnings() == []
    for count, label in enumerate(needed, start=1):
        meta = folder / paths.data(label) / "meta.json"
        meta.parent.mkdir(parents=True)
        meta.write_text("{}")
        assert ask(**keys).warnings() == said[count:]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("scal", "smoke", "known are scale, .*, run; did you mean 'scale'"),
        ("scale", "smok", "must be one of gpu, paper, quick, small, smoke; did you mean 'smoke'"),
        ("study", "spfd", "must be one of .*; did you mean 'spdf'.*retired studies"),
        ("reuse", "all", "must be one of none, only, reference"),
        ("execution", "fast", "must be one of auto, dense, skip"),
        ("offline", "no", "must be true or false"),
        ("device", "gpu", "must be auto, cpu, mps, cuda or cuda:<number>"),
        ("mirror", "nowhere", "must be a folder with <hub id> datasets"),
        ("run", "small", r"must be one of [\d,]+ values, listed by `python -m experiments plan "),
    ],
)
def test_a_wrong_config_key_is_one_sentence(key, value, words):
    with pytest.raises(UserError, match=f"{key}'? .*'{value}'.* {words}") as caught:
        ask(**{key: value})
    assert "\n" not in str(caught.value)


def test_a_command_line_is_read_with_defaults_and_says_how_runs_are_computed():
    assert checked({"scale": "smoke"}) == {**CONFIG, "scale": "smoke"}
    read = checked({**CONFIG, "offline": "false", "mirror": "null"})
    assert (read["offline"], read["mirror"], read["run"]) == (False, None, "none")
    with pytest.raises(SpecError, match="^run is None, but must be none, or run ids with commas$"):
        checked({**CONFIG, "run": None})  # of `--config run=$EMPTY`
    assert ask(offline="false").environment == {"HF_HUB_OFFLINE": "0"}
    assert ask(mirror=".").environment == {"SPARSE_MIRROR": "."}
    wildcards = SimpleNamespace(scale="smoke", run=ABSENT)
    plain = ask()
    assert (plain.gpus(wildcards), plain.computing()) == (0, [])
    asked = ask(precision="bf16", compile="true", device="cuda:0")
    assert asked.gpus(wildcards) == 1
    assert asked.computing() == ["--precision=bf16", "--compile"]
    assert plain.memory_mb(wildcards, attempt=2) == 2 * plain.memory_mb(wildcards)
    assert plain.memory_mb(wildcards) > cost.BASE_MB


def test_a_broken_study_blocks_itself_alone(monkeypatch, tmp_path):
    """Studies that take methods from it are left out too; each sentence names the wrong file."""
    studies = tmp_path / "studies"
    shutil.copytree(read.STUDIES, studies)
    file = studies / f"{STUDY}.yaml"
    file.write_text(file.read_text().replace("\nmethods:", "\nmethodz:"))
    monkeypatch.setattr(read, "STUDIES", studies)
    with pytest.raises(SpecError, match=f"^{STUDY}.yaml: unknown key methodz"):
        ask()
    asked = ask(study="spdf")
    said = [text for text in asked.warnings() if text.startswith(f"{STUDY} is left out: ")]
    assert len(said) == 1 and f"{STUDY}.yaml: unknown key methodz" in said[0]
    assert STUDY not in asked.studies and asked.pages("smoke")
    with pytest.raises(SpecError, match=f"^{STUDY}.yaml: unknown key methodz"):
        ask(study="sparsity_library_tuning")  # it takes methods from the broken one
    twin = (studies / "spdf.yaml").read_text().replace("40960", "81920")
    (studies / "twin.yaml").write_text(twin.replace("name: spdf", "name: twin"))
    assert "another in twin.yaml" in " ".join(ask(study="spdf").warnings())


def test_jobs_run_this_code_where_the_folder_has_a_package_of_its_name(monkeypatch, tmp_path):
    monkeypatch.setattr(request, "ROOT", ROOT)
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "__init__.py").write_text("raise SystemExit('another package')")
    environment = {**os.environ, **request.this_python_and_code_first()}
    command = ["python", "-c", "import experiments; print(experiments.__file__)"]
    found = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == str(ROOT / "experiments" / "__init__.py")
