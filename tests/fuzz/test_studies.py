"""Study files with faults: a valid study, or one sentence that names the file."""

from __future__ import annotations

import copy
import datetime
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings

from experiments.specs import likeness
from experiments.specs.expand import study_runs
from experiments.specs.read import STUDIES, load_study, study_names
from experiments.specs.schema import SpecError
from tests.fuzz import inputs

DATE = datetime.date(2026, 1, 1)
#: What a run id or a data folder may look like: one name of a file, and no word of a shell.
SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")


def raw(name: str) -> Any:
    """The content of a committed study's file."""
    return yaml.safe_load((STUDIES / f"{name}.yaml").read_text())


@functools.cache
def excerpts() -> list[dict[str, Any]]:
    """The committed studies at one scale each, with at most four methods; not to be changed."""
    found = []
    for name in study_names():
        study = copy.deepcopy(likeness.with_likeness(raw(name), raw))
        study["name"] = "study"
        own = study.get("methods", {})
        # A section with levels stands for a method at each of them.
        home = {method: name for name in own for method in own[name].get("levels", {name: 0})}
        for scale, grids in (study.get("scales") or {"smoke": []}).items():
            grids = [dict(grid) for grid in grids[:2]]
            kept: set[str] = set()
            for grid in grids:
                few = dict(list(grid["methods"].items())[-2:])
                kept |= {home[method] for method in few}
                starts = [own[name].get("starts_from") for name in kept]
                kept |= {home[start["method"]] for start in starts if start}
                grid["methods"] = few
                rates = grid.get("learning_rate_scale", {})
                grid["learning_rate_scale"] = {m: r for m, r in rates.items() if m in few}
            methods = {m: v for m, v in own.items() if m in kept}
            found.append({**study, "methods": methods, "scales": {scale: grids}})
    return found


def refusal(folder: Path, content: bytes) -> str | None:
    """The sentence that refuses a folder with this study alone; None if it is right."""
    (folder / "study.yaml").write_bytes(content)
    try:
        study = load_study("study", folder=folder)
        for run in (run for scale in study.scales for run in study_runs(study, scale)):
            assert SAFE.fullmatch(run.id) and SAFE.fullmatch(run.data_label), run
    except SpecError as error:
        assert len(str(error).splitlines()) == 1 and "study.yaml" in str(error), repr(str(error))
        return str(error)
    return None


@settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(inputs.yaml_files(excerpts()))
def test_a_study_is_valid_or_refused_in_one_sentence(tmp_path, content):
    refusal(tmp_path, content)


def edited(change: Callable[[dict[str, Any]], Any]) -> bytes:
    """An excerpt with RigL on text, changed in place."""
    with_rigl = (s for s in excerpts() if any("rigl" in m for m in s.get("methods", ())))
    study = next(s for s in with_rigl if "tokens" in grid(s)["recipe"])
    study = copy.deepcopy(study)
    change(study)
    return yaml.safe_dump(study, sort_keys=False).encode()


def rigl(study: dict[str, Any]) -> dict[str, Any]:
    """The keys of the method with RigL."""
    return next(value for name, value in study["methods"].items() if "rigl" in name)


def grid(study: dict[str, Any]) -> dict[str, Any]:
    """The first grid of its only scale."""
    return next(iter(study["scales"].values()))[0]


def anchors(depth: int) -> bytes:
    """Ten times as many values with each line."""
    names = "abcdefghijklmnop"
    lines = ["x0: &a [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"]
    lines += [
        f"x{i}: &{names[i]} [{', '.join([f'*{names[i - 1]}'] * 10)}]" for i in range(1, depth)
    ]
    return "\n".join(lines).encode()


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (edited(lambda s: rigl(s)["sparsity"].update({DATE: 1})), "line"),
        (edited(lambda s: rigl(s).update({b"a\n": 1})), "line"),
        (edited(lambda s: rigl(s)["sparsity"]["update"].update(freq="inf%")), "75%"),
        (edited(lambda s: s["methods"].update({"<b>": s["methods"].popitem()[1]})), "methods"),
        (edited(lambda s: grid(s)["model"].update(label="a/b")), "label"),
        (edited(lambda s: grid(s)["methods"].update(dict.fromkeys(s["methods"], 10**9))), "1000"),
        (edited(lambda s: grid(s)["recipe"].update(tokens=10**15)), "steps"),
        (edited(lambda s: grid(s)["recipe"].update(batch_size=10**309)), "too large"),
        (edited(lambda s: None) + b"x: !!timestamp never\n", "timestamp"),
        (edited(lambda s: None) + b"title: again\n", "twice"),
        (edited(lambda s: None) + anchors(9), "100,000"),
        (b"\xff\xfe", "study.yaml"),
        (b"[" * 5000, "study.yaml"),
    ],
)
def test_what_was_found_is_refused(content, named, tmp_path):
    assert named in (refusal(tmp_path, content) or "")
