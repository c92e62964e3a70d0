"""A suite's tasks scored by lm-eval, and its results as rows of eval.json.

Prompts, metrics, shots and means over groups are lm-eval's own. A published dataset is read by its
hub id, in the mirror's folder where there is one; our own tasks read the prepared dataset.
`lm_eval.evaluate` is what `simple_evaluate` calls; the latter also starts processes that describe
the machine, which takes as long as scoring a small model.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.data.base import MissingData
from experiments.data.hub import reading
from experiments.errors import UserError, not_one_of
from experiments.evaluation.files import NoRows, hub_digest
from experiments.evaluation.outputs import exponential, ratio
from experiments.evaluation.suite import OWN_TASKS, Suite, TaskEntry

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager

    from experiments.evaluation.lm.model import CausalLM

#: Seed of the examples that lm-eval draws for a prompt, lm-eval's own default.
FEWSHOT_SEED = 1234
#: Generated texts that a score keeps beside its number, those of a task's first documents, and
#: references that stand beside each.
NUM_OUTPUTS, NUM_REFERENCES = 10, 3
#: Metrics for which guessing among the choices is right once in `number of choices` times.
CHOICE_METRICS = ("acc", "acc_norm", "acc_bytes")

#: Tokens that a text may have where its task does not say, lm-eval's own default.
MAX_TOKENS = 256
#: Name of the group in which a suite's entry is loaded.
WRAPPER = "_entry"

Samples = Sequence[Mapping[str, Any]]
#: Files of a dataset are hashed once for all of its tasks.
_digest = lru_cache(hub_digest)


class Tasks:
    """The tasks of a suite, with their data.

    Args:
        entries: of the suite, those that fit the dataset.
    """

    def __init__(
        self, entries: Sequence[TaskEntry], data_dir: Path | None, mirror: Path | None
    ) -> None:
        from lm_eval.tasks import TaskManager

        _compile_templates_once()
        logging.getLogger("lm_eval").setLevel(logging.ERROR)
        folders = [OWN_TASKS, *map(_task_folder, sorted({e.folder for e in entries if e.folder}))]
        manager = TaskManager(
            include_path=list(folders),
            include_defaults=False,
            metadata={"data_dir": str(data_dir and data_dir.resolve())},
        )
        #: As `lm_eval.evaluate` takes them.
        self.loaded: dict[str, Any] = {"tasks": {}, "groups": {}, "group_map": {}}
        #: Rows of each task that are scored; all of a task that is not named.
        self.chosen: dict[str, list[int]] = {}
        self.entries: dict[str, TaskEntry] = {}
        for entry in entries:
            try:
                with _reading(entry, mirror), contextlib.chdir(mirror or "."), _cached_by_content():
                    loaded = manager.load([self._spec(manager, entry)])
            except NoRows as error:
                if entry.fallback:
                    continue
                raise UserError(f"task {entry.task}: {error}") from None
            for name, task in loaded["tasks"].items():
                task.set_config(key="num_fewshot", value=entry.num_fewshot)
                task.set_fewshot_seed(seed=FEWSHOT_SEED)
                if entry.limit is not None:
                    self.chosen[name] = [*range(min(entry.limit, len(task.eval_docs)))]
            for kind, found in loaded.items():
                found.pop(WRAPPER, None)
                self.loaded[kind] |= found
            self.entries |= dict.fromkeys([*loaded["tasks"], *loaded["groups"]], entry)

    def _spec(self, manager: TaskManager, entry: TaskEntry) -> dict[str, Any]:
        """The spec by which lm-eval loads a suite's entry."""
        if entry.task not in manager.task_index:
            where = f"folder {entry.folder}"
            raise UserError(not_one_of("task", entry.task, manager.task_index, where))
        key = "group" if manager.task_index[entry.task].kind.name == "GROUP" else "task"
        # lm-eval looks up the names in a group only.
        return {"group": WRAPPER, "task": [{key: entry.task}]}

    def hub_id(self, name: str) -> str | None:
        """Hub id of a task's dataset; None for a task of our own."""
        config = self.loaded["tasks"][name].config
        return None if config.custom_dataset else config.dataset_path

    def score(self, lm: CausalLM, suite: Suite, keep: Path) -> Iterator[dict[str, Any]]:
        """Scores of all tasks and groups, in the form of eval.json."""
        from lm_eval.evaluator import evaluate

        for task in self.loaded["tasks"].values():
            if task.OUTPUT_TYPE == "generate_until":
                options = task.config.generation_kwargs
                options["max_gen_toks"] = min(
                    options.get("max_gen_toks", MAX_TOKENS), lm.max_length - 1
                )
        found: Any = evaluate(
            lm=lm, task_dict=self.loaded, samples=self.chosen, bootstrap_iters=suite.bootstrap_iters
        )
        samples = found.pop("samples")
        _keep(keep, found, samples)
        for name, results in {**found["results"], **found.get("groups", {})}.items():
            leaves = [name] if name in samples else self._leaves(name)
            own = [sample for leaf in leaves for sample in samples[leaf]]
            task = self.loaded["tasks"][leaves[0]]
            shared = {
                "num_fewshot": self.entries[name].num_fewshot,
                "limit": self.entries[name].limit,
                **suite.how,
                "truncated_fraction": _share_cut(own, lm.truncated),
                "split": str(task.config.test_split or task.config.validation_split),
            }
            for row in _rows(name, results, own, task):
                yield row | shared

    def _leaves(self, group: str) -> list[str]:
        """Tasks of a group and of the groups in it."""
        members = self.loaded["group_map"].get(group)
        return [group] if members is None else [x for name in members for x in self._leaves(name)]


