"""From a suite's entries to lm-eval tasks that read local files, and from its results to scores.

Official prompts, metrics and shots are lm-eval's own; only ``dataset_path`` is replaced. Task
folders are named exactly, because letting lm-eval index all of its tasks takes seconds.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.data.base import MissingData
from experiments.data.hub import reading
from experiments.data.mirror import declared_splits
from experiments.errors import UserError
from experiments.evaluation.files import prepared_rows
from experiments.evaluation.lm.pairs import prose_pairs
from experiments.evaluation.outputs import exponential, ratio
from experiments.evaluation.suite import OWN_TASKS, Suite, TaskEntry, brought_tests, own_tasks

if TYPE_CHECKING:
    from lm_eval.api.task import Task
    from lm_eval.tasks import TaskManager

    from experiments.evaluation.lm.harness import CausalLM

#: Seed of the examples that lm-eval draws for a prompt, lm-eval's own default.
FEWSHOT_SEED = 1234
#: A task has no score where a larger share of its tokens are unknown to the tokenizer.
MAX_UNKNOWN = 0.2
#: Generated texts that a score keeps beside its number, those of a task's first documents, and
#: references that stand beside each.
NUM_OUTPUTS, NUM_REFERENCES = 10, 3
#: Metrics for which guessing among the choices is right once in `number of choices` times.
CHOICE_METRICS = ("acc", "acc_norm", "acc_bytes")

#: Shares that a group has as a mean over its tasks.
SHARES = ("truncated_fraction", "unknown_fraction", "alike_fraction", "answer_place_fraction")


def task_manager(entries: Sequence[TaskEntry], *, data_dir: Path, scratch: Path) -> TaskManager:
    """lm-eval's index of our own tasks, of the dataset's tests and of folders that entries name.

    Args:
        entries: of a suite.
        data_dir: prepared dataset.
        scratch: folder for files that lm-eval must read; it is needed as long as the index.

    Raises:
        ValueError: if a folder or a task does not exist.
    """
    from lm_eval.tasks import TaskManager

    folders = [OWN_TASKS]
    for name in sorted({entry.folder for entry in entries if entry.folder}):
        folders.append((_lm_eval_tasks() / name).resolve())
        below = _lm_eval_tasks().resolve() in folders[-1].parents
        if not (below and folders[-1].is_dir()):
            raise UserError(f"folder is {name!r}; it must be a folder below lm_eval/tasks")
    folders.append(scratch / "tests")
    folders[-1].mkdir(parents=True, exist_ok=True)
    for name, config in brought_tests(data_dir).items():
        config = {"task": name, "dataset_path": "json", "test_split": "test", **config}
        config.pop("documents")
        if "include" in config:
            config["include"] = str(OWN_TASKS / config["include"])
        (folders[-1] / f"{name}.yaml").write_text(json.dumps(config))
    manager = TaskManager(include_path=list(folders), include_defaults=False)
    for entry in entries:
        if entry.task not in manager.task_index:
            where = entry.folder or f"our own task folder, with the tests of {data_dir},"
            raise UserError(f"task is {entry.task!r}; {where} has no such task")
    return manager


def leaves(manager: TaskManager, name: str) -> list[str]:
    """Names of the tasks that a task, group or tag stands for, in order."""
    entry = manager.task_index[name]
    members = sorted(entry.tags) if entry.kind.name == "TAG" else (entry.cfg or {}).get("task")
    if entry.kind.name in ("TASK", "PY_TASK") or not isinstance(members, list):
        return [name]
    found: list[str] = []
    for member in members:
        child = member if isinstance(member, str) else member.get("task") or member.get("group")
        found += leaves(manager, child)
    return found


def hub_id(manager: TaskManager, task: str) -> str | None:
    """Hub id of a task's dataset; None for our own tasks, whose data are made from the corpus."""
    path = (manager.task_index[task].cfg or {}).get("dataset_path")
    return None if path == "json" else path


def scored_split(manager: TaskManager, task: str, entry: TaskEntry) -> str:
    """Split that a task scores: as the suite says, or the task's own file does."""
    config = manager.task_index[task].cfg or {}
    return entry.split or config.get("test_split") or config.get("validation_split") or "test"


def check_split(manager: TaskManager, task: str, entry: TaskEntry, mirror: Path | None) -> None:
    """Raise `MissingData` if a mirrored dataset declares no split that the task scores."""
    hub, config = hub_id(manager, task), (manager.task_index[task].cfg or {}).get("dataset_name")
    if hub is not None and mirror is not None and (mirror / hub).is_dir():
        known = declared_splits(mirror / hub / "README.md", config)
        split = scored_split(manager, task, entry)
        if known is not None and split not in known:
            raise MissingData(
                f"task {task} scores the {split} split of {hub}, which has only "
                f"{', '.join(known) or 'other configs'}; name another by split in the suite"
            )


