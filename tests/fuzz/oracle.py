"""What every fuzzer demands: an input is accepted, or refused in one sentence; nothing else.

A refusal names the file, the key or the argument. Whatever another exception says is a bug, and so
is a hang, a write or a deletion outside of the input's own folder.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from experiments.specs import lookup, read

#: Inputs of a long run; 0 takes the short, fixed ones.
NUM_INPUTS = int(os.environ.get("FUZZ", 0))
#: A file that collects what fails, instead of stopping there: to group many faults by their cause.
SURVEY = os.environ.get("FUZZ_SURVEY")
#: Processor seconds after which an input counts as a hang.
LIMIT_S = 20.0
#: (fuzzer, outcome) to number of inputs; `conftest.py` prints it.
COUNTS: Counter[tuple[str, str]] = Counter()
#: Fuzzer to processor seconds of its inputs, without those of child processes.
SECONDS: Counter[str] = Counter()
#: Bytes of address space: an input that would fill the memory fails, and nothing else does.
MEMORY = 16 * 2**30
_CHANGES = {
    **dict.fromkeys(("os.remove", "os.rmdir", "os.mkdir", "os.truncate", "shutil.rmtree"), (0,)),
    **dict.fromkeys(("os.rename", "os.link", "os.symlink", "shutil.move", "shutil.copyfile"), (1,)),
}
_SHELLS = ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "pty.spawn")
_guarded: dict[str, Any] = {"root": None, "seen": []}


def budget(short: int, share: float) -> settings:
    """Settings of one fuzzer.

    Args:
        short: inputs where nobody asked for more; always the same ones.
        share: part of a long run's inputs, which are other ones each time.
    """
    return settings(
        max_examples=max(1, round(share * NUM_INPUTS)) if NUM_INPUTS else short,
        derandomize=not NUM_INPUTS,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )


class Hang(Exception):
    """An input took longer than `LIMIT_S`."""


def judge(fuzzer: str, act: Callable[[Path], str | None], shown: Any) -> None:
    """Run one input in a fresh folder.

    Args:
        fuzzer: name to count under.
        act: gets the folder, which is also the working folder; returns the refusal's sentence,
            None where the input is accepted.
        shown: the input, for a survey's list.

    Raises:
        AssertionError: if the refusal is not one sentence, or a file outside changed.
    """
    began = time.process_time()
    try:
        with workplace() as folder:
            refusal = act(folder)
        if refusal is not None:
            check_sentence(refusal)
        COUNTS[fuzzer, "accepted" if refusal is None else "refused"] += 1
    except Exception as error:
        COUNTS[fuzzer, "failed"] += 1
        if not SURVEY:
            raise
        frames = [
            f"{Path(frame.filename).name}:{frame.name}:{frame.lineno}"
            for frame in traceback.extract_tb(error.__traceback__)
            if "/tests/fuzz/" not in frame.filename
        ]
        ours = [f for f in frames if not f.startswith("_")][-4:]
        with open(SURVEY, "a", encoding="utf-8") as stream:
            cause = [fuzzer, type(error).__name__, str(error)[:300], ours]
            stream.write(json.dumps([*cause, repr(shown)[:1500]]) + "\n")
    finally:
        SECONDS[fuzzer] += time.process_time() - began


def check_sentence(text: str) -> None:
    """One line that a person can read: no traceback, no page of text."""
    assert text.strip(), "an empty refusal"
    assert "Traceback" not in text, text
    assert len(text.strip().splitlines()) == 1, f"more than one line: {text!r}"


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """A fresh working folder, beside a neighbour that nothing may touch."""
    root = Path(tempfile.mkdtemp(prefix="fuzz-"))
    here, neighbour = root / "here", root / "victim"
    before = Path.cwd()
    for folder in (here, neighbour):
        folder.mkdir()
    (neighbour / "precious.txt").write_text("precious")
    os.chdir(here)
    old = signal.signal(signal.SIGVTALRM, _give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, limits[1]))
    _guarded.update(root=str(here), seen=[])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield here
    finally:
        _guarded["root"] = None
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, old)
        os.chdir(before)
        kept = [path.name for path in neighbour.iterdir()], sorted(p.name for p in root.iterdir())
        shutil.rmtree(root, ignore_errors=True)
    assert not _guarded["seen"], f"outside of the working folder: {_guarded['seen']}"
    assert kept == (["precious.txt"], ["here", "victim"]), kept


def _give_up(number: int, frame: Any) -> None:
    raise Hang(f"no end after {LIMIT_S} processor seconds")


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: what Python code writes, deletes or starts while an input runs."""
    root = _guarded["root"]
    if root is None:
        return
    if event == "open":
        path, mode, flags = arguments
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        paths = [path] if writes else []
    elif event in _SHELLS:
        _guarded["seen"].append(f"{event} {arguments!r:.200}")
        return
    else:
        paths = [arguments[index] for index in _CHANGES.get(event, ())]
    for path in paths:
        if isinstance(path, int):
            continue
        full = os.path.realpath(os.fsdecode(path))
        caches = ("/__pycache__", "/.cache/", "/.config/", "/torchinductor_", "/fontlist", "/dev/")
        inside = full == root or full.startswith(root + os.sep)
        relative_to_handle = not os.path.isabs(os.fsdecode(path)) and event in (
            "os.remove",
            "os.rmdir",
        )
        if not inside and not relative_to_handle and not any(part in full for part in caches):
            _guarded["seen"].append(f"{event} {full}")


sys.addaudithook(_watch)


def refusal(call: Callable[[], Any], *names: str) -> str | None:
    """The sentence of a ``ValueError``, None without one; it must hold one of the names."""
    try:
        call()
    except ValueError as error:
        text = str(error)
        assert any(name in text for name in names), f"names none of {names}: {text!r}"
        return text
    return None


def command(*words: str) -> str | None:
    """What ``python -m experiments WORDS`` refuses; None if it ends with exit code 0."""
    from experiments.cli import app

    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["experiments", *words])
        patch.setattr(app, "app", _parser())
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                app.main()
        except SystemExit as stop:
            code = stop.code
    assert "Traceback" not in out.getvalue() + err.getvalue(), err.getvalue()
    if code in (0, None):
        return None
    if isinstance(code, str):
        return code
    text = err.getvalue().strip()
    if code == 2 and "Usage:" in text:  # typer's own frame around its sentence
        return " ".join(text.replace("│", " ").replace("─", "").split())
    if "Usage:" in out.getvalue():  # no command: the list of them
        return "no command is given"
    assert text, f"exit code {code} without a word"
    return text.splitlines()[-1]


@functools.cache
def _parser() -> Any:
    """The parser of the command line, which typer builds anew for each call."""
    import typer

    from experiments.cli import app

    return typer.main.get_command(app.app)


@contextlib.contextmanager
def studies_in(folder: Path) -> Iterator[None]:
    """Commands read the studies of a folder."""
    modules = [module for name, module in sys.modules.items() if name.startswith("experiments.")]
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            if hasattr(module, "STUDIES"):
                patch.setattr(module, "STUDIES", folder)
        read._read_study.cache_clear()
        lookup._known_runs.cache_clear()
        yield
    lookup._known_runs.cache_clear()