def _task_folder(name: str) -> Path:
    """A folder of lm-eval's tasks."""
    spec = importlib.util.find_spec("lm_eval")
    assert spec is not None and spec.origin is not None
    root = Path(spec.origin).parent / "tasks"
    folder = (root / name).resolve()
    if root.resolve() not in folder.parents or not folder.is_dir():
        raise UserError(f"folder is {name!r}; it must be a folder below lm_eval/tasks")
    return folder


@contextlib.contextmanager
def _cached_by_content() -> Iterator[None]:
    """Let `datasets` keep what it reads of a folder below this one under a hash of its files.

    By itself it knows a folder by its README.md, and would read files that have changed as before.
    """
    import datasets

    load, root = datasets.load_dataset, Path.cwd()

    def by_content(path: str, *args: Any, **options: Any) -> Any:
        if (root / path).is_dir():
            folder = Path(datasets.config.HF_DATASETS_CACHE) / _digest(path, root)[:16]
            options.setdefault("cache_dir", str(folder))
        return load(path, *args, **options)

    datasets.load_dataset = by_content
    try:
        yield
    finally:
        datasets.load_dataset = load


@contextlib.contextmanager
def _reading(entry: TaskEntry, mirror: Path | None) -> Iterator[None]:
    """Say where the data of a published task must lie when they cannot be read."""
    try:
        with reading(f"task {entry.task}", "its dataset"):
            yield
    except MissingData as error:
        if entry.folder is None:
            raise
        raise MissingData(
            f"{error}; put the parquet files and README.md of its dataset into "
            f"{mirror or '<mirror>'}/<hub id>, or set HF_HUB_OFFLINE=0 without a mirror"
        ) from error


def _keep(folder: Path, results: Mapping[str, Any], samples: Mapping[str, Samples]) -> None:
    """Write lm-eval's results and samples as its own command names them, without the date."""
    from lm_eval.utils import handle_non_serializable

    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.json*"):
        old.unlink()
    text = json.dumps(results, indent=2, default=handle_non_serializable)
    # The same bits in each process and folder.
    text = re.sub(r"<function (\S+) at 0x[0-9a-f]+>", r"\1", text).replace(f"{Path.cwd()}/", "")
    (folder / "results.json").write_text(text + "\n", encoding="utf-8")
    for name, rows in samples.items():
        with (folder / f"samples_{name}.jsonl").open("w", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps(row, default=handle_non_serializable) + "\n")


def _share_cut(samples: Samples, truncated: set[str]) -> float:
    """Share of the prompts that was cut on the left."""
    prompts = [arguments[0] for sample in samples for arguments in sample["arguments"]]
    return sum(prompt in truncated for prompt in prompts) / max(1, len(prompts))


def _rows(
    name: str, results: Mapping[str, Any], samples: Samples, task: Any
) -> Iterator[dict[str, Any]]:
    """lm-eval's ``metric,filter`` entries as rows."""
    chance, outputs = _chance(name, samples, task.OUTPUT_TYPE), []
    if task.OUTPUT_TYPE == "generate_until":
        outputs = [_output(sample) for sample in samples[:NUM_OUTPUTS]]
    for key, value in results.items():
        metric, _, filter_name = key.partition(",")
        if not filter_name or metric.endswith("_stderr"):
            continue
        error = results.get(f"{metric}_stderr,{filter_name}")
        if task.OUTPUT_TYPE == "loglikelihood_rolling":
            error = _weighted_error(metric, samples)
        if not (isinstance(error, (int, float)) and math.isfinite(error)):
            error = None  # lm-eval writes N/A, nan or inf
        row = {
            "task": name,
            "metric": metric if filter_name == "none" else key,
            "value": float(value),
            "stderr": None if error is None else float(error),
            "num_items": int(results["sample_len"]),
            "chance": chance if metric in CHOICE_METRICS else None,
        }
        yield row | ({"outputs": outputs} if outputs else {})
        outputs = []


def _output(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Prompt, generated text and references of a document."""
    references = sample["doc"].get("references") or [sample["target"]]
    return {
        "input": sample["arguments"][0][0].strip(),
        "output": sample["filtered_resps"][0].strip(),
        "references": references[:NUM_REFERENCES],
        "num_references": len(references),
    }


def _weighted_error(metric: str, samples: Samples) -> float | None:
    """Standard error of a mean over words or bytes, for which lm-eval has none."""
    losses, sizes = zip(*((-row[metric][0], row[metric][1]) for row in samples), strict=True)
    value, error = ratio(losses, sizes)
    if metric == "bits_per_byte":
        return None if error is None else error / math.log(2)
    return exponential(value, error)[1]


def _chance(name: str, samples: Samples, kind: str) -> float | None:
    """Expected accuracy of a uniform guess on the documents that were scored."""
    if kind != "multiple_choice":
        return None
    shares = [1 / len(sample["arguments"]) for sample in samples]
    if name == "truthfulqa_mc2":  # its score: mass on true answers
        labels = [sample["doc"]["mc2_targets"]["labels"] for sample in samples]
        shares = [sum(own) / len(own) for own in labels]
    return sum(shares) / len(shares)


def _compile_templates_once() -> None:
    """Let lm-eval keep its compiled prompt templates.

    It compiles one for each document and each shot, which takes most of the time of a few-shot
    task of a small model.
    """
    from lm_eval import utils

    if not hasattr(utils.env.from_string, "cache_info"):
        utils.env.from_string = lru_cache(maxsize=1024)(utils.env.from_string)
