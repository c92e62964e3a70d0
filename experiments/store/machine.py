"""A record's machine, and which timings may be compared.

Timings of one machine, threads, library versions and kernels included, may stand beside each other;
no others may. Each timing therefore carries the key of its machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.specs.digest import digest

#: Key of timings whose machine is unknown, as in records of older versions.
NOT_RECORDED = "not recorded"
#: Key of timings of a run that an interruption moved to another machine.
SEVERAL = "several machines"


def key(facts: Mapping[str, Any] | None) -> str:
    """Return a machine's key: a digest of its facts, 12 hexadecimal digits.

    Args:
        facts: What `experiments.machine.facts` gathers; None where it was not recorded.

    Returns:
        The key; `NOT_RECORDED`, or `SEVERAL` for a run that has been on more than one.
    """
    if not facts:
        return NOT_RECORDED
    return SEVERAL if facts.get("earlier") else digest(dict(facts))[:12]


def is_known(machine: Any) -> bool:
    """Return whether timings with this key may be compared with others of the same key."""
    return isinstance(machine, str) and machine not in ("", NOT_RECORDED, SEVERAL)


def processor(facts: Mapping[str, Any] | None, name: str = "") -> str:
    """Return a machine's processor in words, without commas: name, stepping, vectors, cores."""
    if not facts:
        return f"{name} (the rest not recorded)".strip() if name else NOT_RECORDED
    numbers = [f"{part} {facts[part]}" for part in ("family", "model", "stepping")
               if facts.get(part) is not None]  # fmt: skip
    about = [" ".join([str(facts.get("vendor") or ""), *numbers]).strip()]
    about.append(" ".join(facts.get("isa") or []) or "vector instructions not known")
    if facts.get("accelerator"):
        about.append(str(facts["accelerator"]))
    cores = facts.get("cores")
    about.append(f"{cores} {'core' if cores == 1 else 'cores'}")
    return f"{facts['processor']} ({'; '.join(part for part in about if part)})"
