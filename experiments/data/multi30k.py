"""Multi30k (Elliott et al. 2016): English captions of photographs and their German translations.

A document is an English sentence, a line break, and a German one.
"""

from experiments.data.base import SPLITS, Dataset, Source, Texts
from experiments.data.data_to_text import documents
from experiments.data.hub import load_rows
from experiments.data.mirror import missing_rows

NAME, HUB_ID = "multi30k", "bentrevett/multi30k"
COLUMNS = ("en", "de")


def _read(source: Source) -> Texts:
    rows = load_rows(NAME, HUB_ID, None, COLUMNS, source)
    pairs = {split: zip(*(rows[split][name] for name in COLUMNS), strict=True) for split in SPLITS}
    return documents(pairs, {"hub_id": HUB_ID})


DATASETS = (
    Dataset(
        name=NAME,
        license="none stated: research use",
        source=HUB_ID,
        splits="as published; test is that of 2016",
        read=_read,
        missing=lambda source: missing_rows(NAME, HUB_ID, None, source),
    ),
)
