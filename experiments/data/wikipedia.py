"""A slice of the English Wikipedia of 2014, which travels with the repository.

33,644 training, 2,636 validation and 2,583 test articles, some 16 million training tokens at a
vocabulary of 1,024. `embedded/LICENSE.md` has the source and the licence.
"""

import itertools
from collections.abc import Iterable, Iterator
from functools import partial

from experiments.data.base import SPLITS, Dataset, Source, Texts, opened


def articles(lines: Iterable[str]) -> Iterator[str]:
    """Articles as WikiExtractor writes them, title first, without the lines around them."""
    article: list[str] = []
    for line in lines:
        if line.startswith("<doc "):
            article = []
        elif line.startswith("</doc>"):
            yield "".join(article).strip()
        else:
            article.append(line)


def _split(split: str, most: int | None) -> list[str]:
    """The first articles of a split, in the order of the dump; all where ``most`` is None."""
    with opened(f"wikipedia/{split}.txt") as file:
        return list(itertools.islice(articles(file), most))


def _read(source: Source, *, num_articles: int | None = None) -> Texts:
    """All articles, or the first of training and a tenth as many of the other splits."""
    tenth = None if num_articles is None else num_articles // 10
    most = dict.fromkeys(SPLITS, tenth) | {"train": num_articles}
    return Texts({split: _split(split, most[split]) for split in SPLITS})


DATASETS = tuple(
    Dataset(
        name=name,
        license="CC BY-SA 3.0 and GFDL",
        source=f"English Wikipedia, dump of 2014: {size}, embedded in the repository",
        splits="by article",
        read=partial(_read, num_articles=num_articles),
    )
    for name, num_articles, size in (
        ("wikipedia", None, "a slice of 38,863 articles"),
        ("wikipedia-start", 2500, "the first 2,500 of its 33,644 training articles"),
    )
)
