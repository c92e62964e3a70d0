"""Command lines from a grammar: each works, or is refused in one sentence and harms nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import computations
from experiments.analysis import figures, tables
from experiments.report import archive
from experiments.specs.expand import all_runs
from experiments.specs.read import computation_names, study_names
from experiments.specs.schema import SCALES
from experiments.tasks import lm, vision
from tests.fuzz import inputs, oracle

EXISTING = {
    "results/smoke/spdf/records.csv": "study,run\nspdf,a\n",
    "results/smoke/spdf/curves.csv": "run,kind\n",
    "results/smoke/spdf/records/a.json": "{}",
    "results/smoke/runs/a/train.json": "{}",
    "results/smoke/runs/a/record.json": "{}",
    "reports/index.html": "the published page",
    "reports/README.md": "the published page",
    "reports/smoke/index.html": "a page",
    "garbage.json": "{",
    "a.yaml": "model: 1\n",
    "README.md": "read me",
}
RUNS = sorted(all_runs("smoke"))
numbers = st.sampled_from(
    ["0", "1", "-1", "1.5", "inf", "nan", "1e9", "٣", "99999999999999999999", ""]
)
scales = st.one_of(st.sampled_from(SCALES), inputs.evil_names)
studies = st.one_of(st.sampled_from([*study_names(), "all"]), inputs.evil_names)
runs = st.one_of(
    st.sampled_from(RUNS),
    inputs.evil_names,
    st.sampled_from(["smoke__", "__", "smoke__a__b__c__d__seed0", "../smoke", f"{RUNS[0]},1", ","]),
)
data = st.one_of(st.sampled_from(["wikipedia-start-v257", "glyphs"]), inputs.evil_names)
paths = st.one_of(
    st.sampled_from([*EXISTING, "missing.json", "results", "/dev/null"]), inputs.evil_names
)
#: Where a person tells a command to write: there, and nowhere else.
outputs = st.sampled_from(
    ["out", "a/b", "results", "garbage.json", "", "a" * 300, "/dev/null", "."]
)
devices = st.sampled_from(
    ["cpu", "cuda", "cuda:99", "cuda:x", "meta", "mps", "x", "", "cpu:0", "cpu:7"]
)
executions = st.sampled_from(["auto", "dense", "skip", "x", "", "Skip", "../x"])
modes = st.sampled_from(["train", "eval", "train_and_eval", "x", "", "TRAIN"])
words = st.one_of(inputs.evil_names, numbers, scales, studies, runs, paths)
settings_of_where = st.sampled_from(["scale=smoke", "study=../x", "scale=", "a=", "=", "study=1"])
OPTIONS = {
    "--scale": scales, "--study": studies, "--run": runs, "--data": data, "--mirror": paths,
    "--device": devices, "--execution": executions, "--threads": numbers, "--log": outputs,
    "--params": st.one_of(paths, numbers), "--tokens": numbers, "--model_dir": outputs,
    "--out": outputs, "--model": paths, "--suite": words,
    "--mode": modes, "--checkpoint_path": paths,
    "--max_steps": numbers, "--eval_steps": numbers, "--x": st.one_of(words, st.just("tokens")),
}  # fmt: skip
FLAGS = (
    "--online",
    "--every",
    "--help",
    "--version",
    "--",
    "-x",
    "--none",
    "--scale=smoke",
    "--scal",
)
#: Command to the options that it takes, and its arguments.
COMMANDS: dict[str, tuple[tuple[str, ...], list[st.SearchStrategy[str]]]] = {
    "plan": (("--scale", "--study"), []),
    "prepare": (("--data", "--mirror"), []),
    "train": (("--run", "--device", "--execution", "--threads", "--log"), []),
    "run": (("--params", "--model_dir", "--mode", "--checkpoint_path", "--max_steps",
             "--eval_steps", "--mirror"), []),
    "evaluate": (("--run", "--model", "--suite", "--out", "--mirror"), []),
    "check": (("--scale", "--device"), []),
    "compute": (("--scale",), [st.one_of(st.sampled_from(computation_names()), words)]),
    "collect": (("--study", "--scale"), [paths, paths]),
    "figure": (("--study", "--scale", "--x"), [st.one_of(st.sampled_from(figures.names()), words)]),
    "table": (("--study", "--scale"), [st.one_of(st.sampled_from(tables.names()), words)]),
    "findings": (("--scale",), []),
    "compare": ((), [runs, runs]),
    "report": (("--study", "--scale"), []),
    "index": (("--scale",), []),
    "archive": (("--scale", "--study"), [words]),
    "export": (("--run", "--out"), []),
    "where": ((), [st.one_of(words, settings_of_where)]),
}  # fmt: skip
#: These write into the repository itself, so only what they must refuse is tried.
PUBLISHING = ("publish", "keep")


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """A command with most of its options, now and then one of another command."""
    kind = draw(st.integers(0, 19))
    if kind == 0:
        return draw(st.lists(st.one_of(words, st.sampled_from([*COMMANDS, *FLAGS])), max_size=4))
    if kind == 1:
        wrong = draw(inputs.evil_names)
        return [draw(st.sampled_from(PUBLISHING)), "--scale", wrong if wrong != "smoke" else "x"]
    name = draw(st.sampled_from(sorted(COMMANDS)))
    options, arguments = COMMANDS[name]
    line = [name]
    for option in options:
        if draw(st.integers(0, 7)):
            line += [option, draw(OPTIONS[option])]
    for argument in arguments:
        if draw(st.integers(0, 7)):
            line.append(draw(argument))
    if not draw(st.integers(0, 9)):
        line.append(draw(st.sampled_from(FLAGS)))
    if not draw(st.integers(0, 9)):
        option = draw(st.sampled_from(sorted(OPTIONS)))
        line += [option, draw(OPTIONS[option])]
    return line


def run_command(folder: Path, line: list[str]) -> str | None:
    """The command in a folder with results; what is refused changes none of them."""
    for name, text in EXISTING.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    before = contents(folder)

    def short(*arguments, out: Path | None = None, **options) -> None:
        """In place of work that takes minutes."""
        (out or arguments[-1]).mkdir(parents=True, exist_ok=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(computations, "write", short)
        patch.setattr(lm, "prepare", short)
        patch.setattr(vision, "prepare", short)
        patch.setattr(archive, "write", lambda *arguments: None)
        patch.delenv("SPARSE_MIRROR", raising=False)
        refused = oracle.command(*line)
    after = contents(folder)
    lost = [name for name in before if name not in after]
    changed = [name for name in before if name in after and after[name] != before[name]]
    # What is made anew from nothing may go; what is refused leaves all as it was.
    assert not lost or "--none" in line and refused is None, f"lost {lost}: {refused}"
    assert not changed or refused is None, f"changed {changed}: {refused}"
    return refused


def contents(folder: Path) -> dict[str, bytes]:
    """All files with their bytes."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@oracle.budget(short=60, share=0.15)
