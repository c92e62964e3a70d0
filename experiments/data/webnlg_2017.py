"""WebNLG 2017 (Gardent et al. 2017): texts that say one to seven facts of DBpedia.

A fact is a subject, a property and an object. Five categories of the published test split occur in
no other split; its sets of facts from the other ten are the test split here, and those of the five
are left out: small models cannot spell names that they have never read.
"""

from collections.abc import Iterator

from experiments.data.base import SPLITS, Dataset, Source, Texts
from experiments.data.data_to_text import documents
from experiments.data.hub import load_rows
from experiments.data.mirror import missing_rows

NAME, HUB_ID = "webnlg-2017", "local/webnlg-2017"
COLUMNS = ("category", "triples", "texts")


def line(triples: list[list[str]]) -> str:
    """Facts in one line: ``Aarhus Airport | cityServed | Aarhus && ...``.

    Underscores of names become spaces, and the quotation marks around literals go.
    """
    return " && ".join(
        " | ".join(part.replace("_", " ").strip('" ') for part in triple) for triple in triples
    )


def _read(source: Source) -> Texts:
    rows = load_rows(NAME, HUB_ID, None, COLUMNS, source)
    seen = set(rows["train"]["category"])

    def pairs(split: str) -> Iterator[tuple[str, str]]:
        for category, triples, texts in zip(*(rows[split][c] for c in COLUMNS), strict=True):
            if category in seen:
                yield from ((line(triples), text) for text in texts)

    return documents({split: pairs(split) for split in SPLITS}, {"hub_id": HUB_ID})


DATASETS = (
    Dataset(
        name=NAME,
        license="none stated: research use",
        source=HUB_ID,
        splits="as published, without the test split's categories that are not in training",
        read=_read,
        missing=lambda source: missing_rows(NAME, HUB_ID, None, source),
    ),
)
