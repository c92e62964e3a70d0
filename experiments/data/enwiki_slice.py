"""A slice of the English Wikipedia of 2014, three times as large as the embedded `wikipedia`.

Read from a mirror by the id below, or from the files of the repository that publishes it, which
`fetch` joins and checks.
"""

import hashlib
import html
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from experiments.data.base import SPLITS, Dataset, MissingData, Source, Texts
from experiments.data.hub import load_rows, missing_rows, one_row_each
from experiments.data.wikipedia import articles
from experiments.digest import file_digest
from experiments.errors import reason

NAME, HUB_ID = "enwiki-slice", "local/enwiki-2014-slice"
ADDRESS = (
    "https://raw.githubusercontent.com/ZhouYii/PatchedDistro/"
    "961716d8a5a0df1a6373a4d61e360a0b5d1b85cd/data/{}/wiki_{:02}"
)
#: The folder that `fetch` writes.
FOLDER = Path("resources/downloads/enwiki-slice")
#: File of a split: the published files that it joins, and the SHA-256 of the whole. Left out are
#: files with articles that share 20 sequences of 13 words with WikiText's validation or test set.
PARTS: dict[str, tuple[str, list[int], str]] = {
    "train-AA.txt": ("AA", [number for number in range(1, 100) if number not in (76, 86)],
                     "957b693d4748bea1a06547515546c5dd0ec26f5019b3dc00a46be90f329bad49"),
    "train-AB.txt": ("AB", [*range(1, 100)],
                     "1aecdf648e2ab0db0723e4c47e25d3d5e2f291092b2c278a11bc8cbeb6ee4ea9"),
    "train-AC.txt": ("AC", [*range(100)],
                     "ad99a16398b2dd83d0d110955a83f7a90265f780f30d2453c45fe853c903e6e5"),
    "validation-AD.txt": ("AD", [*range(10)],
                          "9e3d0dc4f94ccaab18ba0c7cd5d92e1de80174a13cdd65c23ca9657dfc3122f0"),
    "test-AD.txt": ("AD", [*range(20, 30)],
                    "51aa59a65a76e0ad209e5481bcf8c85aacceffc2b8ace348bed3bc1de72531f5"),
}  # fmt: skip


def fetch() -> Path:
    """Download the files, join those of each part, and check them; returns their folder.

    Raises:
        MissingData: If a file cannot be had, or a part is not what was published.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, (folder, numbers, expected) in PARTS.items():
        if (FOLDER / name).is_file() and file_digest(FOLDER / name) == expected:
            continue
        content = b""
        for number in numbers:
            address = ADDRESS.format(folder, number)
            try:
                with urllib.request.urlopen(address, timeout=60) as answer:
                    content += answer.read()
            except OSError as error:
                raise MissingData(f"{NAME}: {address} cannot be read: {reason(error)}") from error
        if hashlib.sha256(content).hexdigest() != expected:
            raise MissingData(f"{NAME}: {name} of {address} has another SHA-256 than {expected}")
        (part := FOLDER / f"{name}.part").write_bytes(content)
        part.replace(FOLDER / name)
    return FOLDER


def _missing(source: Source) -> str | None:
    if all((FOLDER / name).is_file() for name in PARTS):
        return None
    return missing_rows(NAME, HUB_ID, None, source)


def _fetched(split: str) -> Iterator[str]:
    for name in PARTS:
        if name.startswith(split):
            with (FOLDER / name).open(encoding="utf-8", newline="") as file:
                for article in articles(file):
                    title, line, body = article.partition("\n")
                    yield f"{html.unescape(title)}{line}{body}"


def _read(source: Source) -> Texts:
    if missing_rows(NAME, HUB_ID, None, source) is None:
        rows = load_rows(NAME, HUB_ID, None, ["text"], source)
        return Texts({split: one_row_each(rows[split]["text"]) for split in SPLITS})
    problem = _missing(source)
    if problem and source.offline:
        raise MissingData(problem)
    if problem:
        fetch()
    return Texts({split: [*_fetched(split)] for split in SPLITS})


DATASETS = (
    Dataset(
        name=NAME,
        license="CC BY-SA 3.0 and GFDL",
        source="ZhouYii/PatchedDistro on GitHub, commit 961716d8",
        splits="by article",
        read=_read,
        missing=_missing,
        fetch=fetch,
    ),
)
