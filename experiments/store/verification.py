"""Whether a run that was trained again came out as recorded.

On the same processor, versions and kernels all numbers but times are equal to the last bit.
Elsewhere sums are rounded in another order, which a training magnifies, at most to what separates
its seeds: a short image run with a moving mask ended 8.6% of its validation loss apart by AVX2 and
AVX-512, a dense one 1.3%, two runs of language models 0.005% and 0.012%.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import stdev
from typing import Any, NamedTuple

from experiments import machine
from experiments.store import paths, reference

VERDICTS = SAME, ROUNDED, DIFFERS = "same bits", "within rounding", "differs"
#: Among the committed records: verdicts.
FILE = "verified.csv"
COLUMNS = ["run", "machine", "verdict"]
#: Share of the validation loss by which the same run may end apart on two processors, where its
#: seeds do not tell: several times the largest that was measured, by task.
TOLERANCE = {"lm": 0.001, "vision": 0.1}
#: So many standard deviations between the seeds of a run are within rounding.
SPREAD = 3.0
#: Values of a record in seconds, or per second.
TIMES = ("elapsed_s", "trained_s", "trained_cpu_s", "tokens_per_s", "images_per_s", "wall_s")


class Verified(NamedTuple):
    """The comparison of a run that was trained again with its record.

    Attributes:
        why: What the verdict rests on.
        machines: Keys of the machines of the record and of the new run.
    """

    run: str
    verdict: str
    metric: str
    recorded: float | None
    new: float | None
    why: str
    machines: tuple[str, str]

    @property
    def is_good(self) -> bool:
        """Whether it came out as recorded."""
        return self.verdict in (SAME, ROUNDED)

    def line(self) -> str:
        """One line for people."""
        values = " / ".join("-" if v is None else f"{v:.6g}" for v in (self.recorded, self.new))
        return f"{self.verdict:15}  {self.metric} {values}  {self.run}  ({self.why})"


def judge(
    recorded: Mapping[str, Any], new: Mapping[str, Any], *, seeds: Sequence[float] = ()
) -> Verified:
    """Compare the committed record of a run and a new one, in their JSON form.

    Args:
        seeds: Recorded validation losses of the run and of its further seeds.
    """
    final = new["final"]  # its validation loss stands for a run, else its training loss
    metric = "validation_loss" if final.get("validation_loss") is not None else "train_loss"
    value = final.get(metric)
    machines = machine.key(recorded.get("machine")), machine.key(new.get("machine"))
    before = recorded["final"].get(metric)

    def found(verdict: str, why: str) -> Verified:
        return Verified(new["run"], verdict, metric, before, value, why, machines)

    for what, ours, theirs in (
        ("spec", new["spec_hash"], recorded["spec_hash"]),
        ("data", new["data"]["hash"], recorded["data"]["hash"]),
    ):
        if ours != theirs:
            return found(DIFFERS, f"the {what} hash is {ours[:12]}, recorded {theirs[:12]}")
    if apart := _first_difference(recorded, new):
        if machine.is_known(machines[0]) and machines[0] == machines[1]:
            return found(DIFFERS, f"{apart}, on the same machine, versions and kernels")
        if before is None or value is None:
            return found(DIFFERS, apart)
        distance = abs(value - before)
        allowed, why = TOLERANCE[new["spec"]["task"]] * abs(before), "a share of it"
        if len(seeds) > 2:
            allowed, why = SPREAD * stdev(seeds), f"by the spread of {len(seeds)} seeds"
        said = f"{distance:.2g} apart on another machine, {allowed:.2g} allowed {why}"
        return found(ROUNDED if distance <= allowed else DIFFERS, said)
    return found(SAME, "all curves, masks and scores are equal")


def summary(found: Iterable[Verified]) -> str:
    """How many runs came out as recorded, in words."""
    found = list(found)
    counts = {word: sum(item.verdict == word for item in found) for word in VERDICTS}
    parts = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    good = sum(item.is_good for item in found)
    runs = "run" if len(found) == 1 else "runs"
    return f"{good} of {len(found)} {runs} came out as recorded" + (f" ({parts})" if parts else "")


def keep(found: Iterable[Verified]) -> None:
    """Add verdicts to ``results/reference/verified.csv``: one per committed run and machine."""
    rows = {(row["run"], row["machine"]): row["verdict"] for row in kept()}
    rows |= {(item.run, item.machines[1]): item.verdict for item in found}
    known = reference.entries()
    lines = [(run, where, said) for (run, where), said in sorted(rows.items()) if run in known]
    with (paths.REFERENCE / FILE).open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows([COLUMNS, *lines])


def kept() -> list[dict[str, str]]:
    """The committed verdicts: run, machine and verdict."""
    file = paths.REFERENCE / FILE
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    return list(csv.DictReader(text.splitlines()))


def repeats(runs: Collection[str]) -> str:
    """How many of some committed runs were trained again, where, and how; empty for none."""
    rows = [row for row in kept() if row["run"] in runs]
    if not rows:
        return ""
    again, places = {row["run"] for row in rows}, {row["machine"] for row in rows}
    bad = {row["run"] for row in rows if row["verdict"] == DIFFERS}
    kinds = f"{len(places)} kind{'s' if len(places) > 1 else ''} of machine"
    came = f"{len(bad)} differed" if bad else "as recorded"
    return f"{len(again)} of {len(runs)} run{'s' if len(runs) > 1 else ''}, on {kinds}: {came}"


def _first_difference(recorded: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The first difference of two records' measurements, in words; empty if there is none."""
    for what in ("curve", "layers", "final", "num_parameters", "num_nonzero"):
        if _timeless(recorded[what]) != _timeless(new[what]):
            return f"its {'last values' if what == 'final' else what} differ"
    theirs, ours = (_scores(record) for record in (recorded, new))
    for name in theirs.keys() | ours.keys():
        if theirs.get(name) != ours.get(name):
            return f"its score {' '.join(map(str, name))} differs"
    return ""


def _timeless(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _timeless(part) for key, part in value.items() if key not in TIMES}
    return [_timeless(part) for part in value] if isinstance(value, list | tuple) else value


def _scores(record: Mapping[str, Any]) -> dict[tuple[Any, ...], Any]:
    """Value of each score by task, metric and split."""
    scores = (record.get("evaluation") or {}).get("scores", [])
    return {(s["task"], s["metric"], s.get("split")): s.get("value") for s in scores}
