"""What rules and commands know of studies and runs; it imports neither torch nor pandas."""

from __future__ import annotations

import json
from pathlib import Path

from experiments import tasks
from experiments.specs.code import ROOT, code_hash, module_files
from experiments.specs.digest import digest
from experiments.specs.expand import (
    BUDGET_CORE_S,
    Run,
    all_runs,
    computation_costs,
    load_single,
    make_spec,
    study_runs,
)
from experiments.specs.lookup import (
    find_data,
    find_run,
    find_runs,
    known_runs,
    rerun_command,
    study_as_dict,
)
from experiments.specs.read import (
    PUBLISHED,
    STUDIES,
    claim_ids,
    claim_tests,
    computation_names,
    load_study,
    study_names,
    suite_names,
)
from experiments.specs.run import RunSpec
from experiments.specs.schema import SCALES, SpecError, Study, check_choice
from experiments.store.paths import REFERENCE_RUNS as REFERENCE

__all__ = [
    "BUDGET_CORE_S", "EXECUTIONS", "PUBLISHED", "REFERENCE", "ROOT", "SCALES", "STUDIES", "Run",
    "RunSpec", "SpecError", "Study", "all_runs", "check_choice", "claim_ids", "claim_tests",
    "code_hash", "computation_costs", "computation_names", "digest", "evaluation_code_hash",
    "find_data", "find_run", "find_runs", "known_runs", "load_single", "load_study", "make_spec",
    "rerun_command", "reusable", "study_as_dict", "study_names", "study_runs", "suite_names",
    "training_code_hash",
]  # fmt: skip

EXECUTIONS = ("auto", "dense", "skip")


def training_code_hash(spec: RunSpec) -> str:
    """Hash of the code that one run's training executes: core, its model, its algorithm."""
    entries = [
        ROOT / "experiments" / "training" / "loop.py",
        ROOT / "experiments" / "tasks" / f"{spec.task}.py",
        ROOT / "experiments" / "models" / f"{spec.model.name}.py",
    ]
    if spec.sparsity is not None:
        entries.append(ROOT / "sparse_lib" / "algorithms" / f"{spec.algorithm}.py")
    if spec.transform is not None:
        entries.append(ROOT / "experiments" / "models" / "_transform.py")
    return code_hash(*entries)


def evaluation_code_hash(spec: RunSpec) -> str:
    """Hash of the task's evaluation code, one suite file and our own task definitions."""
    from experiments.evaluation.suite import load_suite, suite_files, suite_path

    files = [suite_path(spec.suite), *suite_files(load_suite(spec.suite))]
    texts = {path.name: path.read_text() for path in files if path.suffix != ".py"}
    modules = [*module_files(tasks.get(spec.task).EVALUATION)]
    modules += [path for path in files if path.suffix == ".py"]
    return digest([code_hash(*modules), texts])


def reusable(run: Run, *, data_folder: Path) -> bool:
    """Whether a committed record answers for this run: same spec, and same data if prepared."""
    if not run.reference.is_file():
        return False
    record = json.loads(run.reference.read_text())
    if record["spec_hash"] != run.spec_hash or record["spec"]["suite"] != run.spec.suite:
        return False
    meta = data_folder / run.data_label / "meta.json"
    return not meta.is_file() or json.loads(meta.read_text())["hash"] == record["data"]["hash"]
