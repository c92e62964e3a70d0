"""Synthetic run records with known truth, in the form that training and evaluation write."""

import math

import numpy as np

from experiments.specs.planned import PlannedStudy
from experiments.specs.run import Run, RunSpec

METHODS = {"dense": 0.0, "static": 0.8, "set": 0.8, "rigl": 0.8, "granet": 0.8, "gmp": 0.8}
EFFECTS = {"dense": -0.3, "static": 0.0, "set": -0.06, "rigl": -0.1, "granet": -0.14, "gmp": -0.12}


SIZES = {"hidden_size": 64, "intermediate_size": 176, "num_layers": 2, "num_heads": 4}


def spec(method, seed, *, scale="quick", dataset="wikipedia-start", label="llama-0.2m"):
    sparsity = None if method == "dense" else {"algorithm": method, "sparsity": 0.8, "seed": seed}
    name = method if sparsity is None else f"{method}-s0.80"
    recipe = {"name": "full-batch" if method == "dense" else "half-batch", "tokens": 65536}
    recipe |= {"steps": 120, "batch_size": 8, "learning_rate": 0.005, "betas": [0.9, 0.95]}
    run = f"{scale}__{label}__{name}__{dataset}-v1024__{recipe['name']}__seed{seed}"
    return {
        "id": run,
        "scale": scale,
        "task": "lm",
        "model": {"name": "llama", "label": label, **SIZES},
        "data": {"name": dataset, "vocab_size": 1024, "context": 64},
        "recipe": recipe,
        "method": method,
        "final_sparsity": METHODS[method],
        "sparsity": sparsity,
        "seed": seed,
        "suite": "quick",
    }


def metrics(method, seed, *, effect, noise, rng):
    rows = []
    shift = effect + rng.normal(0, noise)
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
    shared = {
        "num_fewshot": 0,
        "limit": None,
        "batch_size": 8,
        "dtype": "float32",
        "execution": "auto",
    }
    shared |= {"truncated_fraction": 0.0, "split": "validation", "data_hash": "87654321"}
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


def make(make_record, *, seeds=3, effects=EFFECTS, noise=0.01, rng_seed=0, methods=METHODS):
    """Records of every method and seed; ``make_record`` is the function under test."""
    records = []
    for method in methods:
        for seed in range(seeds):
            rng = np.random.default_rng([rng_seed, seed, sorted(METHODS).index(method)])
            run = spec(method, seed)
            rows = metrics(method, seed, effect=effects[method], noise=noise, rng=rng)
            records.append(make_record(train_json(run, rows), eval_json(run, rows, rng), rows))
    return records


def study(records, **changes):
    """The study that asks for these records' runs."""
    base = {
        "name": "sparsity_library",
        "title": "Do dynamic masks beat a static one?",
        "source": "Cerebras blog: Sparsity Made Easy",
        "scale": "quick",
        "description": "Synthetic.",
        "trials": False,
        "methods": {},
        "recipes": {},
        "computations": [],
        "tables": ["runs", "perplexity", "flops", "configs", "hyperparameters"],
        "figures": ["loss_curves", "churn_itop", "schedules",
                    "granet_vs_rigl"],
    }  # fmt: skip
    return planned([record["spec"] for record in records], **(base | changes))


def planned(specs, **fields):
    """A study whose runs have these specs in JSON."""
    runs = [Run(RunSpec.model_validate(one)) for one in specs]
    blank = {"title": "", "source": "", "description": "", "tables": [], "figures": []}
    return PlannedStudy.model_validate({**blank, **fields, "runs": tuple(runs)})


#: Loss above dense of each algorithm at 80%, in nats; it grows by half at 90% and doubles at 95%.
PENALTIES = {"dense": 0.0, "static": 0.2, "set": 0.15, "rigl": 0.12, "granet": 0.1, "gmp": 0.08}
LEVELS = {0.0: 0.0, 0.8: 1.0, 0.9: 1.5, 0.95: 2.0}


def planned_record(make_record, run, *, slope=0.0, noise=0.002):
    """The record that one planned run of a language model would have, by a known law.

    The loss is ``4 (weights / 1e5)^-0.05 (tokens per weight / 31)^-0.05`` plus the penalty of the
    method, which grows by ``slope`` nats when the weights double.

    Args:
        make_record: The function under test.
        run: A run of the plan.
        slope: Change of the penalty per doubling of the blocks' weights.
        noise: Standard deviation over seeds, in nats.
    """
    run_spec = run.spec.to_json()
    model, sparsity = run_spec["model"], run_spec["final_sparsity"]
    width, inner = model["hidden_size"], model["intermediate_size"]
    weights = model["num_layers"] * (4 * width**2 + 3 * width * inner)
    dense = 2 * run_spec["data"]["vocab_size"] * width
    tokens, steps = run_spec["recipe"]["tokens"], run_spec["recipe"]["steps"]
    rng = np.random.default_rng([run_spec["seed"], *run.id.encode()])
    algorithm = (run_spec["sparsity"] or {"algorithm": "dense"})["algorithm"]
    penalty = PENALTIES[algorithm] * LEVELS[sparsity]
    if sparsity:
        penalty += slope * math.log2(weights / 98816)
    final = 4 * (weights / 1e5) ** -0.05 * (tokens / weights / 31) ** -0.05 + penalty
    final += rng.normal(0, noise)
    cost = 6 * ((1 - sparsity) * weights + dense / 2)
    rows = []
    for part in range(1, 41):
        share = part / 40
        step, seen = round(share * steps), round(share * tokens)
        loss = final + 3 * math.exp(-7 * share)
        rows.append(
            {
                "kind": "train", "step": step, "tokens": seen, "loss": loss + rng.normal(0, 0.02),
                "learning_rate": 0.005 * (1 - share), "sparsity": sparsity,
                "drop_fraction": 0.5 * max(0.0, 1 - share / 0.75) if sparsity else None,
                "churn": 0.4 * (1 - share) if sparsity and share < 0.75 else None,
                "itop": 1 - sparsity + 0.3 * share if sparsity else None,
                "flops_executed": seen * cost, "flops_dense": 6 * seen * (weights + dense / 2),
                "elapsed_s": 200 * share, "tokens_per_s": 15000.0,
            }
        )  # fmt: skip
        if part % 4 == 0:
            rows.append({"kind": "validation", "step": step, "tokens": seen, "loss": loss,
                         "perplexity": math.exp(loss)})  # fmt: skip
    trained = train_json(run_spec, rows) | {"spec_hash": run.spec_hash}
    trained["flops"]["executed"] = tokens * cost * (1.01 if algorithm == "rigl" else 1.0)
    trained["data"] = {"name": run_spec["data"]["name"], "hash": "12345678"}
    trained |= {"num_parameters": weights + dense}
    trained["num_nonzero"] = round((1 - sparsity) * weights) + dense
    return make_record(trained, eval_json(run_spec, rows, rng), rows)
