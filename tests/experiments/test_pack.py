"""A study travels as pieces, trains elsewhere without network, and its records come back."""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import pack
from experiments.errors import UserError
from experiments.specs.lookup import find_run

RUN = "smoke__resnet-tiny__wide75-rigl-s0.75__glyphs-n470__sgd__seed0"
HERE = {name for found in importlib.metadata.distributions() if (name := found.metadata["Name"])}


def without_network() -> list[str]:
    """Words that begin a command without network, where the system allows it."""
    words = ["unshare", "--map-root-user", "--net"]
    able = (
        shutil.which("unshare")
        and not subprocess.run([*words, "true"], capture_output=True).returncode
    )
    return words if able else []


def go(pieces: Path, *options: str, **kwargs) -> subprocess.Popen:
    """Start what the far machine is told to run; it sees no file of this repository."""
    packages = [path for path in sys.path if path.endswith("site-packages")]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(packages)}
    environment["OMP_NUM_THREADS"] = "1"
    command = [*without_network(), sys.executable, str(pieces / "go.py"), "--device", "cpu"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([*command, *options], env=environment, **pipes, **kwargs)


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed")
    before = Path.cwd()
    os.chdir(folder)
    facts = pack.pack([find_run(RUN)], folder / "out", limit_mb=20, piece_mb=1, has=HERE)
    yield folder, facts
    os.chdir(before)


@pytest.mark.slow
def test_pieces_train_without_network_and_records_come_back(packed, tmp_path):
    folder, facts = packed
    pieces = sorted((folder / "out").glob("piece.*"))
    assert len(pieces) > 1 and all(piece.stat().st_size <= 10**6 for piece in pieces)
    visit = tmp_path / "visit"
    shutil.copytree(folder / "out", visit, ignore=lambda *_: ["piece.001"])
    first = go(visit, "--to", "there", cwd=tmp_path)
    assert "still to come: piece.001" in first.communicate()[0] and first.returncode
    shutil.copy(pieces[1], visit)
    last = go(visit, "--to", "there", "--back", "back", "--at-once", "2", cwd=tmp_path)
    said = last.communicate()[0]
    assert not last.returncode and "1 of 1 runs are done" in said, said
    facts = json.loads((visit / "pack.json").read_text())
    facts["runs"].insert(0, {"scale": "smoke", "run": "unknown"})
    (visit / "pack.json").write_text(json.dumps(facts))
    another = go(visit, "--to", "there", "--back", "back", cwd=tmp_path)
    assert "1 of 2 runs are done" in (said := another.communicate()[0]) and another.returncode
    assert "Error: unknown failed" in said
    ((run, path),) = pack.returned(tmp_path / "back")
    assert run.id == RUN
    text = path.read_text()
    for key, name in (("code_hash", "code"), ("data", "data")):
        record = json.loads(text)
        own = record[key]["hash"] if key == "data" else record[key]
        path.write_text(text.replace(own, "0" * 64))
        with pytest.raises(UserError, match=f"{name} hash is 0{{64}}, but the {name} .* {own}"):
            pack.returned(path.parent)


def test_a_pack_that_is_too_large_says_what_is_large(packed):
    with pytest.raises(UserError, match=r"the pack has \d+ MB, but --limit-mb is 1: drop .*code: "):
        pack.pack([find_run(RUN)], packed[0] / "large", limit_mb=1, piece_mb=1, has=HERE)
    assert not (packed[0] / "large").exists()


def test_requirements_are_what_the_machine_lacks_and_built_without_a_wheel(tmp_path, monkeypatch):
    found = pack.required(["pydantic"], has=["typing_extensions"])
    assert {"pydantic", "pydantic-core", "annotated-types"} <= found.keys()
    assert "typing-extensions" not in found
    source = tmp_path / "probe-1.0"
    source.mkdir()
    (source / "pyproject.toml").write_text('[project]\nname = "probe"\nversion = "1.0"\n')
    (source / "probe.py").write_text("")
    shutil.make_archive(str(source), "gztar", tmp_path, "probe-1.0")
    for name, value in (("NO_INDEX", "1"), ("NO_BUILD_ISOLATION", "0"), ("FIND_LINKS", tmp_path)):
        monkeypatch.setenv(f"PIP_{name}", str(value))
    (wheel,) = pack.download({"probe": "1.0"}, tmp_path / "wheels", None)
    assert wheel.name == "probe-1.0-py3-none-any.whl"
    with pytest.raises(UserError, match="a wheel is missing: .* other==1.0; name by --has"):
        pack.download({"other": "1.0"}, tmp_path / "wheels", None)
