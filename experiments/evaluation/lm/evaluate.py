"""Evaluation of one trained model: perplexity of its dataset, and a suite of lm-eval tasks.

`evaluate` reads an exported model folder and a prepared dataset and writes ``eval.json``. It never
asks the network unless ``HF_HUB_OFFLINE=0`` is set.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.data import verify
from experiments.data.files import LIST, read_meta
from experiments.digest import digest
from experiments.errors import UserError
from experiments.evaluation.files import hash_files, hub_digest, scored_once
from experiments.evaluation.model import quiet_and_offline
from experiments.evaluation.suite import Suite, applicable, load_suite, suite_code_hash


def evaluate(
    model_dir: Path,
    data_dir: Path | None,
    suite: str,
    *,
    out: Path,
    cache: Path | None = None,
    mirror: Path | None = None,
) -> dict[str, Any]:
    """Score a model and write the result; an unchanged call returns what is there.

    An unchanged call imports neither torch nor lm_eval. lm-eval's own results and samples are
    written into the folder ``lm_eval`` of the cache.

    Args:
        model_dir: folder that ``AutoModelForCausalLM.from_pretrained`` loads, tokenizer included.
        data_dir: prepared dataset: ``{validation,test}.bin`` (uint16 tokens),
            ``text/{validation,test}.jsonl``, ``meta.json``. None for suites of published tasks.
        cache: folder of earlier results, one file per weights; None is ``out``'s folder.
            Keep it where a workflow does not delete it before a new evaluation.
    """
    quiet_and_offline()
    settings = load_suite(suite, Suite)
    hashes: dict[str, Any] = {"suite_hash": settings.hash, "data_hash": None}
    if data_dir is not None:
        meta = read_meta(data_dir)
        if meta.get("kind") == "images":
            raise UserError(f"{data_dir} holds images, so {model_dir} cannot read it")
        verify(data_dir)
        hashes["data_hash"] = meta["hash"]
        hashes["files_hash"] = hash_files(data_dir, [data_dir / LIST])
    elif settings.perplexity is not None or any(entry.folder is None for entry in settings.tasks):
        raise UserError(f"suite {settings.name} scores text of prepared data; name their folder")
    code = suite_code_hash(settings, Path(__file__))
    hashes["code_hash"] = digest([code, importlib.metadata.version("lm_eval")])
    folder = (cache or (out.parent if out.suffix == ".json" else out)) / "lm_eval"
    return scored_once(
        model_dir,
        settings.name,
        hashes,
        lambda: [*_scores(model_dir, data_dir, settings, mirror, folder)],
        out=out,
        cache=cache,
    )


def _scores(
    model_dir: Path, data_dir: Path | None, suite: Suite, mirror: Path | None, folder: Path
) -> Iterator[dict[str, Any]]:
    """All scores in the form of eval.json."""
    from experiments.evaluation.lm.harness import Tasks
    from experiments.evaluation.lm.model import CausalLM
    from experiments.evaluation.lm.perplexity import split_scores

    data_hash = None if data_dir is None else read_meta(data_dir)["hash"]
    tasks = Tasks(applicable(suite, data_dir), data_dir, mirror)
    hash_of: dict[str | None, str | None] = {None: data_hash}
    lm = CausalLM.load(model_dir, **suite.how)
    for split in suite.perplexity.splits if suite.perplexity else ():
        assert suite.perplexity is not None and data_dir is not None
        for row in split_scores(lm, data_dir, split, suite.perplexity):
            yield row | suite.facts(split, data_hash, suite.perplexity.max_tokens)
    if tasks.entries:
        for row in tasks.score(lm, suite, folder):
            hub = tasks.hub_id(row["task"])
            if hub is not None and hub not in hash_of:
                hash_of[hub] = hub_digest(hub, mirror)
            yield {**row, "data_hash": hash_of[hub]}