def local_dataset(hub: str, mirror: Path | None) -> str:
    """Where to load a hub dataset from: the mirror, or the hub itself when that is allowed.

    Raises:
        MissingData: if the mirror lacks it, or there is no mirror and the hub is switched off.
    """
    if mirror is not None and (mirror / hub).is_dir():
        return str((mirror / hub).resolve())
    if mirror is None and os.environ.get("HF_HUB_OFFLINE", "0") in ("0", ""):
        return hub
    looked = "no mirror is set" if mirror is None else f"it is not under the mirror {mirror}"
    raise MissingData(
        f"dataset {hub} is not available offline: {looked}; put its parquet files and README.md "
        f"into <mirror>/{hub}, or set HF_HUB_OFFLINE=0 without a mirror to ask the hub"
    )


def own_documents(task: str, data_dir: Path) -> list[dict[str, Any]]:
    """Rows of one of our own tasks, or of a test that the dataset brings.

    Raises:
        ValueError: if the task is unknown or the data yield no rows.
    """
    brought, own = brought_tests(data_dir), own_tasks()
    if task not in brought and task not in own:
        raise UserError(f"task is {task!r}; our own are {', '.join([*own, *brought])}")
    file = brought[task]["documents"] if task in brought else own[task]
    if file is None:
        rows = prose_pairs([row["text"] for row in prepared_rows(data_dir / "text" / "test.jsonl")])
    else:
        rows = prepared_rows(data_dir / file)
    # Mixed by hash, so that the first `limit` rows are a fair sample of all kinds.
    rows.sort(key=lambda row: hashlib.sha256(str(next(iter(row.values()))).encode()).digest())
    if not rows:
        raise UserError(f"task {task} finds no documents in {data_dir}")
    return rows


def run_task(
    lm: CausalLM,
    manager: TaskManager,
    task: str,
    entry: TaskEntry,
    suite: Suite,
    *,
    data_dir: Path,
    mirror: Path | None,
    scratch: Path,
) -> list[dict[str, Any]]:
    """Score one task through lm-eval.

    Args:
        lm: the model.
        manager: from `task_manager`.
        task: a leaf name, from `leaves`.
        entry: the suite's entry that asked for it.
        suite: for batch size, number format and resamples.
        data_dir: prepared dataset (our own tasks read it).
        mirror: root of mirrored hub datasets, or None.
        scratch: empty-able folder for files that lm-eval must read.

    Returns:
        One score per metric, in the form of eval.json, without data_hash.
    """
    from lm_eval.evaluator import evaluate

    _compile_templates_once()
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    hub = hub_id(manager, task)
    if hub is None:
        split = scored_split(manager, task, entry)
        overrides = _json_dataset(task, split, own_documents(task, data_dir), scratch)
    else:
        overrides = {"dataset_path": local_dataset(hub, mirror)}
        if entry.split is not None:
            overrides["test_split"] = entry.split
    members = [{"task": task, **overrides}]
    with reading(f"task {task}", hub or str(data_dir)):
        loaded = manager.load([{"group": f"suite_{suite.name}", "task": members}])
    built = loaded["tasks"][task]
    built.set_config(key="num_fewshot", value=entry.num_fewshot)
    built.set_fewshot_seed(seed=FEWSHOT_SEED)
    results = evaluate(
        lm=lm,
        task_dict={"tasks": {task: built}, "groups": {}, "group_map": {}},
        limit=entry.limit,
        bootstrap_iters=suite.bootstrap_iters,
        log_samples=built.OUTPUT_TYPE in ("loglikelihood_rolling", "generate_until"),
    )
    samples = results.get("samples", {}).get(task, ())
    written = built.OUTPUT_TYPE == "generate_until"
    unknown = lm.unknown_fraction
    shared = {
        "num_fewshot": entry.num_fewshot,
        "limit": entry.limit,
        **suite.how,
        "truncated_fraction": lm.num_truncated / max(1, lm.num_requests),
        "unknown_fraction": unknown,
        "alike_fraction": lm.num_alike / lm.num_choices if lm.num_choices else None,
        "answer_place_fraction": _answer_places(built),
        "split": _split(built),
    }
    if unknown > MAX_UNKNOWN:
        reason = f"{unknown:.0%} of the text's tokens are unknown to the model's tokenizer"
        shared |= {"value": None, "stderr": None, "reason": reason}
    rows = _scores(task, results["results"][task], () if written else samples, built)
    if written and rows:
        rows[0]["outputs"] = [_output(sample) for sample in samples[:NUM_OUTPUTS]]
    return [{**score, **shared} for score in rows]


def _answer_places(task: Any) -> float | None:
    """Share of the items whose right choice has the place that it has most often; 1 is always.

    Where it is 1, choices of the same tokens count as right or wrong by their order alone.
    """
    if task.OUTPUT_TYPE != "multiple_choice":
        return None
    documents = {instance.doc_id: instance.doc for instance in task.instances}
    places = [task.doc_to_target(document) for document in documents.values()]
    places = [place for place in places if type(place) is int]
    return max(map(places.count, set(places))) / len(places) if places else None


