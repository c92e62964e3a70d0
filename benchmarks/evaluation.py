"""Cost of evaluation: seconds of the quick suite, throughput beside lm-eval's HFLM, BLiMP.

A Llama of 1.3M parameters with fresh weights, dense and with 80% of the weights of its layers at
zero; one thread. Both language models take turns on the same requests, HFLM on the model as
transformers loads it. HFLM is measured where accelerate is installed, BLiMP where a mirror has it.
Run: ``python -m benchmarks.evaluation [--mirror FOLDER] [--blimp-pairs 67000]``.
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib.util
import os
import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TQDM_DISABLE", "1")

import torch

from experiments import data, models
from experiments.evaluation.lm.evaluate import evaluate
from experiments.evaluation.lm.harness import CausalLM
from experiments.evaluation.lm.harness_tasks import local_dataset
from experiments.evaluation.lm.pairs import prose_pairs
from experiments.evaluation.lm.scoring import load
from sparse_lib import configure, finalize

VOCABULARY, CONTEXT, SPARSITY, ROUNDS = 4096, 128, 0.8, 3
QUICK_SECONDS, BLIMP_MINUTES, THROUGHPUT = 10.0, 6.0, 2.0
PARADIGMS = 67


def export_model(data_dir: Path, folder: Path, sparsity: float = 0.0) -> int:
    """Write the model with the dataset's tokenizer; returns its number of parameters."""
    from transformers import AutoTokenizer

    module = models.get("llama")
    config = module.Config(
        hidden_size=128, intermediate_size=344, num_layers=4, num_heads=4, tie_embeddings=True
    )
    torch.manual_seed(0)
    model = module.build(config, vocab_size=VOCABULARY, context=CONTEXT, eos_id=0)
    if sparsity:
        configure({"algorithm": "static", "sparsity": sparsity, "seed": 0}).apply(model)
        finalize(model)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(data_dir / "tokenizer").save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def requests(arguments: Iterable[tuple[str, str]]) -> list:
    """Log-likelihood requests for (context, continuation) pairs."""
    from lm_eval.api.instance import Instance

    return [
        Instance("loglikelihood", {}, pair, 0, ("benchmark", number, 1))
        for number, pair in enumerate(arguments)
    ]


def minimal_pairs(texts: list[str], limit: int) -> list[tuple[str, str]]:
    """Both sentences of each pair, without context, as BLiMP asks."""
    rows = prose_pairs(texts)[:limit]
    return [("", row[kind]) for row in rows for kind in ("good", "bad")]


def multiple_choice(texts: list[str], limit: int) -> list[tuple[str, str]]:
    """Four short continuations of each of some 60-word contexts, as ARC and HellaSwag ask."""
    words = " ".join(texts).split()
    choices = []
    for number in range(limit):
        start = 97 * number
        context = " ".join(words[start : start + 60])
        for choice in range(4):
            other = start + 1000 * choice
            choices.append((context, " " + " ".join(words[other + 60 : other + 66])))
    return choices


def blimp_pairs(mirror: Path, limit: int) -> list[tuple[str, str]]:
    """Both sentences of the first pairs of each of BLiMP's paradigms."""
    from datasets import load_dataset

    folder = Path(local_dataset("nyu-mll/blimp", mirror))
    pairs = []
    for paradigm in sorted(path.name for path in folder.iterdir() if path.is_dir()):
        rows = load_dataset(str(folder), paradigm, split=f"train[:{limit}]")
        pairs += [("", row[f"sentence_{kind}"]) for row in rows for kind in ("good", "bad")]
    return pairs


def compare(label: str, folder: Path, cases: dict[str, list[tuple[str, str]]]) -> None:
    """Requests per second of ours and of HFLM."""
    if importlib.util.find_spec("accelerate") is None:
        print("HFLM: not measured, accelerate is not installed")
        return
    from lm_eval.models.huggingface import HFLM

    ours = CausalLM(load(folder, batch_size=32, dtype="float32"))
    theirs = HFLM(pretrained=str(folder), batch_size=32, dtype="float32", device="cpu")
    for case, arguments in cases.items():
        rates: dict[str, list[float]] = {"ours": [], "HFLM": []}
        for _ in range(ROUNDS):
            for name, run in (
                ("ours", ours.loglikelihood),
                ("HFLM", functools.partial(theirs.loglikelihood, disable_tqdm=True)),
            ):
                asked = requests(arguments)
                gc.collect()
                began = time.process_time()
                run(asked)
                rates[name].append(len(arguments) / (time.process_time() - began))
        mine, other = (statistics.median(rates[name]) for name in ("ours", "HFLM"))
        print(
            f"{label}, {case}: {mine:.0f} log-likelihoods per CPU second, HFLM {other:.0f}: "
            f"{mine / other:.2f} times (wanted: at least {THROUGHPUT:.0f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mirror", type=Path, help="root of mirrored hub datasets, for BLiMP")
    parser.add_argument("--blimp-pairs", type=int, default=PARADIGMS * 100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    data_dir = Path(f"resources/data/wikipedia-start-v{VOCABULARY}")
    if not (data_dir / "meta.json").is_file():
        data.prepare("wikipedia-start", out=data_dir, vocab_size=VOCABULARY)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        print(f"{export_model(data_dir, folder):,} parameters, context {CONTEXT}, one thread")
        evaluate(folder, data_dir, "smoke", out=Path(scratch) / "warm")
        began = time.process_time()
        evaluate(folder, data_dir, "quick", out=Path(scratch) / "quick")
        seconds = time.process_time() - began
        print(f"quick suite: {seconds:.1f} CPU s (wanted: at most {QUICK_SECONDS:.0f})")
        texts = data.load(data_dir).text("test")
        cases = {
            "minimal pairs": minimal_pairs(texts, 600),
            "four choices": multiple_choice(texts, 150),
        }
        if options.mirror is not None:
            cases["BLiMP"] = blimp_pairs(options.mirror, 20)
        compare("dense", folder, cases)
        sparse = Path(scratch) / "sparse"
        export_model(data_dir, sparse, SPARSITY)
        compare(f"{SPARSITY:.0%} sparse", sparse, cases)
        if options.mirror is None:
            print("BLiMP: not measured, no --mirror")
            return
        limit = max(1, options.blimp_pairs // PARADIGMS)
        suite = Path(scratch) / "blimp.yaml"
        suite.write_text(
            "batch_size: 64\nperplexity: null\n"
            f"tasks: [{{task: blimp, folder: blimp, limit: {limit}}}]\n"
        )
        began = time.process_time()
        evaluate(folder, data_dir, str(suite), out=Path(scratch) / "blimp", mirror=options.mirror)
        minutes = (time.process_time() - began) / 60
        print(
            f"BLiMP: {minutes:.2f} CPU min for {limit * PARADIGMS:,} pairs "
            f"(wanted: at most {BLIMP_MINUTES:.0f} for 67,000)"
        )


if __name__ == "__main__":
    main()
