"""Prepared data are verified: any file that is missing, cut or changed is named."""

import json

import numpy as np
import pytest

from experiments import data
from experiments.data import files
from experiments.data.base import SPLITS
from tests.experiments.data.mirrors import write_mirror


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    data.prepare("glyphs", out=folder / "images", num_images=47)
    write_mirror(folder / "mirror", "local/enwiki-2014-slice", {s: ["a b c"] * 9 for s in SPLITS})
    data.prepare("enwiki-slice", out=folder / "text", vocab_size=260, mirror=folder / "mirror")
    return folder


@pytest.fixture(params=["images", "text"])
def folder(prepared, request):
    """A prepared dataset, whose files are put back afterwards."""
    folder = prepared / request.param
    kept = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    data.verify(folder)
    yield folder
    for path, content in kept.items():
        path.write_bytes(content)


def damaged(folder, path, content):
    """The sentence for a folder with one file changed, or deleted where the content is None."""
    kept = path.read_bytes()
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(ValueError) as caught:
        data.verify(folder)
    path.write_bytes(kept)
    return str(caught.value)


def test_each_file_is_checked_for_each_kind_of_damage(folder):
    listed = [*json.loads((folder / files.LIST).read_text())]
    hashed = {path.relative_to(folder).as_posix() for path in files.hashed_files(
        folder, data.load(folder).meta)}  # fmt: skip
    assert {*hashed, files.META} <= {*listed}
    rng = np.random.default_rng(0)
    for name in listed:
        content = bytearray((folder / name).read_bytes())
        assert name in damaged(folder, folder / name, content[: len(content) // 2])
        content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
        assert name in damaged(folder, folder / name, content)
        if name != files.META:
            assert f"{name} is missing" in damaged(folder, folder / name, None)
    for content in (b"", b"{}", b"[1]", b'{"meta.json": 3}', b"\xff"):
        assert str(folder) in damaged(folder, folder / files.LIST, content)
    for content in (b"", b"7", b"{}"):
        assert files.META in damaged(folder, folder / files.META, content)
    data.verify(folder)


def test_a_large_file_is_sampled_with_its_ends_and_none_is_missing_data(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "WHOLE", 1000)
    monkeypatch.setattr(files, "BLOCK", 16)
    path, content = tmp_path / "a.bin", bytearray(range(256)) * 16
    path.write_bytes(content)
    files.seal(tmp_path, {"name": "a", "hash": "b"}, [path])
    for place in (0, 15, len(content) - 1, len(content) - 16):
        changed = bytearray(content)
        changed[place] ^= 1
        assert "a.bin is not as it was prepared" in damaged(tmp_path, path, changed)
    assert "a.bin has 4095 bytes instead of 4096" in damaged(tmp_path, path, content[:-1])
    with pytest.raises(data.MissingData, match="no prepared dataset"):
        data.verify(tmp_path / "nothing")
