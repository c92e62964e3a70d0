"""Files of single runs with faults: a training of one step, or one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given

from experiments.data.files import seal
from experiments.specs.run import RunSpec
from experiments.training import single
from tests.fuzz import inputs, oracle

LLAMA = {
    "model": {"name": "llama", "label": "tiny", "hidden_size": 8, "intermediate_size": 12,
              "num_layers": 1, "num_heads": 2},
    "data": {"name": "wikipedia-start", "vocab_size": 300, "context": 8},
    "recipe": {"tokens": 640, "batch_size": 2, "learning_rate": 0.01, "validation_tokens": 64},
    "seed": 1,
}  # fmt: skip
GPT2 = {
    **LLAMA,
    "model": {"name": "gpt2", "label": "tiny", "hidden_size": 8, "num_layers": 1, "num_heads": 2},
}
RIGL = {"algorithm": "rigl", "sparsity": 0.5, "update": {"freq": "10%", "stop": "75%"},
        "drop_fraction": {"type": "cosine", "init": 0.3, "half_period": "75%"}}  # fmt: skip
GRANET = {"algorithm": "granet", "update": {"freq": 2, "stop": 8},
          "sparsity": {"type": "cubic", "init_sparsity": 0.2, "end_sparsity": 0.8,
                       "sparsity_start_step": 0, "sparsity_end_step": "50%"}}  # fmt: skip
STATIC = {"algorithm": "static", "sparsity": {"*.weight": 0.5}}
GROUPS = [{"algorithm": "static", "sparsity": 0.3, "param_filter": "*mlp*"}]
DOCUMENTS: list[Any] = [
    *({**LLAMA, "sparsity": options} for options in (None, RIGL, GRANET, STATIC, GROUPS, 0.3)),
    {**GPT2, "sparsity": RIGL},
    {**LLAMA, "transform": {"family": "wide", "sparsity": 0.5}, "sparsity": STATIC},
]
#: Above this, an accepted run would take minutes: it is only read.
MAX_SIZE = 4096


def prepared(folder: Path) -> Path:
    """Random tokens in the layout of prepared data."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for split in ("train", "validation", "test"):
        rng.integers(0, 300, 400).astype(np.uint16).tofile(folder / f"{split}.bin")
    (folder / "tokenizer").mkdir()
    meta = {"name": "wikipedia-start", "hash": "random", "vocab_size": 300, "eos_id": 0}
    seal(folder, meta, folder.glob("*.bin"))
    return folder


class TooLarge(Exception):
    """The file is right, but its run is too long for a test."""


def sizes(value: Any) -> list[float]:
    """All numbers of a spec."""
    if isinstance(value, dict):
        return [size for item in value.values() for size in sizes(item)]
    if isinstance(value, list):
        return [size for item in value for size in sizes(item)]
    return [value] if isinstance(value, int | float) else []


def run_single(folder: Path, content: bytes) -> str | None:
    """``run`` of the file with one step."""
    (folder / "one.yaml").write_bytes(content)

    def small_data(spec: RunSpec, mirror: Path | None) -> Path:
        if any(abs(size) > MAX_SIZE for size in sizes(spec.to_json())):
            raise TooLarge
        return prepared(folder / "data")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(single, "_prepared", small_data)
        words = ("run", "--params", "one.yaml", "--model_dir", "out", "--max_steps", "1")
        try:
            refused = oracle.command(*words, "--mode", "train_and_eval")
        except TooLarge:
            return None
    if refused is None:
        assert (folder / "out/eval.json").is_file()
    return refused


@oracle.budget(short=50, share=0.05)
@given(inputs.yaml_files(DOCUMENTS))
def test_a_single_run_trains_or_is_refused_in_one_sentence(content):
    oracle.judge("single runs", lambda folder: run_single(folder, content), content)


@pytest.mark.parametrize("number", range(len(DOCUMENTS)))
def test_without_a_fault_it_trains(number):
    content = yaml.safe_dump(DOCUMENTS[number]).encode()
    oracle.judge("single runs", lambda folder: _accepted(run_single(folder, content)), content)


def _accepted(refused: str | None) -> None:
    assert refused is None, refused
