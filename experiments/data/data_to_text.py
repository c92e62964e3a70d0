"""Data-to-text datasets of the SPDF paper, from the GEM benchmark: E2E, WebNLG and DART.

A document is the data in one line and a sentence on the next. The paper's fourth dataset, the
Curation Corpus, is published as addresses of articles without their text, so no hub id has it.
"""

from collections.abc import Callable
from typing import Any

from experiments.data.base import SPLITS, Dataset, Source, Texts
from experiments.data.hub import load_rows, missing_rows

HUB_ID = "GEM/gem"
#: Rows for generation: the prompt, and all sentences that say the same.
REFERENCES_FILE = "references.jsonl"


def _facts(triples: list[str]) -> str:
    return " && ".join(triples)


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
        documents: dict[str, list[str]] = {}
        sentences: dict[str, list[str]] = {}
        for split in SPLITS:
            documents[split] = []
            values = [rows[split][name] for name in columns]
            for data, target, references in zip(*values, strict=True):
                prompt = " ".join(to_line(data).split()) + "\n"
                documents[split].append(prompt + target)
                if split == "test":
                    known = sentences.setdefault(prompt, [])
                    known += [text for text in references or [target] if text not in known]
        generation = [{"prompt": key, "references": texts} for key, texts in sentences.items()]
        return Texts(documents, {"hub_id": HUB_ID, "config": config}, {REFERENCES_FILE: generation})

    return Dataset(
        name=name,
        license=license,
        source=f"{HUB_ID} ({config})",
        splits="as published",
        read=read,
        missing=missing,
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
