"""Which code and settings a run's scores depend on."""

from __future__ import annotations

from experiments import tasks
from experiments.evaluation.suite import load_suite, suite_files, suite_path
from experiments.specs.code import code_hash, module_files
from experiments.specs.digest import digest
from experiments.specs.run import RunSpec


def evaluation_code_hash(spec: RunSpec) -> str:
    """Hash of the task's evaluation code, one suite file and our own task definitions."""
    assert spec.suite is not None  # every run of a study has one
    files = [suite_path(spec.suite), *suite_files(load_suite(spec.suite))]
    texts = {path.name: path.read_text("utf-8") for path in files if path.suffix != ".py"}
    modules = [*module_files(tasks.get(spec.task).EVALUATION)]
    modules += [path for path in files if path.suffix == ".py"]
    return digest([code_hash(*modules), texts])