@given(command_lines())
def test_a_command_line_works_or_is_refused_in_one_sentence(line):
    oracle.judge("command lines", lambda folder: run_command(folder, line), line)


@pytest.mark.parametrize(
    "line",
    [
        ["collect", "--study", "../../../victim", "--scale", "smoke", "--none"],
        ["collect", "--study", "a" * 300, "--scale", "smoke", "--none"],
        ["collect", "--study", "spdf", "--scale", "smoke"],
        ["collect", "--study", "spdf", "--scale", "smoke", "missing.json"],
        ["collect", "--study", "spdf", "--scale", "smoke", "a\nb"],
        ["collect", "--study", "spdf", "--scale", "smoke", "garbage.json"],
        ["collect", "--study", "spdf", "--scale", "smoke", ".."],
        ["index", "--scale", ""],
        ["index", "--scale", "../../etc"],
        ["publish", "--scale", ".."],
        ["keep", "--scale", "../.."],
        ["report", "--study", "..", "--scale", "smoke"],
        ["train", "--run", RUNS[0]],
        ["train", "--run", RUNS[0], "--execution", "x"],
        ["train", "--run", RUNS[0], "--device", "cuda:99"],
        ["evaluate", "--run", RUNS[0]],
        ["run", "--params", "missing.yaml", "--model_dir", "out"],
        ["run", "--params", "a.yaml", "--model_dir", "/dev/null"],
        ["where", "--", "scale="],
        ["compute", "../flops"],
        ["train", "--run", RUNS[0], "--threads", "10000000"],
        ["export", "--run", "../x", "--out", "out"],
        [],
    ],
)
def test_what_was_found_is_refused(line):
    def act(folder: Path) -> str:
        refused = run_command(folder, line)
        assert refused is not None
        return refused

    oracle.judge("command lines", act, line)
