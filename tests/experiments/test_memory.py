"""Memory that is left, of a machine and of a group of processes with a limit."""

import sys
from pathlib import Path
from types import SimpleNamespace as Namespace

import pytest

from experiments import memory

GB = 10**9


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with 10 GB free, and a process that has 3 GB and had 5."""
    unit = 1 if sys.platform == "darwin" else 1024
    monkeypatch.setattr(memory.resource, "getrusage", lambda _: Namespace(ru_maxrss=5 * GB / unit))
    monkeypatch.setattr(
        memory.psutil, "Process", lambda: Namespace(memory_info=lambda: Namespace(rss=3 * GB))
    )
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: Namespace(available=10 * GB))
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    return tmp_path


def group(folder: Path, limit: object, used: int, cached: int, *, first: bool) -> None:
    """Write the files of a control group, of version 1 or 2."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ("memory.limit_in_bytes" if first else "memory.max")).write_text(f"{limit}\n")
    (folder / ("memory.usage_in_bytes" if first else "memory.current")).write_text(f"{used}\n")
    name = "total_inactive_file" if first else "inactive_file"
    (folder / "memory.stat").write_text(f"cache 1\n{name} {cached}\n")


def left(folder: Path, line: str) -> list[int]:
    """What is left in the groups of a process with this line in /proc/self/cgroup."""
    (folder / "self").write_text(f"3:cpuset:/\n{line}\n")
    return list(memory._left_in_groups(folder / "self"))


def test_room_is_free_memory_less_what_the_process_will_take_again(machine, monkeypatch):
    monkeypatch.setattr(memory, "_left_in_groups", list)
    assert memory.room() == pytest.approx(8 * GB)
    monkeypatch.setattr(memory, "_left_in_groups", lambda: [50 * GB, 6 * GB])
    assert memory.room() == pytest.approx(4 * GB)


@pytest.mark.parametrize("first", [True, False])
def test_limits_of_groups_and_of_those_above_count(machine, first):
    root, line = machine / ("memory" if first else ""), f"{'4:memory' if first else '0:'}:/job/step"
    group(root / "job", 20 * GB, 9 * GB, 2 * GB, first=first)
    group(root / "job" / "step", 2**63 - 1 if first else "max", 8 * GB, 0, first=first)
    assert min(left(machine, line)) == 13 * GB  # files that are cached give way


def test_a_container_sees_its_own_group_at_the_root(machine):
    group(machine, 4 * GB, 1 * GB, 0, first=False)
    assert left(machine, "0::/kubepods/of-the-host") == [3 * GB]


def test_no_groups_are_no_limit(machine):
    assert left(machine, "0::/") == []
    assert list(memory._left_in_groups(machine / "none")) == []
