"""A Slurm cluster of two nodes on this machine, for tests: Debian's slurm-wlm and munge.

Its daemons, munge's too, are its own: they end with it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

DEFAULT_CONF = Path("/etc/slurm/slurm.conf")
NODES = ("one", "two")
PROGRAMS = ("slurmctld", "slurmd", "munged", "srun", "sbatch", "setpriv")
CONF = """\
ClusterName=tests
SlurmctldHost={host}
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A job that is queued again waits for the end of its credential.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=2
InactiveLimit=0
# squeue knows finished jobs for this long; without accounting the executor reads their ends here.
MinJobAge=3600
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
{nodes}
PartitionName=all Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str | None:
    """Why there is no Slurm here; None where it can run."""
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    if DEFAULT_CONF.is_symlink() and not DEFAULT_CONF.exists():
        DEFAULT_CONF.unlink()  # of a test that was killed
    if DEFAULT_CONF.exists():
        return f"this machine belongs to a cluster already ({DEFAULT_CONF})"
    absent = ", ".join(name for name in PROGRAMS if shutil.which(name) is None)
    return f"{absent} are not installed (apt-get install slurm-wlm munge)" if absent else None


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


@contextmanager
def cluster() -> Iterator[Path]:
    """A running cluster, until the block ends; gives its folder with the logs."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    host = socket.gethostname().split(".")[0]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    nodes = "\n".join(
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=2 "
        f"RealMemory={memory // 2}"
        for name in NODES
    )
    settings = {"host": f"{host}(127.0.0.1)", "port": free_port(), "folder": folder}
    (folder / "slurm.conf").write_text(CONF.format(nodes=nodes, names=",".join(NODES), **settings))
    (folder / "state").mkdir()
    # Jobs of the executor find it nowhere else: it takes Slurm's variables out of their way.
    DEFAULT_CONF.parent.mkdir(parents=True, exist_ok=True)
    DEFAULT_CONF.symlink_to(folder / "slurm.conf")
    daemons: list[subprocess.Popen[bytes]] = []
    log = (folder / "daemons.log").open("wb")
    try:
        for command in commands(folder):
            # A test that is killed takes its cluster along.
            words = ["setpriv", "--pdeathsig", "TERM", *command]
            daemons.append(subprocess.Popen(words, stdout=log, stderr=log))
            if command[0] == "munged":
                wait_for((folder / "munge.socket").exists, folder)
        wait_for(nodes_are_idle, folder)
        yield folder
    finally:
        subprocess.run(["scancel", "--user", "root"], capture_output=True)
        for daemon in reversed(daemons):  # munge last: the others talk through it
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        log.close()
        DEFAULT_CONF.unlink()
        shutil.rmtree(folder, ignore_errors=True)


def commands(folder: Path) -> Iterator[list[str]]:
    """The daemons: munge with a key of its own, the controller, and one for each node."""
    folder.chmod(0o755)
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(os.urandom(128))
    files = {"socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    options = [f"--{option}={folder}/munge.{suffix}" for option, suffix in files.items()]
    yield ["munged", "--foreground", f"--key-file={key}", *options]
    yield ["slurmctld", "-D"]
    for name in NODES:
        yield ["slurmd", "-D", "-N", name]


def wait_for(is_ready: Callable[[], bool], folder: Path, seconds: float = 60) -> None:
    """Wait until it is so; raises RuntimeError with the logs where it does not come to that."""
    end = time.monotonic() + seconds
    while not is_ready():
        if time.monotonic() > end:
            logs = [path.read_text()[-600:] for path in sorted(folder.glob("*.log"))]
            raise RuntimeError("the cluster did not start:\n" + "\n".join(logs))
        time.sleep(0.2)


def nodes_are_idle() -> bool:
    said = subprocess.run(["sinfo", "-h", "-N", "-o", "%t"], capture_output=True, text=True)
    return said.stdout.split() == ["idle"] * len(NODES)
