"""A fork server per `snakemake` command: it imports the large libraries once, jobs fork from it.

Importing torch, transformers and lm-eval takes longer than a short run trains. A job's ``python -m
experiments ...`` sends its arguments, environment and standard streams over a socket, waits, passes
signals on, and ends as its fork does. It does its work itself where nobody listens, where the
server has another interpreter, folder, or setting that a library reads at import, or where a file
of the code has changed since the server imported it.

Libraries and the code of this repository are imported when a command of their kind comes for the
second time.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import secrets
import select
import signal
import socket
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
_MODELS = "torch datasets lm_eval.models.huggingface lm_eval.tasks"
_MODELS += " transformers.models.gpt2.modeling_gpt2 transformers.models.llama.modeling_llama"
_PAGES = "jinja2 markdown matplotlib.pyplot pandas pyarrow.parquet scipy.optimize scipy.stats"
#: Modules of other projects that each command imports.
LIBRARIES = dict.fromkeys(("train", "evaluate"), _MODELS)
LIBRARIES |= dict.fromkeys(("collect", "report", "index"), _PAGES)
#: Modules of this repository that all commands import.
OWN = "experiments.cli.app experiments.store.collect experiments.report.render"


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
        socket.send_fds(connection, [b" "], [0, 1, 2])
        connection.sendall(json.dumps(job).encode() + b"\n")
        answers = connection.makefile()
        taken = answers.readline()
    except OSError:
        return
    if not taken:
        return
    passed: list[int] = []

    def pass_on(number: int, _frame: Any) -> None:
        passed.append(number)
        with contextlib.suppress(OSError):
            connection.send(bytes([number]))

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
    """Files of this repository's modules that are imported, and when they were written."""
    own = [name for name in sys.modules if name.split(".")[0] in ("experiments", "sparse_lib")]
    files = [getattr(sys.modules[name], "__file__", None) for name in own]
    return {file: os.stat(file).st_mtime_ns for file in files if file and os.path.exists(file)}


def _work(connection: socket.socket, streams: list[int], job: dict[str, Any]) -> None:
    """Become the process that was called, do the command, and tell how it ended."""

    def obey() -> None:
        """Take the caller's signals, and stop once nobody waits for the work."""
        number = b" "
        while number:
            number = b""
            with contextlib.suppress(OSError):
                number = connection.recv(1)
            os.kill(os.getpid(), number[0] if number else signal.SIGTERM)

    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, buffering=1, closefd=False) for number, mode in enumerate("rww")
    )
    os.environ.clear()
    os.environ.update(job["environment"])
    del os.environ[ADDRESS]
    sys.argv = [str(Path(__file__).with_name("__main__.py")), *job["arguments"]]
    connection.sendall(b"taken\n")
    threading.Thread(target=obey, daemon=True).start()
    code = 1
    try:
        importlib.import_module("experiments.cli.app").main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    connection.sendall(b"%d\n" % code)


def _load(command: str, scale: str) -> None:
    """Import what a command needs; what fails is left to the commands."""
    from experiments.evaluation.model import quiet_and_offline

    quiet_and_offline()
    for name in f"{LIBRARIES[command]} {OWN}".split():
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    with contextlib.suppress(Exception):
        importlib.import_module("experiments.specs.lookup").known_runs(scale)


def main() -> None:
    """Serve jobs at the address in the environment until standard input ends."""
    origin, code = _origin(), _code()  # as of now: what is imported may set variables
    seen: set[str] = set()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # jobs that end leave nothing behind
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0" + os.environ[ADDRESS])
        server.listen(1024)
        print("listening", flush=True)
        while 0 not in select.select([0, server.fileno()], [], [])[0]:
            connection = server.accept()[0]
            connection.settimeout(10)
            streams: list[int] = []
            with contextlib.suppress(OSError, ValueError):  # the caller may have been interrupted
                _, streams, _, _ = socket.recv_fds(connection, 1, 3)
                job = json.loads(connection.makefile().readline())
                command = job["arguments"][0]
                if job["origin"] == origin and code == _code():
                    if command in seen:
                        _load(command, sys.argv[1])
                        code = _code()
                    seen.add(command)
                    gc.freeze()  # collections of a fork leave alone, and so do not copy, it
                    if not os.fork():
                        try:
                            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                            server.close()  # else jobs wait for a server that was killed
                            connection.settimeout(None)
                            _work(connection, streams, job)
                        finally:
                            os._exit(0)
            for stream in streams:
                os.close(stream)
            connection.close()


if __name__ == "__main__":
    main()
