"""Data-to-text datasets: a document is the data in one line and a text that says them."""

import random
from collections.abc import Iterable, Mapping
from typing import Any

from experiments.data.base import SPLITS, Texts

#: Rows for generation: the prompt, and all texts that say the same. One file for each split that
#: is written about; the test split's is read by the final evaluation alone.
REFERENCES_FILES = {"test": "references.jsonl", "validation": "validation-references.jsonl"}
#: Seed of the order of documents.
ORDER_SEED = 3


def one_line(text: str) -> str:
    """The text without line breaks, tabs and runs of spaces."""
    return " ".join(text.split())


def documents(pairs: Mapping[str, Iterable[tuple[str, str]]]) -> Texts:
    """The texts of a dataset from its pairs of data and text.

    A document is the data in one line, a line break, and the text in one line. Documents are
    shuffled by a fixed seed, because texts of equal data stand side by side in some datasets, and
    a model would learn to copy the document before.

    Args:
        pairs: Data and text, by split. Data may occur several times, with a text each.
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
    return Texts(splits, extras=rows)
