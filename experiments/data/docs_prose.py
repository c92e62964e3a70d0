"""English prose from the docstrings of the pinned dependencies: a corpus that needs no network.

The text depends on the installed versions and on nothing else: sources are read as files and
parsed, never imported; the standard library is left out because its text would change with the
Python version. `docs_prose.json` holds the SHA-256 of the text for each known set of versions;
`python -m experiments.data.docs_prose` extracts the text and records the installed set.

Splits are by distribution, so that no validation or test text describes a package that the
training text describes, and paragraphs that share 13 consecutive words with an earlier split
are dropped.
"""

import gc
import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

from experiments.data.base import SPLITS, Dataset, Source, Texts
from experiments.data.prose import docstrings, paragraphs, words

OVERLAP_WORDS = 13
HASHES = Path(__file__).with_suffix(".json")
# Folders that cost much time to parse for little new prose: tests, machine-made or vendored code.
SKIPPED_FOLDERS = (
    "/test",
    "/_vendor",
    "sympy/functions/",
    "torch/_dynamo/",
    "torch/_inductor/",
    "torch/sparse/",
    "transformers/models/",
)


@dataclass(frozen=True)
class Selection:
    """Distributions of each split. All of them are dependencies of this repository."""

    train: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]

    @property
    def distributions(self) -> tuple[str, ...]:
        return self.train + self.validation + self.test


FULL = Selection(
    train=(
        "attrs",
        "datasets",
        "docutils",
        "fonttools",
        "fsspec",
        "huggingface-hub",
        "hypothesis",
        "matplotlib",
        "more-itertools",
        "mpmath",
        "numpy",
        "pandas",
        "pillow",
        "pyarrow",
        "pydantic",
        "pyparsing",
        "pytest",
        "scikit-learn",
        "scipy",
        "sqlalchemy",
        "sympy",
        "torch",
        "transformers",
    ),
    validation=("networkx",),
    test=("nltk",),
)
TINY = Selection(
    train=("networkx", "numpy", "scikit-learn"), validation=("mpmath",), test=("pydantic",)
)


def version_key(selection: Selection) -> str:
    """Return the version set that determines the text, as "name==version name==version ...".

    Raises:
        PackageNotFoundError: If a distribution is not installed.
    """
    names = sorted(selection.distributions)
    # A local label ("+cpu") names a build of the same sources.
    return " ".join(f"{name}=={version(name).split('+')[0]}" for name in names)


def extract(selection: Selection) -> Texts:
    """Return the prose of a selection: one document per module, in a fixed order.

    Args:
        selection: Distributions of each split.
    """
    collecting = gc.isenabled()
    gc.disable()  # syntax trees hold no cycles, and scanning them takes a third of the time
    try:
        return Texts(_splits(selection))
    finally:
        if collecting:
            gc.enable()


def _splits(selection: Selection) -> dict[str, list[str]]:
    seen: set[int] = set()
    splits: dict[str, list[str]] = {}
    for split in SPLITS:
        earlier = frozenset(seen) if split != "train" else frozenset()
        documents = []
        for name in sorted(getattr(selection, split)):
            for module in _modules(name):
                kept = [text for text in module if _is_new(text, seen, earlier)]
                if kept:
                    documents.append("\n\n".join(kept))
        splits[split] = documents
    return splits


def _modules(name: str) -> Iterator[list[str]]:
    """Yield the paragraphs of each module of a distribution, in the order of their paths."""
    files = {str(file): file for file in distribution(name).files or []}
    for path in sorted(files):
        if not path.endswith(".py") or any(part in path for part in SKIPPED_FOLDERS):
            continue
        source = Path(str(files[path].locate())).read_bytes()
        if b'"""' in source or b"'''" in source:
            yield [text for doc in docstrings(source) for text in paragraphs(doc)]


def _is_new(paragraph: str, seen: set[int], earlier: frozenset[int]) -> bool:
    """Whether a paragraph repeats neither its own split (mostly) nor an earlier one (at all)."""
    grams = _ngrams(words(paragraph))
    num_seen = sum(gram in seen for gram in grams)
    if 2 * num_seen >= len(grams) or (num_seen and any(gram in earlier for gram in grams)):
        return False
    seen.update(grams)
    return True


def _ngrams(tokens: list[str]) -> list[int]:
    """Hashes of all runs of `OVERLAP_WORDS` words; a shorter text counts as one run."""
    num_runs = max(1, len(tokens) - OVERLAP_WORDS + 1)
    return [hash(tuple(tokens[i : i + OVERLAP_WORDS])) for i in range(num_runs)]


def check(key: str, digest: str) -> None:
    """Warn if the text of a version set is unknown or differs from the recorded one."""
    known: dict[str, str] = json.loads(HASHES.read_text()) if HASHES.exists() else {}
    if key in known and known[key] != digest:
        warnings.warn(
            f"docs-prose: the text extracted from {key} has SHA-256 {digest}, but "
            f"{known[key]} is recorded for these versions; numbers will not be comparable.",
            stacklevel=2,
        )
    elif key not in known:
        recorded = " or ".join(f"[{other}]" for other in known) or "none"
        warnings.warn(
            f"docs-prose: no text is recorded for the installed versions [{key}] (SHA-256 "
            f"{digest}); recorded: {recorded}; numbers will not be comparable.",
            stacklevel=2,
        )


def _read(selection: Selection) -> Texts:
    texts, key = extract(selection), version_key(selection)
    digest = texts.digest()
    check(key, digest)
    facts = {"versions": key, "text_sha256": digest}
    packages = {split: list(getattr(selection, split)) for split in SPLITS}
    return Texts(texts.splits, {**facts, "packages": packages})


def _missing(selection: Selection) -> str | None:
    for name in selection.distributions:
        try:
            version(name)
        except PackageNotFoundError:
            return (
                f"docs-prose is extracted from installed packages, and {name} is not installed:"
                " run `make setup`."
            )
    return None


def _dataset(name: str, selection: Selection) -> Dataset:
    def read(source: Source) -> Texts:
        return _read(selection)

    def missing(source: Source) -> str | None:
        return _missing(selection)

    return Dataset(
        name=name,
        license="that of each package (BSD, MIT, Apache-2.0 and similar); not redistributed",
        source="docstrings of installed packages, extracted on this machine",
        splits="by package; paragraphs sharing 13 words with an earlier split are dropped",
        read=read,
        missing=missing,
    )


DATASETS = (_dataset("docs-prose", FULL), _dataset("docs-prose-tiny", TINY))


def record() -> dict[str, str]:
    """Extract the text of every selection and record it for the installed versions."""
    known: dict[str, str] = json.loads(HASHES.read_text()) if HASHES.exists() else {}
    known.update({version_key(chosen): extract(chosen).digest() for chosen in (FULL, TINY)})
    HASHES.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")
    return known


if __name__ == "__main__":
    print(json.dumps(record(), indent=2))
