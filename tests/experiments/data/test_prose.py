"""What counts as prose, on docstrings written by hand; extraction from a made-up package."""

import json
import subprocess
import sys
import warnings

import pytest

from experiments.data import docs_prose
from experiments.data.prose import docstrings, paragraphs

NUMPY_STYLE = """
    Return the sorted copy of an array, as all of the older
    routines in this module did.

    See https://example.org/sort for a longer story about how sorting is done in practice.

    Parameters
    ----------
    a : array_like
        The array that is to be sorted, which must have one axis at the least.
    axis : int, optional

    Examples
    --------
    This is an example and it should not be seen in the text that is kept at all.

    >>> sort([3, 1])

    Notes
    -----
    The method :func:`numpy.sort` is used when the ``kind`` is *not* given by the caller [1]_. It
    is stable if all of the keys are the same::

        This is code and it should not be in the text that is used for the training.

    - The first item of a list is a paragraph of its own if it has enough words.

    +-----+-----+
    | a   | b   |
"""
KEPT = [
    "Return the sorted copy of an array, as all of the older routines in this module did.",
    "The array that is to be sorted, which must have one axis at the least.",
    "The method numpy.sort is used when the kind is not given by the caller. "
    "It is stable if all of the keys are the same:",
    "The first item of a list is a paragraph of its own if it has enough words.",
]


def test_prose_is_kept_and_code_tables_addresses_and_markup_are_not():
    assert paragraphs(NUMPY_STYLE) == KEPT


def test_google_style_and_fences():
    text = """Compute the mean of the values that are given to this function by the caller.

    Args:
        x (int): The value that is to be added to the sum of all of the others.
    Example::

        This is code that should not be in the text that we are going to keep.

    ```python
    This is also code that should not be in the text that we are going to keep.
    ```
    """
    assert paragraphs(text) == [
        "Compute the mean of the values that are given to this function by the caller.",
        "The value that is to be added to the sum of all of the others.",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Too short to be kept, as it has few words only.",
        "lower case begins this line and it is not a sentence of the kind that we want here",
        "Alpha beta gamma delta epsilon zeta eta theta iota kappa lambda omicron sigma upsilon.",
        "If :math:`x` is in the set of all of the values then it is also in the other set.",
    ],
)
def test_what_does_not_read_as_prose_is_dropped(text):
    assert paragraphs(text) == []


def test_docstrings_come_in_source_order_and_broken_files_give_none():
    source = (
        '"""m"""\nclass A:\n  """a"""\n  def f(self):\n    """f"""\ndef g():\n  """g"""\nx = "s"\n'
    )
    assert list(docstrings(source)) == ["m", "a", "f", "g"]
    assert list(docstrings("def broken(:")) == []


def sentence(words):
    return f"It is known that the {words} and that they are to be used with all of the others."


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Three importable-looking distributions that would fail if they were imported."""

    def make(name, modules, version="1.0"):
        info = tmp_path / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        paths = []
        for module, texts in modules.items():
            path = tmp_path / name / f"{module}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            body = "\n\n".join(texts)
            path.write_text(f'"""{body}\n"""\nraise RuntimeError("imported")\n')
            paths.append(f"{name}/{module}.py")
        (info / "RECORD").write_text("".join(f"{path},,\n" for path in reversed(paths)))

    first = sentence("first words are read from the first file of the package")
    second = sentence("second words come out of quite another place in the package")
    make(
        "one", {"b": [second], "a": [first, first], "tests/test_x": [sentence("tests")]}, "1.0+cpu"
    )
    make("two", {"a": [sentence("held out words are only here"), "Moreover, " + first]})
    make(
        "three",
        {"a": ["The test split has a text of its own, which is not in any of the other two."]},
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return docs_prose.Selection(train=("one",), validation=("two",), test=("three",))


def test_extraction_is_ordered_deduplicated_and_disjoint(installed):
    texts = docs_prose.extract(installed)
    assert [len(texts.splits[split]) for split in ("train", "validation", "test")] == [2, 1, 1]
    assert "first words" in texts.splits["train"][0]  # module a before module b
    assert texts.splits["train"][0].count("first words") == 1
    assert "first words" not in texts.splits["validation"][0]  # shares 13 words with train
    assert "held out" in texts.splits["validation"][0]
    assert docs_prose.extract(installed).digest() == texts.digest()


def test_versions_are_in_the_key_without_local_labels(installed):
    assert docs_prose.version_key(installed) == "one==1.0 three==1.0 two==1.0"


def test_unknown_and_changed_texts_are_warnings_that_name_both(tmp_path, monkeypatch):
    known = tmp_path / "known.json"
    known.write_text(json.dumps({"one==1.0": "aaaa"}))
    monkeypatch.setattr(docs_prose, "HASHES", known)
    with pytest.warns(UserWarning, match=r"one==2\.0.*bbbb.*one==1\.0"):
        docs_prose.check("one==2.0", "bbbb")
    with pytest.warns(UserWarning, match=r"one==1\.0.*bbbb.*aaaa"):
        docs_prose.check("one==1.0", "bbbb")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        docs_prose.check("one==1.0", "aaaa")


def test_text_of_the_smallest_package_is_the_same_under_other_hash_seeds(installed, tmp_path):
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from experiments.data.docs_prose import *\n"
        "print(extract(Selection(('one',), ('two',), ('three',))).digest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert digests == {docs_prose.extract(installed).digest() + "\n"}


def test_missing_package_is_one_sentence():
    problem = docs_prose._missing(docs_prose.Selection(("no-such-package",), (), ()))
    assert problem is not None and "no-such-package" in problem


def test_splits_share_no_package_and_recorded_sets_are_those_of_the_selections():
    known = json.loads(docs_prose.HASHES.read_text())
    names = {" ".join(item.split("==")[0] for item in key.split()) for key in known}
    for chosen in (docs_prose.FULL, docs_prose.TINY):
        assert len(set(chosen.distributions)) == len(chosen.distributions)
        assert " ".join(sorted(chosen.distributions)) in names
