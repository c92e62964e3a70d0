"""Paths of everything that runs, reports and commands read and write.

Paths are relative to the folder that a command works in, the repository's root, but for committed
files. Every name that becomes part of a path goes through `name` or is a scale, so none leads out
of its folder.
"""

from __future__ import annotations

import re
from pathlib import Path

from experiments.specs.code import ROOT
from experiments.specs.schema import NAME, SCALES, SpecError, check_choice

#: Committed records and tables, a folder for each study and each computation.
REFERENCE = ROOT / "results" / "reference"
#: The scale of the committed tables of computations.
REFERENCE_SCALE = "small"
DATA = Path("resources/data")
RESULTS = Path("results")
REPORTS = Path("reports")
STATE = Path("state")
#: Folders of ``results/<scale>`` that belong to no study.
RESERVED = ("runs", "computations", "verify")
#: In a run's ``model``: the masks that its weights were trained with, and the folder of states that
#: other runs continue, named by their steps.
MASKS, STATES = "masks.safetensors", "states"
MAX_LENGTH = 200


def name(key: str, value: str) -> str:
    """A name that may be part of a path.

    Raises:
        SpecError: If the name is empty, too long, or holds other characters than `NAME` allows.
    """
    if not re.fullmatch(NAME, value) or len(value) > MAX_LENGTH:
        raise SpecError(
            f"{key} is {value!r}, but a name has letters, digits and any of _ . -, begins with a "
            f"letter, a digit or _, and has at most {MAX_LENGTH} characters"
        )
    return value


def data(label: str) -> Path:
    """Prepared data."""
    return DATA / name("data", label)


def scale(scale_name: str) -> Path:
    """All results of a scale."""
    check_choice("scale", scale_name, SCALES)
    return RESULTS / scale_name


def reports(scale_name: str) -> Path:
    """The front page of a scale and its studies' folders."""
    check_choice("scale", scale_name, SCALES)
    return REPORTS / scale_name


def run(scale_name: str, run_id: str) -> Path:
    """A run's ``train.json``, ``metrics.jsonl``, ``model/``, ``eval.json`` and ``record.json``."""
    return scale(scale_name) / "runs" / name("run", run_id)


def verified(scale_name: str, run_id: str) -> Path:
    """Files as those of `run`, from training a run again to compare it with its record."""
    return scale(scale_name) / "verify" / name("run", run_id)


def study(scale_name: str, study_name: str) -> Path:
    """A study's ``records.csv``, ``curves.csv``, and its records as Parquet."""
    if study_name in RESERVED:
        raise SpecError(f"study is {study_name!r}, which is the name of a folder of results")
    return scale(scale_name) / name("study", study_name)


def page(scale_name: str, study_name: str) -> Path:
    """A study's page, with ``figures/`` and ``tables/``."""
    return reports(scale_name) / name("study", study_name)


def computation(scale_name: str, computation_name: str) -> Path:
    """The tables of a computation."""
    return scale(scale_name) / "computations" / name("computation", computation_name)


def state(run_id: str, spec_hash: str, *, root: Path = STATE) -> Path:
    """A run's saved states, from which an interrupted training continues."""
    return root / f"{name('run', run_id)}-{spec_hash[:12]}"
