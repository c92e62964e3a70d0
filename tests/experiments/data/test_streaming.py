"""Streamed datasets against the same rows read at once."""

import tracemalloc

import pytest

from experiments import data
from experiments.data import hub, streaming
from experiments.data.base import Source
from tests.experiments.data.mirrors import write_mirror

HUB_ID = "DKYoon/SlimPajama-6B"
ROWS = {
    "train": ["the cat and the dog", " ", "a dog and a cat\n", "no cat", "the last one"],
    "validation": ["v one", "v two"],
    "test": ["t one"],
}


def test_streamed_text_gives_the_tokens_of_text_read_at_once(tmp_path, monkeypatch):
    write_mirror(tmp_path, HUB_ID, ROWS)
    assert data.available("slimpajama-6b", tmp_path) is None
    meta = data.prepare("slimpajama-6b", out=tmp_path / "one", vocab_size=270, mirror=tmp_path)
    whole = hub.hub_dataset("slimpajama-6b", HUB_ID, license="")
    monkeypatch.setattr(data, "get", lambda name, kind=None: whole)
    other = data.prepare("slimpajama-6b", out=tmp_path / "two", vocab_size=270, mirror=tmp_path)
    assert meta["hash"] == other["hash"]
    assert meta["num_documents"] == {"train": 4, "validation": 2, "test": 1}
    assert data.load(tmp_path / "one").text("validation") == ["v one", "v two"]


def test_a_limit_takes_the_first_documents_and_changes_the_digest(tmp_path):
    write_mirror(tmp_path, "a/b", ROWS)
    source = Source(tmp_path, True)
    two, all_of_it = (
        streaming.streamed_dataset("b", "a/b", license="", num_train=n).read(source)
        for n in (2, None)
    )
    assert list(two.splits["train"]) == ["the cat and the dog", "a dog and a cat"]
    assert len(two.splits["train"]) == 2 and len(all_of_it.splits["train"]) == 4
    assert two.digest() != all_of_it.digest()
    write_mirror(tmp_path, "a/b", {**ROWS, "train": ["another"]})
    again = streaming.streamed_dataset("b", "a/b", license="", num_train=2).read(source)
    assert again.digest() != two.digest()


def test_memory_does_not_grow_with_the_documents(tmp_path):
    write_mirror(tmp_path, "a/b", {**ROWS, "train": [f"{n} " * 4000 for n in range(3000)]})
    documents = streaming.streamed_dataset("b", "a/b", license="").read(Source(tmp_path, True))
    next(iter(documents.splits["train"]))
    tracemalloc.start()
    size = sum(len(text) for text in documents.splits["train"])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size > 50e6 and peak < size / 2


def test_what_is_not_mirrored_or_not_text_is_one_sentence(tmp_path):
    with pytest.raises(data.MissingData, match=f"slimpajama-6b needs {HUB_ID}"):
        data.prepare("slimpajama-6b", out=tmp_path / "out", vocab_size=270, mirror=tmp_path)
    import pyarrow as pa
    import pyarrow.parquet as pq

    write_mirror(tmp_path, HUB_ID, ROWS)
    for split in ROWS:
        file = tmp_path / HUB_ID / "default" / f"{split}.parquet"
        pq.write_table(pa.table({"words": ["x"]}), file)
    with pytest.raises(data.MissingData, match="has no column 'text', but words"):
        data.prepare("slimpajama-6b", out=tmp_path / "out", vocab_size=270, mirror=tmp_path)
