"""A slice of the English Wikipedia of 2014, which travels with the repository.

33,644 training, 2,636 validation and 2,583 test articles, some 16 million training tokens at a
vocabulary of 1,024. `embedded/LICENSE.md` has the source and the licence.
"""

import itertools
from collections.abc import Iterator
from functools import partial

from experiments.data.base import SPLITS, Dataset, Source, Texts
from experiments.data.embedded_files import opened


def _articles(split: str) -> Iterator[str]:
    """Articles of a split, title first, in the order of the dump."""
    lines: list[str] = []
    with opened(f"wikipedia/{split}.txt") as file:
        for line in file:
            if line.startswith("<doc "):
                lines = []
            elif line.startswith("</doc>"):
                yield "".join(lines).strip()
            else:
                lines.append(line)


def _read(source: Source, *, articles: int | None = None) -> Texts:
    """All articles, or the first of training and a tenth as many of the other splits."""
    first = dict.fromkeys(SPLITS, articles and articles // 10) | {"train": articles}
    return Texts(
        {split: list(itertools.islice(_articles(split), first[split])) for split in SPLITS}
    )


DATASETS = tuple(
    Dataset(
        name=name,
        license="CC BY-SA 3.0 and GFDL",
        source=f"English Wikipedia, dump of 2014: {size}, embedded in the repository",
        splits="by article",
        read=partial(_read, articles=articles),
    )
    for name, articles, size in (
        ("wikipedia", None, "a slice of 38,863 articles"),
        ("wikipedia-start", 2500, "the first 2,500 of its 33,644 training articles"),
    )
)
