"""Synthetic run records with known truth, in the form that training and evaluation write."""

import itertools
import math

import numpy as np

from experiments.specs.planned import PlannedStudy
from experiments.specs.run import Run, RunSpec
from experiments.store.collect import curves_table, records_table
from experiments.store.record import make_record

METHODS = {"dense": 0.0, "static": 0.8, "set": 0.8, "rigl": 0.8, "granet": 0.8, "gmp": 0.8}
EFFECTS = {"dense": -0.3, "static": 0.0, "set": -0.06, "rigl": -0.1, "granet": -0.14, "gmp": -0.12}


SIZES = {"hidden_size": 64, "intermediate_size": 176, "num_layers": 2, "num_heads": 4}


def spec(method, seed):
    scale, dataset, label = "quick", "wikipedia-start", "llama-0.2m"
    sparsity = None if method == "dense" else {"algorithm": method, "sparsity": 0.8, "seed": seed}
    name = method if sparsity is None else f"{method}-s0.80"
    recipe = {"name": "full-batch" if method == "dense" else "half-batch", "tokens": 65536}
    recipe |= {"steps": 120, "batch_size": 8, "learning_rate": 0.005, "betas": [0.9, 0.95]}
    run = f"{scale}__{label}__{name}__{dataset}-v1024__{recipe['name']}__seed{seed}"
    return {
        "id": run, "scale": scale, "task": "lm",
        "model": {"name": "llama", "label": label, **SIZES},
        "data": {"name": dataset, "vocab_size": 1024, "context": 64},
        "recipe": recipe, "method": method, "final_sparsity": METHODS[method],
        "sparsity": sparsity, "seed": seed, "suite": "quick",
    }  # fmt: skip


def metrics(method, rng):
    rows = []
    shift = EFFECTS[method] + rng.normal(0, 0.01)
    sparse = method != "dense"
    for step in range(1, 121):
        share = step / 120
        loss = 2.5 + shift * share + 4 * math.exp(-6 * share) + rng.normal(0, 0.02)
        moves = sparse and step % 6 == 0 and share <= 0.75 and method != "static"
        rows.append(
            {
                "kind": "train", "step": step, "tokens": step * 512, "loss": loss,
                "learning_rate": 0.005 * (1 - share), "sparsity": METHODS[method],
                "drop_fraction": 0.5 * max(0.0, 1 - share / 0.75) if sparse else None,
                "churn": 0.5 * (1 - share) if moves else None,
                "itop": 0.2 + 0.3 * share if sparse else None,
                "flops_executed": step * (4e6 if sparse else 9e6), "flops_dense": step * 9e6,
                "elapsed_s": step * 0.1, "tokens_per_s": 5120.0,
            }
        )  # fmt: skip
        if step % 30 == 0:
            loss = 2.6 + shift * share + 4 * math.exp(-6 * share)
            rows.append({"kind": "validation", "step": step, "tokens": step * 512,
                         "loss": loss, "perplexity": math.exp(loss)})  # fmt: skip
    return rows


#: Facts of a machine, as `experiments.machine` gathers them.
MACHINE = {
    "processor": "Example CPU", "vendor": "Example", "family": 6, "model": 1, "stepping": 2,
    "isa": ["avx2"], "vector_bits": 256, "cores": 2, "num_threads": 1, "torch_isa": "AVX2",
    "versions": {"torch": "2.0"}, "kernels": {"build": "abc", "lanes": 8},
}  # fmt: skip


def train_json(spec, rows):
    executed = rows[-2]["flops_executed"] * (1.01 if spec["method"] == "rigl" else 1.0)
    return {
        "run": spec["id"], "spec": spec, "spec_hash": "0123456789", "code_hash": "00112233",
        "data": {"name": spec["data"]["name"], "hash": "12345678"},
        "versions": {"torch": "2.0", "python": "3.11"}, "cpu": "Example CPU", "num_threads": 1,
        "machine": MACHINE,
        "wall_s": 12.0, "num_parameters": 200000, "num_nonzero": 120000, "final": {},
        "flops": {"executed": executed, "dense_equivalent": rows[-2]["flops_dense"]},
        "layers": [{"name": "model.layers.0.mlp.up_proj.weight", "sparsity": 0.8, "target": 0.8,
                    "churn": 0.0, "itop": 0.5}],
        "command": f"snakemake rerun --config run={spec['id']}",
    }  # fmt: skip


def eval_json(spec, rows, rng):
    loss = rows[-1]["loss"] + 0.01
    shared = {"num_fewshot": 0, "limit": None, "batch_size": 8, "dtype": "float32"}
    shared |= {"execution": "auto", "truncated_fraction": 0.0, "split": "validation"}
    shared |= {"data_hash": "87654321"}
    score = 0.5 + 0.1 * (spec["method"] == "dense") + rng.normal(0, 0.01)
    return {
        "run": spec["id"], "weights_hash": "aa", "suite": "quick", "suite_hash": "bb",
        "scores": [
            {"task": "perplexity", "metric": "perplexity", "value": math.exp(loss), "stderr": 0.1,
             "num_items": 4096, "chance": None, "higher_is_better": False, **shared},
            {"task": "pairs", "metric": "acc", "value": score, "stderr": 0.02, "num_items": 500,
             "chance": 0.5, "higher_is_better": True, **shared},
        ],
        "wall_s": 3.0, "machine": MACHINE,
    }  # fmt: skip


def make(*, seeds=3, methods=METHODS):
    """Records of every method and seed."""
    records = []
    for method, seed in itertools.product(methods, range(seeds)):
        rng = np.random.default_rng([0, seed, sorted(METHODS).index(method)])
        run, rows = spec(method, seed), metrics(method, rng)
        records.append(make_record(train_json(run, rows), eval_json(run, rows, rng), rows))
    return records


def study(records, **changes):
    """The study that asks for these records' runs."""
    base = {
        "name": "sparsity_library", "title": "Do masks beat none?", "source": "none",
        "scale": "quick", "description": "Synthetic.", "trials": False, "methods": {},
        "recipes": {}, "computations": [],
        "tables": ["runs", "perplexity", "flops", "configs", "hyperparameters"],
        "figures": ["loss_curves", "churn_itop", "schedules", "granet_vs_rigl"],
        "runs": tuple(Run(RunSpec.model_validate(record["spec"])) for record in records),
    }  # fmt: skip
    return PlannedStudy.model_validate(base | changes)


def frames(made, **changes):
    """Tidy records and curves, and their study."""
    facts = study(made, **changes)
    return records_table(made, facts), curves_table(made), facts
