"""Commands that are handed over do what they do by themselves, and end as they end there."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from filelock import FileLock

from experiments import preload
from experiments.specs.expand import all_runs
from experiments.store import paths

ROOT = Path(__file__).resolve().parents[2]
WRONG = ["collect", "--study", "nowhere", "--scale", "smoke"]
#: Printed by a process that imports the commands, that is, does them itself.
ITSELF = "experiments.cli.app"


@pytest.fixture
def server(monkeypatch):
    """A process that takes jobs from the repository's root; yields it."""
    started = []
    popen = subprocess.Popen

    def remember(*arguments, **options):
        started.append(popen(*arguments, **options, cwd=ROOT))
        return started[-1]

    monkeypatch.setenv(preload.ADDRESS, "")
    monkeypatch.setattr(preload.subprocess, "Popen", remember)
    preload.start()
    monkeypatch.setattr(preload.subprocess, "Popen", popen)
    address = Path(os.environ[preload.ADDRESS])
    yield started[0]
    started[0].stdin.close()
    started[0].wait(timeout=60)
    assert address.exists() == (started[0].returncode < 0)
    shutil.rmtree(address.parent, ignore_errors=True)


def call(*arguments: str, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "experiments", *arguments],
        cwd=ROOT,
        env={**os.environ, **dict.fromkeys(preload.THREADS, "1"), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen) -> tuple[int, str, str, bool]:
    """Exit status, both streams without the times of imports, and who did the work."""
    out, err = process.communicate(timeout=120)
    lines = err.splitlines()
    said = [line for line in lines if not line.startswith("import time:")]
    return process.returncode, out, "\n".join(said), any(ITSELF in line for line in lines)


def test_a_command_ends_as_by_itself(server):
    code, out, err, itself = ended(call(*WRONG, SPARSE_PRELOAD=""))
    assert itself and code == 1
    assert "study is 'nowhere'" in err
    for _ in range(3):  # libraries are imported before the second
        assert ended(call(*WRONG)) == (code, out, err, False)
    code, out, _, itself = ended(call("collect", "--help"))
    assert (code, itself) == (0, False)
    assert "--study" in out


@pytest.mark.parametrize(
    "arguments, environment",
    [
        (WRONG, {"OMP_NUM_THREADS": "2"}),
        (WRONG, {"HF_HUB_OFFLINE": "0"}),
        (WRONG, {"RANK": "1"}),
        (WRONG, {preload.ADDRESS: "/nowhere"}),
        (["plan", "--study", "nowhere"], {}),
    ],
    ids=["threads", "online", "rank", "no process", "other command"],
)
def test_another_setting_is_not_handed_over(server, arguments, environment):
    code, _, err, itself = ended(call(*arguments, **environment))
    assert itself and code == 1
    assert "'nowhere'" in err


def test_what_is_no_job_is_passed_over(server):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[preload.ADDRESS])
        connection.sendall(b"nonsense")
    assert ended(call(*WRONG))[3] is False


@pytest.fixture
def waiting(server):
    """A training that waits for the lock of its run: who called it, and the fork."""
    run = next(iter(all_runs("smoke").values()))
    state = ROOT / paths.state(run.id, run.spec_hash)
    state.parent.mkdir(exist_ok=True)
    with FileLock(state.with_name(f"{state.name}.lock")):
        process = call("train", "--run", run.id)
        assert "waiting for it" in process.stdout.readline()
        [fork] = psutil.Process(server.pid).children()
        yield process, fork
    process.wait(timeout=60)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_the_work(waiting, number):
    process, fork = waiting
    process.send_signal(number)
    assert process.wait(timeout=60) == 128 + number
    assert not fork.is_running()


def test_work_that_nobody_waits_for_is_stopped(waiting):
    process, fork = waiting
    process.kill()
    psutil.wait_procs([fork], timeout=60)
    assert not fork.is_running()


def test_work_that_is_killed_fails(waiting):
    process, fork = waiting
    fork.kill()
    assert process.wait(timeout=60) == 128 + signal.SIGKILL


def test_work_outlives_the_process_and_fails(server, waiting):
    process, fork = waiting
    server.kill()
    assert process.poll() is None
    fork.terminate()
    assert process.wait(timeout=60) == 1
    assert "was killed" in process.stderr.read()