def group_scores(
    manager: TaskManager, group: str, scores: Mapping[str, Sequence[Mapping[str, Any]]]
) -> list[dict[str, Any]]:
    """A group's own scores, averaged over its tasks as lm-eval's group file says.

    Args:
        manager: from `task_manager`.
        group: name of the group.
        scores: each leaf task's scores.

    Returns:
        One score per aggregated metric, without a value if a task has none; nothing if the group
        defines none.
    """
    from lm_eval.api.metrics import (
        aggregate_subtask_metrics,
        pooled_sample_stderr,
        unweighted_mean_stderr,
    )

    rules = (manager.task_index[group].cfg or {}).get("aggregate_metric_list") or []
    rows = []
    for rule in [rules] if isinstance(rules, dict) else rules:
        parts = [s for leaf in scores.values() for s in leaf if s["metric"] == rule["metric"]]
        if not parts:
            continue
        weighted = bool(rule.get("weight_by_size", True))
        sizes = [part["num_items"] for part in parts]
        errors = [part["stderr"] for part in parts]
        mean_of = {
            key: float(aggregate_subtask_metrics([part[key] for part in parts], sizes, weighted))
            for key in ("value", "chance", *SHARES)
            if all(part.get(key) is not None for part in parts)
        }
        stderr = None
        if None not in errors:
            pool = (
                partial(pooled_sample_stderr, sizes=sizes) if weighted else unweighted_mean_stderr
            )
            stderr = float(pool(errors))
        rows.append(
            {**parts[0], "task": group, "value": None, "chance": None, **mean_of}
            | {"stderr": stderr, "num_items": sum(sizes)}
        )
    return rows


def _scores(
    task: str, results: Mapping[str, Any], samples: Sequence[Mapping[str, Any]], built: Task
) -> list[dict[str, Any]]:
    """lm-eval's ``metric,filter`` entries as rows; ``samples`` are those of weighted means."""
    chance = _chance(built)
    rows = []
    for key, value in results.items():
        metric, _, filter_name = key.partition(",")
        if not filter_name or metric.endswith("_stderr"):
            continue
        error = results.get(f"{metric}_stderr,{filter_name}")
        rows.append(
            {
                "task": task,
                "metric": metric if filter_name == "none" else key,
                "value": float(value),
                "stderr": _weighted_error(metric, samples) if samples else _number(error),
                "num_items": int(results["sample_len"]),
                "chance": chance if metric in CHOICE_METRICS else None,
                "higher_is_better": bool(built.higher_is_better()[metric]),
            }
        )
    return rows


def _output(sample: Mapping[str, Any]) -> dict[str, Any]:
    """What was written for a document: the prompt, the text, and what could have been written."""
    references = sample["doc"].get("references") or [sample["target"]]
    return {
        "input": sample["arguments"][0][0].strip(),
        "output": sample["filtered_resps"][0].strip(),
        "references": references[:NUM_REFERENCES],
        "num_references": len(references),
    }


def _weighted_error(metric: str, samples: Sequence[Mapping[str, Any]]) -> float | None:
    """Standard error of a mean over words or bytes, for which lm-eval has none."""
    losses, sizes = zip(
        *((-sample[metric][0], sample[metric][1]) for sample in samples), strict=True
    )
    value, error = ratio(losses, sizes)
    if metric == "bits_per_byte":
        return None if error is None else error / math.log(2)
    return exponential(value, error)[1]


def _number(value: Any) -> float | None:
    """A finite number, or None where lm-eval writes N/A, nan or inf instead."""
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def _chance(task: Task) -> float | None:
    """Expected accuracy of a uniform guess on the documents that were scored."""
    if task.OUTPUT_TYPE != "multiple_choice":
        return None
    choices = Counter(instance.doc_id for instance in task.instances)
    documents = {instance.doc_id: instance.doc for instance in task.instances}
    shares = []
    for index, count in choices.items():
        targets = documents[index].get("mc2_targets")
        if task.task_name == "truthfulqa_mc2" and targets:  # its score: mass on true answers
            shares.append(sum(targets["labels"]) / len(targets["labels"]))
        else:
            shares.append(1 / count)
    return sum(shares) / len(shares)


def _split(task: Task) -> str:
    """Split that lm-eval scores: test if there is one, else validation."""
    config = task.config
    return str(config.test_split or config.validation_split)


def _json_dataset(
    task: str, split: str, rows: Sequence[Mapping[str, Any]], scratch: Path
) -> dict[str, Any]:
    """Write a split's rows where lm-eval's ``json`` loader finds them; its cache goes there too."""
    path = scratch / f"{task}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "dataset_kwargs": {"data_files": {split: str(path)}, "cache_dir": str(scratch / "cache")}
    }


def _compile_templates_once() -> None:
    """Let lm-eval keep its compiled prompt templates.

    It compiles one for each document and each shot anew, which takes most of the time of a
    few-shot task of a small model.
    """
    from lm_eval import utils

    if not hasattr(utils.env.from_string, "cache_info"):
        utils.env.from_string = lru_cache(maxsize=1024)(utils.env.from_string)


def _lm_eval_tasks() -> Path:
    spec = importlib.util.find_spec("lm_eval")
    if spec is None or not spec.submodule_search_locations:
        raise UserError("lm_eval is not installed; suites with tasks need it")
    return Path(spec.submodule_search_locations[0]) / "tasks"
