"""E2E (Novikova, Dusek and Rieser 2017): texts on restaurants from attributes and their values.

Read from the authors' own files, in which each set of attributes has its texts, up to 46 of them.
They are embedded in the repository; `embedded/LICENSE.md` has source and licence.
"""

import csv

from experiments.data.base import SPLITS, Dataset, Source, Texts, opened
from experiments.data.data_to_text import documents


def _read(source: Source) -> Texts:
    pairs = {}
    for split in SPLITS:
        with opened(f"e2e/{split}.csv") as file:
            pairs[split] = [(row["mr"], row["ref"]) for row in csv.DictReader(file)]
    return documents(pairs)


DATASETS = (
    Dataset(
        name="e2e-nlg",
        license="CC BY-SA 4.0",
        source="tuetschek/e2e-dataset on GitHub, embedded in the repository",
        splits="as published: no set of attributes is in two of them",
        read=_read,
    ),
)
