"""Layouts in which people keep local copies of hub datasets."""

import hashlib
import re

import pytest

from experiments import data
from experiments.data import enwiki_slice
from experiments.data.base import Source

SPLITS = ("train", "validation", "test")
CONFIG = "wikitext-2-v1"
REPOSITORY = "datasets--Salesforce--wikitext"


def rows():
    """The same three lines in every split."""
    import datasets

    lines = ["", " = Title = ", "", " the text ", ""]
    return datasets.DatasetDict(dict.fromkeys(SPLITS, datasets.Dataset.from_dict({"text": lines})))


def write(folder, suffix):
    folder.mkdir(parents=True)
    for split, own in rows().items():
        path = str(folder / f"{split}{suffix}")
        own.to_parquet(path) if suffix.endswith("parquet") else own.to_json(path)


def cached(root):
    snapshot = root / REPOSITORY / "snapshots" / "0123"
    write(snapshot / CONFIG, "-00000-of-00001.parquet")
    (root / REPOSITORY / "refs").mkdir()
    (root / REPOSITORY / "refs" / "main").write_text("0123")


LAYOUTS = {
    "parquet by config": lambda root, own: write(own / CONFIG, "-00000-of-00001.parquet"),
    "parquet": lambda root, own: write(own, ".parquet"),
    "parquet in data": lambda root, own: write(own / "data", "-00000-of-00001.parquet"),
    "JSON Lines": lambda root, own: write(own, ".jsonl"),
    "saved": lambda root, own: rows().save_to_disk(str(own)),
    "saved config": lambda root, own: rows().save_to_disk(str(own / CONFIG)),
    "hub cache": lambda root, own: cached(root),
    "HF_HOME": lambda root, own: cached(root / "hub"),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_local_copy_is_read_in_each_layout(name, tmp_path):
    LAYOUTS[name](tmp_path, tmp_path / "Salesforce/wikitext")
    assert data.available("wikitext-2", tmp_path) is None
    found = data.get("wikitext-2").read(Source(tmp_path)).splits
    assert found == dict.fromkeys(SPLITS, ["= Title = \n\n the text"])


def test_the_hubs_cache_is_read_and_missing_data_name_the_command(tmp_path, monkeypatch):
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    command = "`python -m experiments prepare --data wikitext-2` fetches it"
    mirror = tmp_path / "mirror"
    assert all(command in data.available("wikitext-2", place) for place in (None, mirror))
    (mirror / "Salesforce/wikitext").mkdir(parents=True)
    problem = data.available("wikitext-2", mirror)
    assert command in problem and "holds no parquet or JSON Lines files" in problem
    cached(tmp_path / "hub")
    assert data.available("wikitext-2") is None
    assert data.get("wikitext-2").read(Source()).splits["test"] == ["= Title = \n\n the text"]


def test_the_slice_of_wikipedia_is_joined_from_published_files_and_checked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = {}
    for name, (folder, numbers, _) in enwiki_slice.PARTS.items():
        articles = [f"<doc id={n}>\n{folder} &amp; {n}\n\nA &amp; B\n</doc>\n" for n in numbers]
        for number, article in zip(numbers, articles, strict=True):
            files[f"{folder}-{number:02}"] = article
        digest = hashlib.sha256("".join(articles).encode()).hexdigest()
        monkeypatch.setitem(enwiki_slice.PARTS, name, (folder, numbers, digest))
    for name, article in files.items():
        (tmp_path / name).write_text(article)
    monkeypatch.setattr(enwiki_slice, "ADDRESS", tmp_path.as_uri() + "/{}-{:02}")
    with pytest.raises(data.MissingData, match="prepare --data enwiki-slice"):
        data.get("enwiki-slice").read(Source())
    enwiki_slice.fetch()
    found = data.get("enwiki-slice").read(Source()).splits
    assert found["validation"][1] == "AD & 1\n\nA &amp; B"  # titles alone are unescaped
    assert [len(found[split]) for split in SPLITS] == [97 + 99 + 100, 10, 10]
    (tmp_path / "AB-07").write_text("changed")
    (tmp_path / enwiki_slice.FOLDER / "train-AB.txt").unlink()
    with pytest.raises(data.MissingData, match=re.escape("train-AB.txt")):
        enwiki_slice.fetch()
