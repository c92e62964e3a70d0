"""The machine of a computation's timings, as a row of its table ``machine``."""

from __future__ import annotations

from typing import Any

from experiments import machine
from experiments.store.machine import key, words


def machine_row(num_threads: int = 1) -> dict[str, Any]:
    """Return the machine's key (as the tables with timings carry it) and facts."""
    facts = machine.facts(num_threads)
    return {
        "machine": key(facts),
        "words": words(facts),
        **{name: facts[name] for name in ("processor", "vendor", "family", "model", "stepping")},
        "isa": " ".join(facts["isa"]),
        **{name: facts[name] for name in ("vector_bits", "cores", "num_threads", "torch_isa")},
        "versions": "; ".join(f"{name} {facts['versions'][name]}" for name in facts["versions"]),
        "kernels": facts["kernels"].get("build"),
        "lanes": facts["kernels"].get("lanes"),
    }
