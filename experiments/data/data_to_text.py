"""Data-to-text datasets: a document is the data in one line and a text that says them.

Here are those of the SPDF paper as the GEM benchmark has them, E2E, WebNLG and DART; `documents`
is for any dataset of this kind. The paper's fourth dataset, the Curation Corpus, is published as
addresses of articles without their text, so no hub id has it.
"""

import random
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from experiments.data.base import SPLITS, Dataset, Source, Texts
from experiments.data.hub import fetch, load_rows
from experiments.data.mirror import missing_rows

HUB_ID = "GEM/gem"
#: Rows for generation: the prompt, and all texts that say the same. One file for each split that
#: is written about; the test split's is read by the final evaluation alone.
REFERENCES_FILES = {"test": "references.jsonl", "validation": "validation-references.jsonl"}
#: Seed of the order of documents.
ORDER_SEED = 3


def _facts(triples: list[str]) -> str:
    return " && ".join(triples)


def one_line(text: str) -> str:
    """The text without line breaks, tabs and runs of spaces."""
    return " ".join(text.split())


def documents(
    pairs: Mapping[str, Iterable[tuple[str, str]]], meta: Mapping[str, Any] | None = None
) -> Texts:
    """The texts of a dataset from its pairs of data and text.

    A document is the data in one line, a line break, and the text in one line. Documents are
    shuffled by a fixed seed, because texts of equal data stand side by side in some datasets, and
    a model would learn to copy the document before.

    Args:
        pairs: Data and text, by split. Data may occur several times, with a text each.
        meta: Facts for meta.json.
    """
    splits: dict[str, list[str]] = {}
    rows: dict[str, list[dict[str, Any]]] = {}
    for split in SPLITS:
        texts: dict[str, list[str]] = {}
        for data, text in pairs[split]:
            texts.setdefault(one_line(data) + "\n", []).append(one_line(text))
        splits[split] = [prompt + text for prompt, known in texts.items() for text in known]
        random.Random(f"{ORDER_SEED} {split}").shuffle(splits[split])
        if split in REFERENCES_FILES:
            rows[REFERENCES_FILES[split]] = [
                {"prompt": prompt, "references": list(dict.fromkeys(known))}
                for prompt, known in texts.items()
            ]
    return Texts(splits, meta or {}, rows)


def data_to_text(
    name: str, config: str, *, license: str, column: str, to_line: Callable[[Any], str]
) -> Dataset:
    """Describe one dataset of the benchmark.

    Args:
        name: Name used in studies.
        config: Its config in the benchmark.
        license: Licence as published.
        column: Column that holds the data.
        to_line: Writes that column's value in one line.
    """

    def missing(source: Source) -> str | None:
        return missing_rows(name, HUB_ID, config, source)

    def read(source: Source) -> Texts:
        columns = (column, "target", "references")
        rows = load_rows(name, HUB_ID, config, columns, source)
        splits: dict[str, list[str]] = {}
        sentences: dict[str, list[str]] = {}
        for split in SPLITS:
            splits[split] = []
            values = [rows[split][name] for name in columns]
            for data, target, references in zip(*values, strict=True):
                prompt = one_line(to_line(data)) + "\n"
                splits[split].append(prompt + target)
                if split == "test":
                    known = sentences.setdefault(prompt, [])
                    known += [text for text in references or [target] if text not in known]
        generation = [{"prompt": key, "references": texts} for key, texts in sentences.items()]
        extras = {REFERENCES_FILES["test"]: generation}
        return Texts(splits, {"hub_id": HUB_ID, "config": config}, extras)

    return Dataset(
        name=name,
        license=license,
        source=f"{HUB_ID} ({config})",
        splits="as published",
        read=read,
        missing=missing,
        fetch=partial(fetch, HUB_ID, config),
    )


DATASETS = (
    data_to_text(
        "e2e",
        "e2e_nlg",
        license="CC BY-SA 4.0",
        column="meaning_representation",
        to_line=str,
    ),
    data_to_text(
        "webnlg",
        "web_nlg_en",
        license="CC BY-NC 4.0",
        column="input",
        to_line=_facts,
    ),
    data_to_text(
        "dart",
        "dart",
        license="MIT",
        column="tripleset",
        to_line=lambda triples: _facts([" | ".join(triple) for triple in triples]),
    ),
)
