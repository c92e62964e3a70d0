"""A study's runs as files for a machine without network, and the records that come back.

A pack is a folder: ``piece.000``, ``piece.001``, ... (parts of one compressed archive),
``pack.json`` (what they hold) and ``go.py``, which unpacks and trains there.
"""

from __future__ import annotations

import importlib.metadata
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from experiments import tasks
from experiments.digest import file_digest
from experiments.errors import UserError
from experiments.specs.code import ROOT, training_code_hash
from experiments.specs.lookup import find_run
from experiments.specs.run import Run
from experiments.store import paths
from experiments.store.io import read_json, write_json
from experiments.store.record import Record, read_record

MB = 10**6
#: Distributions that a training and its scores import; their requirements come with them.
NEEDED = tuple(
    "torch numpy transformers safetensors pydantic typer pyyaml filelock psutil rich jinja2".split()
)
#: Packages that a suite with tasks of lm-eval imports.
HARNESS = ("lm-eval", "datasets", "sacrebleu")
#: Too large for a pack, and read only when data are prepared.
LEFT_OUT = ("experiments/data/embedded/", "__pycache__")


def pack(
    runs: Sequence[Run],
    out: Path,
    *,
    limit_mb: float,
    piece_mb: int,
    has: Collection[str],
    python: str | None = None,
) -> dict[str, Any]:
    """Write runs as pieces that a machine without network trains.

    Args:
        runs: In the order in which they are trained; first phases before what starts from them.
        out: The folder to write; it must be new or empty.

    Raises:
        UserError: If ``out`` is in use, a wheel cannot be found, or the pack exceeds the limit.
    """
    if out.exists() and any(out.iterdir()):
        raise UserError(f"out is {str(out)!r}, which is not empty; name a new folder")
    out.mkdir(parents=True, exist_ok=True)
    specs = {run.spec.data.label: run.spec for run in runs}
    data = {
        label: tasks.ensure(spec.task, spec.data, paths.data(label))
        for label, spec in specs.items()
    }
    with tempfile.TemporaryDirectory(prefix="pack-") as scratch:
        wheels = download(required(needed(runs), has), Path(scratch), python)
        whole, sizes = Path(scratch) / "whole", dict[str, int]()
        with whole.open("wb") as stream, tarfile.open(fileobj=stream, mode="w:gz") as archive:
            for label, files in {
                "code": [(path, path.relative_to(ROOT).as_posix()) for path in code_files()],
                **{
                    f"data {label}": [(folder, folder.as_posix())] for label, folder in data.items()
                },
                **{f"wheel {wheel.name}": [(wheel, f"wheels/{wheel.name}")] for wheel in wheels},
            }.items():
                before = stream.tell()
                for path, name in files:
                    archive.add(path, name)
                sizes[label] = stream.tell() - before
        total = whole.stat().st_size
        if total > limit_mb * MB:
            out.rmdir()
            largest = sorted(sizes.items(), key=lambda item: -item[1])[:4]
            raise UserError(
                f"the pack has {total / MB:.0f} MB, but --limit-mb is {limit_mb:g}: drop what "
                f"is large ({', '.join(f'{name}: {size / MB:.0f} MB' for name, size in largest)}), "
                "runs by --run, or packages that the machine has by --has"
            )
        with whole.open("rb") as parts:
            for number in range(-(-total // (piece_mb * MB))):
                (out / f"piece.{number:03}").write_bytes(parts.read(piece_mb * MB))
    facts = {
        "bytes": total,
        "pieces": {path.name: file_digest(path) for path in sorted(out.glob("piece.*"))},
        "runs": [{"run": run.id, "scale": run.scale} for run in runs],
    }
    write_json(out / "pack.json", facts)
    shutil.copyfile(Path(__file__).with_name("go.py"), out / "go.py")
    return facts


def returned(folder: Path) -> list[tuple[Run, Path]]:
    """Find and check the records that came back from a machine.

    Args:
        folder: Holds ``records.tar.gz`` as ``go.py`` writes it, or folders with ``record.json``.

    Raises:
        UserError: If there are none, or one is of another spec, code or data than is here.
    """
    for archive in sorted(folder.rglob("records.tar.gz")):
        with tarfile.open(archive) as file:
            file.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
            file.extractall(folder)
    found = []
    for path in sorted(folder.rglob("record.json")):
        record = read_record(path)
        run = find_run(record.run)
        _check(record, run, path)
        found.append((run, path))
    if not found:
        raise UserError(f"{folder} holds no records.tar.gz and no record.json")
    return found


def _check(record: Record, run: Run, path: Path) -> None:
    """Refuse a record that this repository would not have made."""
    label = run.spec.data.label
    meta = paths.data(label) / "meta.json"
    if not meta.is_file():
        raise UserError(
            f"{path}: prepare its data first: python -m experiments prepare --data {label}"
        )
    for what, own, other in (
        ("spec", run.spec.hash, record.spec_hash),
        ("code", training_code_hash(run.spec), record.code_hash),
        ("data", read_json(meta)["hash"], record.data.hash),
    ):
        if own != other:
            raise UserError(
                f"{path} is refused: its {what} hash is {other}, but the {what} here has {own}"
            )


def code_files() -> list[Path]:
    """Files of the library and of the studies, sources and tables."""
    return sorted(
        path
        for package in ("sparse_lib", "experiments")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and not any(part in path.as_posix() for part in LEFT_OUT)
    )


def needed(runs: Iterable[Run]) -> tuple[str, ...]:
    """Distributions that the runs import."""
    from experiments.evaluation.suite import KINDS, load_suite

    suites: set[Any] = {(run.spec.suite, KINDS[str(run.spec.data.KIND)]) for run in runs}
    harness = any(getattr(load_suite(*suite), "tasks", ()) for suite in suites)
    return NEEDED + HARNESS * harness


def required(names: Iterable[str], has: Collection[str]) -> dict[str, str]:
    """Name to version here of some distributions and all that they require.

    Args:
        has: Distributions to leave out, with what only they require.
    """
    found: dict[str, str] = {}
    queue, present = [*names], {canonicalize_name(name) for name in has}
    while queue:
        name = canonicalize_name(queue.pop())
        if name in found or name in present:
            continue
        own = importlib.metadata.distribution(name)
        found[name] = own.version
        for needed in map(Requirement, own.requires or ()):
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                queue.append(needed.name)
    return found


def download(versions: dict[str, str], folder: Path, python: str | None) -> list[Path]:
    """Fetch wheels with pip, build those that the index has as source alone; return their files."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    command = [*pip, "download", "--quiet", "--no-deps", "--only-binary=:all:", f"--dest={folder}"]
    if python is not None:
        command += ["--python-version", python]
        for glibc in ("2_28", "2_27", "2_17", "2_12", "2_5"):
            command += ["--platform", f"manylinux_{glibc}_{platform.machine()}"]
        command += ["--platform", f"manylinux2014_{platform.machine()}"]
    wanted = {name: f"{name}=={version.split('+')[0]}" for name, version in versions.items()}
    while wanted:
        done = subprocess.run([*command, *wanted.values()], capture_output=True, text=True)
        if not done.returncode:
            break
        lacking = re.search(r"No matching distribution found for ([\w.-]+)==", done.stderr)
        source = wanted.pop(canonicalize_name(lacking[1]), "") if lacking else ""
        build = [*pip, "wheel", "--quiet", "--no-deps", f"--wheel-dir={folder}", source]
        if not source or subprocess.run(build, capture_output=True).returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            raise UserError(
                f"a wheel is missing: {(lines or [done.stderr.strip()])[-1]}; name by --has what "
                "the machine has"
            )
    return sorted(folder.glob("*.whl"))
