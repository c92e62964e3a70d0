"""Evaluation of one trained model: perplexity of its dataset, and a suite of lm-eval tasks.

`evaluate` reads an exported model folder and a prepared dataset and writes ``eval.json``. It runs
in a process of its own, never in the training process, and never asks the network unless
``HF_HUB_OFFLINE=0`` is set.
"""

from __future__ import annotations

import importlib.metadata
import tempfile
import time
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments import machine
from experiments.data import verify
from experiments.data.base import SPLITS
from experiments.data.files import read_meta
from experiments.errors import UserError
from experiments.evaluation.environment import quiet_and_offline
from experiments.evaluation.files import hash_files, run_of, weights_hash
from experiments.evaluation.suite import (
    BROUGHT,
    Suite,
    TaskEntry,
    applicable,
    brought_tests,
    load_suite,
    own_tasks,
    suite_files,
)
from experiments.specs.code import code_hash
from experiments.specs.digest import digest
from experiments.store.io import read_cache, write_json

if TYPE_CHECKING:
    from experiments.evaluation.lm.scoring import Scorer


def evaluate(
    model_dir: Path,
    data_dir: Path | None,
    suite: str,
    *,
    out: Path,
    cache: Path | None = None,
    mirror: Path | None = None,
) -> dict[str, Any]:
    """Score a model and write the result; what is already scored is kept.

    Every task is a unit keyed by the hashes of weights, settings, data and code. Units found in
    the cache are not run again: a task added to the suite is the only one run, and an interrupted
    evaluation goes on at the task it was in. The cache holds whole results too: an unchanged call
    returns at once, without importing torch or lm_eval, even where ``out`` was deleted.

    Args:
        model_dir: folder that ``AutoModelForCausalLM.from_pretrained`` loads, tokenizer included.
        data_dir: prepared dataset: ``{validation,test}.bin`` (uint16 tokens),
            ``text/{validation,test}.jsonl``, ``meta.json``; ``pairs.jsonl`` where it has pairs.
            None for suites of published tasks alone.
        suite: name of a suite, or path of a YAML file.
        out: file to write (``eval.json``), or the folder to write it into.
        cache: folder of what is scored so far, one file per weights; None is ``out``'s folder.
            Keep it where a workflow does not delete it before a new evaluation.
        mirror: root under which ``<hub id>`` folders hold datasets; None asks the hub, which
            needs ``HF_HUB_OFFLINE=0``.

    Returns:
        What was written: run, hashes, ``units`` (key and wall_s per task), ``scores``, wall_s.

    Raises:
        MissingData: if a dataset of the suite is not available; nothing was run then.
        ValueError: if the suite is unknown or wrong, or the prepared data are damaged.
    """
    quiet_and_offline()
    model_dir, out = Path(model_dir), Path(out)
    out = out if out.suffix == ".json" else out / "eval.json"
    settings = load_suite(suite, Suite)
    if data_dir is not None:
        data_dir = Path(data_dir)
        if read_meta(data_dir).get("kind") == "images":
            raise UserError(f"{data_dir} holds images, so {model_dir} cannot read it")
        verify(data_dir)
    elif settings.perplexity is not None or any(entry.folder is None for entry in settings.tasks):
        raise UserError(f"suite {settings.name} scores text of prepared data; name their folder")
    job = _Job(model_dir, data_dir, settings, None if mirror is None else Path(mirror))
    store = (cache or out.parent) / f"scores-{job.weights_hash[:16]}.json"
    known = {key: unit for key, unit in read_cache(store).items() if _is_whole(unit)}
    for previous in (read_cache(out), *known.values()):
        if previous.get("inputs_hash") == job.inputs_hash(previous.get("datasets") or {}):
            write_json(out, previous)
            return previous
    from experiments.evaluation.lm.harness_tasks import FEWSHOT_SEED

    units: dict[str, Any] = {}
    scores: list[dict[str, Any]] = []
    for name, key, entry in job.units:
        if key not in known:
            scorer = job.scorer  # loaded before the clock starts
            began = time.perf_counter()
            rows = job.run(name, entry, scorer)
            known[key] = {"wall_s": round(time.perf_counter() - began, 3), "scores": rows}
            write_json(store, known)
        units[name] = {"key": key, "wall_s": known[key]["wall_s"]}
        scores += known[key]["scores"]
    result = {
        "run": run_of(model_dir),
        "machine": machine.facts(),
        "weights_hash": job.weights_hash,
        "suite": job.suite.name,
        "suite_hash": job.suite.hash,
        "data_hash": job.data_hash,
        "inputs_hash": job.inputs_hash(job.datasets),
        "fewshot_seed": FEWSHOT_SEED,
        "datasets": job.datasets,
        "units": units,
        "scores": scores + job.group_scores(scores),
        "wall_s": round(sum(unit["wall_s"] for unit in units.values()), 3),
    }
    write_json(store, {**known, result["inputs_hash"]: result})
    write_json(out, result)
    return result


