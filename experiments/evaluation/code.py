"""Which code and settings a run's scores depend on."""

from __future__ import annotations

import functools

from experiments import tasks
from experiments.evaluation.suite import load_suite, suite_files, suite_path
from experiments.specs.code import code_hash, module_files
from experiments.specs.digest import digest


@functools.cache
def evaluation_code_hash(task: str, suite: str) -> str:
    """Hash of a task's evaluation code, one suite file and our own task definitions."""
    files = [suite_path(suite), *suite_files(load_suite(suite))]
    texts = {path.name: path.read_text("utf-8") for path in files if path.suffix != ".py"}
    modules = [*module_files(tasks.get(task).EVALUATION)]
    modules += [path for path in files if path.suffix == ".py"]
    return digest([code_hash(*modules), texts])
