"""One process per `snakemake` command that imports the large libraries, and forks jobs from there.

Importing torch, transformers and lm-eval takes longer than a short run trains. The process listens
on a socket whose address is in the environment variable `ADDRESS`. A job's ``python -m
experiments ...`` hands its arguments, folder, environment and standard streams over, waits, passes
signals on, and ends as the fork does. It does its work itself where nobody listens, or where the
listener has another interpreter, folder, or setting that a library reads when it is imported.

The code of this repository is not imported in advance, so a job runs what the files hold when it
begins. Libraries are imported when a command of their kind comes for the second time.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

ADDRESS = "SPARSE_PRELOAD"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
#: Variables that libraries read once, when they are imported.
READ_AT_IMPORT = (*THREADS, "HF_HUB_OFFLINE", "HF_HOME", "MPLBACKEND", "ATEN_CPU_CAPABILITY")
_MODELS = (
    "torch",
    "datasets",
    "lm_eval.tasks",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
)
#: What each command imports of other projects.
LIBRARIES = {
    "train": _MODELS,
    "evaluate": _MODELS,
    "compute": (*_MODELS, "pandas"),
    "collect": ("pandas", "scipy.stats"),
    "report": ("jinja2", "matplotlib.pyplot", "pandas", "scipy.optimize", "scipy.stats"),
    "index": ("jinja2", "pandas"),
}
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def start() -> None:
    """Start the process and put its address into the environment of what this process starts.

    It ends when this process has ended and its last job has.
    """
    folder = tempfile.mkdtemp(prefix="preload-")
    os.environ[ADDRESS] = os.path.join(folder, "socket")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.environ[ADDRESS])
    listener.listen(64)  # jobs that come before the process does wait
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments.preload", str(listener.fileno())],
        stdin=subprocess.PIPE,
        pass_fds=[listener.fileno()],
        env=os.environ | dict.fromkeys(THREADS, "1"),
        process_group=0,  # a terminal's Ctrl-C comes to jobs once, by who waits for them
    )
    listener.close()
    assert process.stdin is not None
    atexit.register(process.stdin.close)  # which is open as long as this process lives


def hand_over(arguments: list[str]) -> None:
    """Let the process do a command, and end as it ends there; return if it does not take it.

    Args:
        arguments: what follows ``python -m experiments``.
    """
    address = os.environ.get(ADDRESS)
    if not address or not arguments or arguments[0] not in LIBRARIES or "RANK" in os.environ:
        return
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(address)
        job = {"arguments": arguments, "environment": dict(os.environ), "origin": _origin()}
        socket.send_fds(connection, [b" "], [0, 1, 2])
        connection.sendall(json.dumps(job).encode() + b"\n")
        answers = connection.makefile()
        pid = int(answers.readline() or 0)
    except OSError:
        return
    if not pid:
        return
    for number in _SIGNALS:
        signal.signal(number, lambda number, _frame: _kill(pid, number))
    status = answers.readline()
    if not status:
        sys.exit("Error: the process that does this command's work was killed")
    code = int(status)
    sys.exit(code if code >= 0 else 128 - code)


def _origin() -> list[Any]:
    """What a job and the process must have in common."""
    settings = [os.environ.get(name) for name in READ_AT_IMPORT]
    return [sys.executable, sys.version, os.getcwd(), str(Path(__file__)), settings]


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


class Server:
    """Forks a process per job until standard input ends.

    Args:
        listener: a socket that jobs connect to.

    Attributes:
        jobs: the connection to who waits for each fork; closed where nobody does any more.
    """

    def __init__(self, listener: socket.socket) -> None:
        self.origin = _origin()
        self.listener = listener
        self.jobs: dict[int, socket.socket] = {}
        self.seen: set[str] = set()

    def run(self) -> Job | None:
        """Serve; a fork returns its job at once, the process itself None at its end."""
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake)
        asked: list[Any] = [self.listener, sys.stdin]
        while asked or self.jobs:
            waiting = [connection for connection in self.jobs.values() if connection.fileno() >= 0]
            ready, _, _ = select.select([woken, *asked, *waiting], [], [])
            if woken in ready:
                os.read(woken, 4096)
                self._reap()
            for pid, connection in self.jobs.items():
                if connection in ready:  # who waited was killed
                    connection.close()
                    _kill(pid, signal.SIGTERM)
            if sys.stdin in ready:
                asked = []
                self.listener.close()
            elif self.listener in ready and (job := self._accept()):
                return job
        return None

    def _reap(self) -> None:
        """Tell who waits how their forks ended."""
        for pid in list(self.jobs):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                with self.jobs.pop(pid) as connection, contextlib.suppress(OSError):
                    connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))

    def _accept(self) -> Job | None:
        """Fork for the next job; None but in the fork."""
        connection, _ = self.listener.accept()
        job = Job.received(connection)
        if job is None:
            return None
        if job.origin != self.origin:
            job.leave()
            return None
        command = job.arguments[0]
        if command in self.seen:
            _import(LIBRARIES[command])
        self.seen.add(command)
        gc.freeze()  # a fork's collections leave alone, and so do not copy, what is here
        if (pid := os.fork()) == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for other in (self.listener, *self.jobs.values()):
                other.close()
            return job
        self.jobs[pid] = connection.dup()
        with contextlib.suppress(OSError):
            connection.sendall(b"%d\n" % pid)
        job.leave()
        return None


@dataclass
class Job:
    """A command that somebody waits for.

    Attributes:
        arguments: what follows ``python -m experiments``.
        environment: all of its variables.
        origin: see `_origin`.
        streams: descriptors of its standard input, output and error.
        connection: open as long as the fork lives, so who waits does not take the end of the
            process for that of the fork.
    """

    arguments: list[str]
    environment: dict[str, str]
    origin: list[Any]
    streams: list[int]
    connection: socket.socket

    @classmethod
    def received(cls, connection: socket.socket) -> Job | None:
        """What a connection hands over; None if it ends early."""
        connection.settimeout(10)
        job = cls([], {}, [], [], connection)
        try:
            _, job.streams, _, _ = socket.recv_fds(connection, 1, 3)
            with connection.makefile() as lines:
                vars(job).update(json.loads(lines.readline()))
        except (OSError, ValueError):
            job.leave()
            return None
        connection.settimeout(None)
        return job

    def leave(self) -> None:
        """Close what belongs to the job."""
        for stream in self.streams:
            os.close(stream)
        self.connection.close()

    def do(self) -> NoReturn:
        """Become the process that was called, do the command, and end.

        Taking down the libraries that were imported takes longer than some commands, so the
        process ends without it, as those of `multiprocessing` do.
        """
        for number, stream in enumerate(self.streams):
            os.dup2(stream, number)
            os.close(stream)
        for text in (sys.stdout, sys.stderr):
            assert isinstance(text, io.TextIOWrapper)
            text.reconfigure(line_buffering=text is sys.stderr or text.isatty())
        os.environ.clear()
        os.environ.update(self.environment)
        del os.environ[ADDRESS]
        for name in [name for name in sys.modules if name.split(".")[0] == "experiments"]:
            del sys.modules[name]
        sys.argv[1:] = self.arguments
        code = 0
        try:
            runpy.run_module("experiments", run_name="__main__", alter_sys=True)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
        except BaseException:
            traceback.print_exc()
            code = 1
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _import(names: Iterable[str]) -> None:
    """Import modules; one that is not installed is left to the commands that need it."""
    from experiments.evaluation.environment import quiet_and_offline

    quiet_and_offline()
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def main() -> None:
    """Serve jobs of the socket whose descriptor is the only argument."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    folder = Path(listener.getsockname()).parent
    job = Server(listener).run()
    if job is None:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        job.do()


if __name__ == "__main__":
    main()
