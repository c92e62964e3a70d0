"""Damaged records: what reads them works, or names the file in one sentence and loses nothing."""

from __future__ import annotations

import copy
import functools
import json
from pathlib import Path
from typing import Any

import matplotlib.font_manager  # noqa: F401  where its list of fonts is missing, it starts a process
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.specs.expand import study_runs
from experiments.specs.read import load_study
from experiments.store import reference
from tests.fuzz import inputs, oracle

#: (study, scale) whose committed records are damaged.
STUDIES = (("spdf", "small"), ("sparsity_library", "small"), ("sparse_ift_vision", "small"))


@functools.cache
def committed(study: str, scale: str) -> list[dict[str, Any]]:
    """Up to three records of a study, with a few rows of their curves."""
    found = []
    for run in study_runs(load_study(study), scale):
        if run.id in reference.entries() and len(found) < 3:
            record = reference.find(run.id)
            record["curve"] = [*record["curve"][:3], *record["curve"][-3:]]
            record["layers"] = record["layers"][:2]
            if record["evaluation"]:
                record["evaluation"]["scores"] = record["evaluation"]["scores"][:6]
            found.append(record)
    return found


@st.composite
def damaged_records(draw: st.DrawFn) -> tuple[str, str, list[bytes], list[str]]:
    """Study, scale, the records' files of which the last is damaged, and a command on them."""
    study, scale = draw(st.sampled_from(STUDIES))
    records = committed(study, scale)
    files = [json.dumps(record).encode() for record in records]
    if draw(st.integers(0, 3)):
        files[-1] = inputs.as_json(draw(inputs.mutated(records[-1:]))).encode()
    else:
        files[-1] = draw(inputs.damaged(files[-1]))
    facts = load_study(study)
    where = ["--study", study, "--scale", scale]
    # A whole page takes seconds, so it is drawn now and then.
    lines = [["table", *facts.tables, *where]]
    lines += [["table", name, *where] for name in facts.tables]
    lines += [["figure", name, *where] for name in facts.figures]
    line = ["report", *where] if draw(st.integers(0, 29)) == 29 else draw(st.sampled_from(lines))
    return study, scale, files, line


def collect_and_show(
    folder: Path, study: str, scale: str, files: list[bytes], line: list[str]
) -> str | None:
    """``collect`` and what reads its tables; refused records leave earlier tables as they are."""
    table = folder / "results" / scale / study / "records.csv"
    table.parent.mkdir(parents=True)
    table.write_text("computed before")
    names = []
    for number, content in enumerate(files):
        path = folder / f"run{number}" / "record.json"
        path.parent.mkdir()
        path.write_bytes(content)
        names.append(str(path.relative_to(folder)))
    refused = oracle.command("collect", "--study", study, "--scale", scale, *names)
    if refused is not None:
        assert table.read_text() == "computed before", f"lost after {refused!r}"
        assert any(name in refused for name in names), f"names no file: {refused!r}"
        return refused
    return oracle.command(*line)


@oracle.budget(short=30, share=0.03)
@given(damaged_records())
def test_a_damaged_record_is_shown_or_refused_in_one_sentence(example):
    oracle.judge("records", lambda folder: collect_and_show(folder, *example), example)


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r.update(curve=None),
        lambda r: r.update(curve=[1]),
        lambda r: r["curve"][0].pop("kind"),
        lambda r: r["curve"][0].update(loss="U"),
        lambda r: r["curve"][0].update(tokens_per_s={}),
        lambda r: r.update(run="../victim"),
        lambda r: r.update(run="another"),
        lambda r: r.update(evaluation=True),
        lambda r: r["evaluation"]["scores"][0].update(value=""),
        lambda r: r.update(flops=[]),
        lambda r: r.update(wall_s=float("nan")),
        lambda r: r.update(num_threads="2026-01-01"),
        lambda r: r.pop("spec"),
        lambda r: r["spec"].update(model="llama"),
        lambda r: r["spec"].update(sparsity=[[]]),
        lambda r: r["spec"].update(sparsity={"algorithm": ["set"]}),
        lambda r: r.update(data=None),
        lambda r: r.update(versions=[]),
    ],
)
def test_what_was_found_is_refused(change):
    study, scale = STUDIES[0]
    records = copy.deepcopy(committed(study, scale))
    change(records[-1])
    files = [json.dumps(record).encode() for record in records]

    def act(folder: Path) -> str:
        refused = collect_and_show(folder, study, scale, files, [])
        assert refused is not None
        return refused

    oracle.judge("records", act, files)
