"""WebNLG 2017 (Gardent et al. 2017): texts that say one to seven facts of DBpedia.

A fact is a subject, a property and an object. Five categories of the published test split occur in
no other split; its sets of facts from the other ten are the test split here, and those of the five
are left out: small models cannot spell names that they have never read. The files are embedded in
the repository; `embedded/LICENSE.md` has source and licence.
"""

import json
from collections.abc import Iterator

from experiments.data.base import SPLITS, Dataset, Source, Texts, opened
from experiments.data.data_to_text import documents


def line(triples: list[list[str]]) -> str:
    """Facts in one line: ``Aarhus Airport | cityServed | Aarhus && ...``.

    Underscores of names become spaces, and the quotation marks around literals go.
    """
    return " && ".join(
        " | ".join(part.replace("_", " ").strip('" ') for part in triple) for triple in triples
    )


def _read(source: Source) -> Texts:
    rows = {}
    for split in SPLITS:
        with opened(f"webnlg/{split}.jsonl") as file:
            rows[split] = [json.loads(text) for text in file]
    seen = {row["category"] for row in rows["train"]}

    def pairs(split: str) -> Iterator[tuple[str, str]]:
        for row in rows[split]:
            if row["category"] in seen:
                yield from ((line(row["triples"]), text) for text in row["texts"])

    return documents({split: pairs(split) for split in SPLITS})


DATASETS = (
    Dataset(
        name="webnlg-2017",
        license="CC BY-SA 4.0",
        source="ThiagoCF05/webnlg on GitHub, embedded in the repository",
        splits="as published, without the test split's categories that are not in training",
        read=_read,
    ),
)
