"""Where everything lies, relative to the folder that a command works in.

Every name that becomes part of a path goes through `name`, so no name leads out of its folder.
"""

import re
from pathlib import Path

from experiments.specs.schema import SCALES, SpecError, check_choice

DATA = Path("resources/data")
RESULTS = Path("results")
REPORTS = Path("reports")
STATE = Path("state")
#: What a name may be, as Snakemake's wildcards match it: one path component, no option, not hidden.
NAME = r"[A-Za-z0-9_][A-Za-z0-9_.+=@-]*"
#: Folders of ``results/<scale>`` that belong to no study.
RESERVED = ("runs", "computations")
MAX_LENGTH = 200


def name(key: str, value: str) -> str:
    """Return a name that may be part of a path.

    Args:
        key: What the name stands for, for the message.
        value: The name.

    Raises:
        SpecError: If the name is empty, too long, or holds other characters than `NAME` allows.
    """
    if not re.fullmatch(NAME, value) or len(value) > MAX_LENGTH:
        raise SpecError(
            f"{key} is {value!r}, but a name has letters, digits and any of _ . + = @ -, begins "
            f"with a letter, a digit or _, and has at most {MAX_LENGTH} characters"
        )
    return value


def prepared_data(label: str) -> Path:
    """Folder of one prepared dataset."""
    return DATA / name("data", label)


def results(scale: str) -> Path:
    """Folder of the results of one scale."""
    check_choice("scale", scale, SCALES)
    return RESULTS / scale


def reports(scale: str) -> Path:
    """Folder of the pages of one scale."""
    check_choice("scale", scale, SCALES)
    return REPORTS / scale


def run(scale: str, run_id: str) -> Path:
    """Folder of one run's files."""
    return results(scale) / "runs" / name("run", run_id)


def study(scale: str, study_name: str) -> Path:
    """Folder of a study's collected tables."""
    if study_name in RESERVED:
        raise SpecError(f"study is {study_name!r}, which is the name of a folder of results")
    return results(scale) / name("study", study_name)


def page(scale: str, study_name: str) -> Path:
    """Folder of a study's page, its figures and its tables."""
    return reports(scale) / name("study", study_name)


def computation(scale: str, computation_name: str) -> Path:
    """Folder of the tables of one computation."""
    return results(scale) / "computations" / name("computation", computation_name)
