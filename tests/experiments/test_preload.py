"""Commands that are handed over do what they do by themselves, and end as they end there."""

import contextlib
import os
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


@pytest.fixture(scope="module")
def server():
    """A server that takes jobs from the repository's root; yields it."""
    before = Path.cwd()
    os.chdir(ROOT)
    offline = os.environ.pop("HF_HUB_OFFLINE", None)  # as a person's shell: the server sets it
    preload.start("smoke")
    [process] = [
        child for child in psutil.Process().children() if "experiments.preload" in child.cmdline()
    ]
    yield process
    os.environ.update({} if offline is None else {"HF_HUB_OFFLINE": offline})
    os.chdir(before)
    with contextlib.suppress(psutil.NoSuchProcess):  # a test kills it
        process.kill()


def call(*arguments: str, **environment: str) -> subprocess.Popen:
    command = [sys.executable, "-X", "importtime", "-m", "experiments", *arguments]
    env = {**os.environ, **dict.fromkeys(preload.THREADS, "1"), **environment}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=ROOT, env=env, **pipes)


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
    for _ in range(2):  # libraries are imported before the second
        assert ended(call(*WRONG)) == (code, out, err, False)
    code, out, _, itself = ended(call("collect", "--help"))
    assert (code, itself) == (0, False)
    assert "--study" in out


@pytest.mark.parametrize(
    "arguments, environment",
    [(WRONG, {"OMP_NUM_THREADS": "2"}), (WRONG, {preload.ADDRESS: "nowhere"})],
    ids=["threads", "no server"],
)
def test_another_setting_is_not_handed_over(server, arguments, environment):
    code, _, err, itself = ended(call(*arguments, **environment))
    assert itself and code == 1
    assert "'nowhere'" in err


@pytest.mark.parametrize("who", ["signal", "caller", "work", "server"])
def test_a_job_ends_with_its_caller_and_outlives_its_server(server, who):
    run = next(iter(all_runs("smoke").values()))
    state = ROOT / paths.state(run.id, run.spec.hash)
    state.parent.mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX) as connection:  # what is no job is passed over
        connection.connect("\0" + os.environ[preload.ADDRESS])
        connection.sendall(b"nonsense")
    with FileLock(state.with_name(f"{state.name}.lock")):
        process = call("train", "--run", run.id)
        assert "waiting for it" in process.stdout.readline()
        [fork] = [c for c in server.children() if c.status() != psutil.STATUS_ZOMBIE]
        if who == "signal":
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 128 + signal.SIGTERM
        elif who == "caller":
            process.kill()
        elif who == "work":
            fork.kill()
            assert process.wait(timeout=60) == 1 and "was killed" in process.stderr.read()
        else:
            server.kill()
            assert process.poll() is None
            fork.terminate()
            assert process.wait(timeout=60) == 128 + signal.SIGTERM
        psutil.wait_procs([fork], timeout=60)
        assert not fork.is_running() or fork.status() == psutil.STATUS_ZOMBIE
