"""Snakemake's output: one line per job, with the time left or the reason of a failure."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

#: Sentences of Snakemake's scheduler that say nothing about the work.
NOISE = (
    "Select jobs to execute...", "Execute ", "Assuming unrestricted shared", "Building DAG",
    "Using shell", "Singularity containers: ignored", "RuleException:\nCalledProcessError",
)  # fmt: skip


class Progress(logging.Filter):
    """Replaces Snakemake's lines on its scheduler and on finished jobs by one line per job.

    Attributes:
        jobs: Name and expected core-seconds of each job, by Snakemake's number.
    """

    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[int, tuple[str, float]] = {}
        self.finished: set[int] = set()
        self.began, self.cores = time.monotonic(), 1

    def plan(self, jobs: Iterable[tuple[int, str, float]], cores: int = 1) -> None:
        """Set the jobs of a command: number, name and expected core-seconds of each."""
        self.cores = cores
        self.jobs = {number: (name, max(cost, 0.1)) for number, name, cost in jobs}
        self.finished, self.began = set(), time.monotonic()

    def filter(self, record: logging.LogRecord) -> bool:
        """Drop or rewrite a record of Snakemake's logger."""
        event = str(getattr(record, "event", None) or "")
        if event == "job_finished":
            number = int(vars(record)["job_id"])
            self.finished.add(number)
            record.msg, record.args = self.line(number), ()
            delattr(record, "event")  # so that it is printed as it is
            return number in self.jobs
        if event == "job_error":  # which Snakemake hides with its lines on rules
            facts = vars(record)
            name, _ = self.jobs.get(int(facts["jobid"]), (facts["rule_name"], 0.0))
            record.msg, record.args = f"failed: {name}: {_end(facts['log'])}", ()
            delattr(record, "event")
        return event not in ("progress", "resources_info") and not str(record.msg).startswith(NOISE)

    def line(self, number: int) -> str:
        """The line on a job that has ended."""
        name, _ = self.jobs.get(number, ("", 0.0))
        done = sum(cost for job, (_, cost) in self.jobs.items() if job in self.finished)
        total = max(sum(cost for _, cost in self.jobs.values()), 0.1)
        share, prior = done / total, total / 5  # so much of the work goes as expected
        pace = (time.monotonic() - self.began + prior / self.cores) / (done + prior)
        left = pace * (total - done)
        count = f"{len(self.finished):>{len(str(len(self.jobs)))}} of {len(self.jobs)}"
        return f"{count}  {share:4.0%}  {duration(left):>8} left  {name}"


def _end(logs: Iterable[str]) -> str:
    """The last line of a failed job's log, and where it lies."""
    for log in map(Path, logs):
        lines = log.read_text(errors="replace").split("\n") if log.is_file() else []
        return f"{next(filter(None, reversed(lines)), 'no word of it')} ({log})"
    return "no log"


def duration(seconds: float) -> str:
    """Seconds in words of at most eight characters, such as ``3.5 min``."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def name_and_cost(job: Any, core_seconds: float) -> tuple[str, float]:
    """Name and expected core-seconds of a job of the workflow.

    Args:
        core_seconds: What the run or computation of its wildcards is expected to cost.
    """
    words = [job.rule.name, *(str(value) for key, value in job.wildcards.items() if key != "scale")]
    is_work = job.rule.name.endswith(("train", "verify_run", "compute"))
    return " ".join(words), core_seconds if is_work else 2.0