class _Job:
    """One call of `evaluate`: what it depends on, its units, and how to run one."""

    def __init__(
        self, model_dir: Path, data_dir: Path | None, suite: Suite, mirror: Path | None
    ) -> None:
        self.scratch = tempfile.TemporaryDirectory(prefix="evaluate-")
        data_hash = None if data_dir is None else read_meta(data_dir)["hash"]
        data_dir = data_dir or Path(self.scratch.name)
        self.model_dir = model_dir
        self.data_dir = data_dir
        self.suite = suite
        self.mirror = mirror
        self.weights_hash = weights_hash(model_dir)
        self.files_hash = hash_files(data_dir, _data_files(data_dir))
        self.data_hash = data_hash
        self.entries = applicable(suite, data_dir)
        self.brought = brought_tests(data_dir)

    def inputs_hash(self, hub_ids: Iterable[str]) -> str:
        """Digest of all that the scores depend on, given the hub datasets in use."""
        hubs = {hub: self._hub_digest(hub) for hub in hub_ids}
        return digest(
            [self.weights_hash, self.suite.hash, self.data_hash, self.files_hash, hubs]
            + [_code(), _own_code(self.suite)]
        )

    @cached_property
    def manager(self) -> Any:
        from experiments.evaluation.lm.harness_tasks import task_manager

        scratch = Path(self.scratch.name)
        return task_manager(self.entries, data_dir=self.data_dir, scratch=scratch)

    @cached_property
    def datasets(self) -> dict[str, str]:
        """Digest of each hub dataset that the suite's tasks read."""
        from experiments.evaluation.lm import harness_tasks as harness

        hubs = set()
        for entry in self.entries:
            for leaf in harness.leaves(self.manager, entry.task):
                if hub := harness.hub_id(self.manager, leaf):
                    hubs.add(hub)
                    harness.local_dataset(hub, self.mirror)
                    harness.check_split(self.manager, leaf, entry, self.mirror)
        return {hub: self._hub_digest(hub) for hub in sorted(hubs)}

    @property
    def units(self) -> list[tuple[str, str, TaskEntry | None]]:
        """Name, key and suite entry of each unit; perplexity has no entry."""
        shared = [self.weights_hash, *self.suite.how.values(), _code()]
        found: list[tuple[str, str, TaskEntry | None]] = []
        if self.suite.perplexity is not None:
            settings = self.suite.perplexity.model_dump(mode="json")
            files = _own_code(self.suite.model_copy(update={"tasks": ()}))
            found.append(("perplexity", digest([*shared, settings, self.files_hash, files]), None))
        if not self.entries:
            return found
        from experiments.evaluation.lm.harness_tasks import hub_id, leaves

        for entry in self.entries:
            settings = entry.model_dump(include={"num_fewshot", "limit", "split"})
            for leaf in leaves(self.manager, entry.task):
                hub = hub_id(self.manager, leaf)
                data = self.datasets[hub] if hub else self.files_hash
                own = TaskEntry(task=BROUGHT if leaf in self.brought else leaf)
                own = None if hub else _own_code(Suite(name="", tasks=(own,), perplexity=None))
                extra = [leaf, settings, self.suite.bootstrap_iters, data, own]
                found.append((leaf, digest([*shared, *extra]), entry))
        return found

    def run(self, name: str, entry: TaskEntry | None, scorer: Scorer) -> list[dict[str, Any]]:
        """Scores of one unit, in the form of eval.json."""
        if entry is None:
            return [{**score, "data_hash": self.data_hash} for score in self._perplexity(scorer)]
        from experiments.evaluation.lm.harness import CausalLM
        from experiments.evaluation.lm.harness_tasks import hub_id, run_task

        hub = hub_id(self.manager, name)
        data_hash = self.datasets[hub] if hub else self.data_hash
        with tempfile.TemporaryDirectory(prefix="evaluate-") as scratch:
            rows = run_task(
                CausalLM(scorer),
                self.manager,
                name,
                entry,
                self.suite,
                data_dir=self.data_dir,
                mirror=self.mirror,
                scratch=Path(scratch),
            )
        return [{**row, "data_hash": data_hash} for row in rows]

    def group_scores(self, scores: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Scores of the suite's groups, from those of their tasks."""
        rows: list[dict[str, Any]] = []
        for entry in self.entries:
            from experiments.evaluation.lm.harness_tasks import group_scores, leaves

            names = leaves(self.manager, entry.task)
            if names != [entry.task]:
                by_task = {name: [s for s in scores if s["task"] == name] for name in names}
                rows += group_scores(self.manager, entry.task, by_task)
        return rows

    @cached_property
    def scorer(self) -> Scorer:
        """The model, loaded when the first unit needs it."""
        from experiments.evaluation.lm.scoring import load

        return load(self.model_dir, **self.suite.how)

    def _perplexity(self, scorer: Scorer) -> list[dict[str, Any]]:
        from experiments.evaluation.lm.perplexity import split_scores

        settings = self.suite.perplexity
        assert settings is not None
        return [
            {
                "task": "perplexity",
                **row,
                "chance": None,
                "higher_is_better": False,
                "num_fewshot": 0,
                "limit": settings.max_tokens,
                **self.suite.how,
                "truncated_fraction": 0.0,
                "split": split,
            }
            for split in settings.splits
            for row in split_scores(scorer, self.data_dir, split, settings)
        ]

    def _hub_digest(self, hub: str) -> str:
        """Digest of a mirrored dataset's files, or a name for what the hub serves."""
        folder = None if self.mirror is None else self.mirror / hub
        if folder is None or not folder.is_dir():
            return f"hub:{hub}"
        return hash_files(folder, sorted(path for path in folder.rglob("*") if path.is_file()))


def _is_whole(unit: Any) -> bool:
    """Whether a kept unit has what `evaluate` takes from it."""
    return isinstance(unit, dict) and isinstance(unit.get("scores"), list) and "wall_s" in unit


def _data_files(data_dir: Path) -> list[Path]:
    """Files of a prepared dataset that an evaluation may read."""
    names = [f"{split}.bin" for split in SPLITS[1:]]
    names += [f"text/{split}.jsonl" for split in SPLITS[1:]]
    names += [name for name in own_tasks().values() if name is not None]
    names += [test["documents"] for test in brought_tests(data_dir).values()]
    return [data_dir / name for name in [*names, "tests.json"]]


def _own_code(suite: Suite) -> str:
    """Digest of the metrics and of our own task files that a suite names."""
    files = suite_files(suite)
    texts = {path.name: path.read_text() for path in files if path.suffix != ".py"}
    return digest([texts, code_hash(*(path for path in files if path.suffix == ".py"))])


def _code() -> str:
    """Digest of the code in use, comments left out, and of lm-eval's version."""
    try:
        version = importlib.metadata.version("lm_eval")
    except importlib.metadata.PackageNotFoundError:
        version = None
    return digest([code_hash(Path(__file__)), version])
