"""Registry, tokenizers, token files, mirrored datasets, and prepared files that are damaged."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from experiments import data
from experiments.data import base, files, packing
from experiments.data.base import SPLITS
from experiments.store.io import read_jsonl
from tests.experiments.data.mirrors import write_mirror

DOCUMENTS = ["The cat sat on the mat.", "A dog is not a cat, is it?\n\nNo.", "naïve ☃ text"] * 5


def test_an_unknown_name_and_missing_data_are_one_sentence_before_any_work(tmp_path):
    assert {"wikipedia", "wikipedia-start", "wikitext-2"} <= set(data.names())
    for name in ("wikipedia", "wikipedia-start", "e2e-nlg", "webnlg-2017"):
        assert data.available(name) is None  # embedded
    with pytest.raises(ValueError, match="'wikitext2', .*; did you mean 'wikitext-2'"):
        data.get("wikitext2")
    for config in ("wikitext-103-v1", "wikitext-2-v1"):
        write_mirror(tmp_path / config, "Salesforce/wikitext", {"test": ROWS}, [config])
    for mirror, words in (
        (None, "Salesforce/wikitext.*SPARSE_MIRROR"),
        (tmp_path / "wikitext-103-v1", "wikitext-2-v1"),
        (tmp_path / "wikitext-2-v1", "has no train split"),
    ):
        said = data.available("wikitext-2", mirror)
        assert re.search(words, said) if said else "split" in words  # which reading tells
        with pytest.raises(data.MissingData, match=words):
            data.prepare("wikitext-2", out=tmp_path / "out", vocab_size=300, mirror=mirror)
    assert not (tmp_path / "out").exists()


def test_bpe_round_trips_any_text_and_loads_with_transformers_and_documents_have_ends(tmp_path):
    first, second = (packing.train_bpe(DOCUMENTS, vocab_size=300) for _ in range(2))
    assert first.to_str() == second.to_str()
    assert first.token_to_id(base.END_OF_TEXT) == 0
    for text in [*DOCUMENTS, "ünseen \t bytes 𝄞"]:
        assert first.decode(first.encode(text).ids) == text
    packing.save_tokenizer(first, tmp_path / "bpe")
    bpe = AutoTokenizer.from_pretrained(tmp_path / "bpe")
    assert bpe(DOCUMENTS[0]).input_ids == first.encode(DOCUMENTS[0]).ids
    assert (bpe.eos_token, bpe.eos_token_id) == (base.END_OF_TEXT, 0)
    built = packing.train_bpe(DOCUMENTS, vocab_size=300)
    count = packing.write_tokens(DOCUMENTS, built, tmp_path / "x.bin")
    tokens = packing.read_tokens(tmp_path / "x.bin")
    assert tokens.dtype == np.uint16 and len(tokens) == count
    ends = np.flatnonzero(np.asarray(tokens) == 0)
    pieces = np.split(np.asarray(tokens), ends + 1)[:-1]
    assert [built.decode(piece[:-1].tolist()) for piece in pieces] == DOCUMENTS


@pytest.mark.parametrize("size", [256, 65537])
def test_vocabulary_must_fit_bytes_and_uint16(size):
    with pytest.raises(ValueError, match=f"vocab_size is {size}"):
        packing.train_bpe(DOCUMENTS, vocab_size=size)


ROWS = ["", " = One = \n", "", " Text of <unk> one . \n", " = = Part = = \n", "", " More . \n", "",
        " = Two = \n", "", " x \n", " = y = \n", " z \n"]  # fmt: skip


def test_mirrored_dataset_is_prepared_and_loaded(tmp_path, monkeypatch):
    rows = dict.fromkeys(("train", "validation", "test"), ROWS)
    write_mirror(tmp_path, "Salesforce/wikitext", rows, ["wikitext-2-v1"])
    assert data.available("wikitext-2", tmp_path) is None
    monkeypatch.setenv("SPARSE_MIRROR", str(tmp_path))
    assert data.available("wikitext-2") is None
    out = tmp_path / "out"
    meta = data.prepare("wikitext-2", out=out, vocab_size=300, mirror=tmp_path)
    assert json.loads((out / "meta.json").read_text()) == meta
    corpus = data.load(out)
    assert meta["num_documents"] == {"train": 2, "validation": 2, "test": 2}
    first, second = (row["text"] for row in read_jsonl(out / "text" / "test.jsonl"))
    assert first.startswith("= One =") and "= = Part = =" in first
    assert "= y =" in second  # a formula line between text lines is no title
    assert len(corpus.tokens("train")) == meta["num_tokens"]["train"]
    assert {"hash", "license", "source", "splits", "eos_id", "hub_id"} <= meta.keys()
    assert corpus.tokenizer_dir.is_dir()


def test_hash_follows_text_and_vocabulary(tmp_path):
    mirror, out = tmp_path / "mirror", tmp_path / "out"

    def prepared(train, vocab_size):
        rows = {"train": [train], "validation": ["v v v"], "test": ["t t t"]}
        write_mirror(mirror, "local/enwiki-2014-slice", rows)
        return data.prepare("enwiki-slice", out=out, vocab_size=vocab_size, mirror=mirror)["hash"]

    first = prepared("the cat and the dog and the cat", 260)
    (out / "tokenizer" / "tokenizer.json").write_text('{"version"')
    assert prepared("the cat and the dog and the cat", 260) == first
    assert prepared("the cat and the dog and the cat", 262) != first
    assert prepared("the cat and the cow and the cat", 260) != first


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_bytes(b"no xz")])
def test_a_damaged_embedded_file_is_one_sentence(spoil, tmp_path, monkeypatch):
    shutil.copytree(base.EMBEDDED / "wikipedia", tmp_path / "wikipedia")
    monkeypatch.setattr(base, "EMBEDDED", tmp_path)
    spoil(tmp_path / "wikipedia" / "train.txt.xz")
    with pytest.raises(data.MissingData, match="train.txt.xz is missing or damaged .*git checkout"):
        data.prepare("wikipedia-start", out=tmp_path / "out", vocab_size=300)


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
