"""A fork server per `snakemake` command: it imports the large libraries once, jobs fork from it.

Importing torch, transformers and lm-eval takes longer than a short run trains. A job's ``python -m
experiments ...`` sends its arguments, folder, environment and standard streams over a socket,
waits, passes signals on, and ends as its fork does. It does its work itself where nobody listens,
or where the server has another interpreter, folder, or setting that a library reads at import.

Libraries and the code of this repository are imported when a command of their kind comes for the
second time. Where a file of that code has changed since, a job imports the code itself: it runs
what the files hold when it begins.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import secrets
import select
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

ADDRESS = "SPARSE_PRELOAD"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
#: Variables that libraries read once, when they are imported.
READ_AT_IMPORT = (*THREADS, "HF_HUB_OFFLINE", "HF_HOME", "MPLBACKEND", "ATEN_CPU_CAPABILITY")
_MODELS = (
    "torch",
    "datasets",
    "lm_eval.models.huggingface",
    "lm_eval.tasks",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
)
_PAGES: tuple[str, ...] = ("jinja2", "markdown", "matplotlib.pyplot", "pandas", "pyarrow.parquet")
_PAGES += ("scipy.optimize", "scipy.stats")
#: Modules of other projects that each command imports.
LIBRARIES = {
    "train": _MODELS,
    "evaluate": _MODELS,
    "collect": ("pandas", "pyarrow.parquet", "scipy.stats"),
    "report": _PAGES,
    "index": _PAGES,
}
_COMMANDS = list(LIBRARIES)
#: Modules of this repository that all commands import.
OWN = ("experiments.cli.app", "experiments.store.collect", "experiments.report.render")


def start(scale: str) -> None:
    """Start the server; it ends when this process has ended and its last job has."""
    os.environ[ADDRESS] = f"sparse-{os.getpid()}-{secrets.token_hex(8)}"
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments.preload", scale],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | dict.fromkeys(THREADS, "1"),
        process_group=0,  # a terminal's Ctrl-C comes to jobs once, by who waits for them
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdout.readline()  # it listens
    atexit.register(process.stdin.close)  # which is open as long as this process lives


def hand_over(arguments: list[str]) -> None:
    """Let the server do a command, and end as it ends there; return if it does not take it."""
    address = os.environ.get(ADDRESS)
    if not address or not arguments or arguments[0] not in LIBRARIES:
        return
    connection = socket.socket(socket.AF_UNIX)
    job = {"arguments": arguments, "environment": dict(os.environ), "origin": _origin()}
    try:
        connection.connect("\0" + address)
        socket.send_fds(connection, [bytes([_COMMANDS.index(arguments[0])])], [0, 1, 2])
        connection.sendall(json.dumps(job).encode() + b"\n")
        answers = connection.makefile()
        pid = int(answers.readline() or 0)
    except OSError:
        return
    if not pid:
        return
    passed: list[int] = []

    def pass_on(number: int, _frame: Any) -> None:
        passed.append(number)
        _kill(pid, number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, pass_on)
    status = answers.readline()
    if not status and passed:
        sys.exit(128 + passed[-1])
    if not status:
        sys.exit("Error: the process that does this command's work was killed")
    sys.exit(int(status))


def _origin() -> list[Any]:
    """The settings that a job and the server must share."""
    settings = [os.environ.get(name) for name in READ_AT_IMPORT]
    return [sys.executable, sys.version, os.getcwd(), str(Path(__file__)), settings]


def _code() -> dict[str, int]:
    """The modules of this repository that are imported, and when their files were written."""
    own = [name for name in sys.modules if name.split(".")[0] in ("experiments", "sparse_lib")]
    files = {name: getattr(sys.modules[name], "__file__", None) for name in own}
    return {
        name: os.stat(file).st_mtime_ns if file and os.path.exists(file) else 0
        for name, file in files.items()
    }


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


class Job(socketserver.BaseRequestHandler):
    """A command that somebody waits for, in its own fork."""

    request: socket.socket
    server: Server

    def handle(self) -> None:
        """Become the process that was called, do the command, and tell how it ended."""
        self.server.socket.close()  # else jobs wait for a server that was killed
        self.request.settimeout(10)
        try:
            _, streams, _, _ = socket.recv_fds(self.request, 1, 3)
            job = json.loads(self.request.makefile().readline())
            if job["origin"] != self.server.origin:
                return
            self.request.settimeout(None)
            self.request.sendall(b"%d\n" % os.getpid())
        except (OSError, ValueError):  # the caller may have been interrupted meanwhile
            return
        threading.Thread(target=self.end_with_the_caller, daemon=True).start()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        sys.stdin, sys.stdout, sys.stderr = (
            open(number, mode, buffering=1, closefd=False) for number, mode in enumerate("rww")
        )
        os.environ.clear()
        os.environ.update(job["environment"])
        del os.environ[ADDRESS]
        if self.server.code != (now := _code()):
            for name in now:
                del sys.modules[name]
        sys.argv[1:] = job["arguments"]
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
        self.request.sendall(b"%d\n" % code)

    def end_with_the_caller(self) -> None:
        """Stop the work once nobody waits for it."""
        with contextlib.suppress(OSError):
            if not self.request.recv(1):
                _kill(os.getpid(), signal.SIGTERM)


class Server(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    """Forks a process per job until standard input ends."""

    max_children = 1024
    timeout = 0.5
    seen: set[str] = set()
    origin: list[Any]
    code: dict[str, int] = {}

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Import the libraries of a command that comes for the second time."""
        kind = request.recv(1, socket.MSG_PEEK)
        if not kind or kind[0] >= len(_COMMANDS):
            return False
        command = _COMMANDS[kind[0]]
        if command in self.seen:
            from experiments.evaluation.environment import quiet_and_offline

            quiet_and_offline()
            for name in (*LIBRARIES[command], *OWN):
                with contextlib.suppress(Exception):  # left to the commands that need it
                    importlib.import_module(name)
            with contextlib.suppress(Exception):
                importlib.import_module("experiments.specs.lookup").known_runs(sys.argv[1])
            self.code = _code()
        self.seen.add(command)
        gc.freeze()  # a fork's collections leave alone, and so do not copy, what is here
        return True


def main() -> None:
    """Serve jobs at the address in the environment."""
    with Server("\0" + os.environ[ADDRESS], Job) as server:
        server.origin = _origin()  # as of now: what is imported may set variables
        print("listening", flush=True)
        while not select.select([0], [], [], 0)[0]:
            server.handle_request()


if __name__ == "__main__":
    main()
