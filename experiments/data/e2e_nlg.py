"""E2E (Novikova, Dusek and Rieser 2017): texts on restaurants from attributes and their values.

Read from the authors' own files, in which each set of attributes has its texts, up to 40 of them.
"""

from experiments.data.base import SPLITS, Dataset, Source, Texts
from experiments.data.data_to_text import documents
from experiments.data.hub import load_rows
from experiments.data.mirror import missing_rows

NAME, HUB_ID = "e2e-nlg", "tuetschek/e2e_nlg"
COLUMNS = ("meaning_representation", "human_reference")


def _read(source: Source) -> Texts:
    rows = load_rows(NAME, HUB_ID, None, COLUMNS, source)
    pairs = {split: zip(*(rows[split][name] for name in COLUMNS), strict=True) for split in SPLITS}
    return documents(pairs, {"hub_id": HUB_ID})


DATASETS = (
    Dataset(
        name=NAME,
        license="CC BY-SA 4.0",
        source=HUB_ID,
        splits="as published: no set of attributes is in two of them",
        read=_read,
        missing=lambda source: missing_rows(NAME, HUB_ID, None, source),
    ),
)
