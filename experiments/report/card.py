"""The model card: the README.md of an exported model, from the files of its run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from experiments.report.text import markdown_cell as cell
from experiments.report.text import markdown_code as code
from experiments.report.text import markdown_table as table

#: Task of a run to what the hub calls it, and the class of transformers that loads the model.
KINDS = {
    "lm": ("text-generation", "AutoModelForCausalLM"),
    "vision": ("image-classification", "AutoModelForImageClassification"),
}


def card(
    train: Mapping[str, Any],
    evaluations: Sequence[Mapping[str, Any]],
    tensors: Iterable[Mapping[str, Any]],
    *,
    source: str,
    licence: str,
    own_code: bool = False,
    transformed: bool = False,
) -> str:
    """The text of the README.md.

    Args:
        tensors: One dict per tensor of the weights: ``name``, ``shape``, ``weights``, ``nonzero``,
            and ``masked`` (whether it has a mask).
        own_code: Whether the folder brings the Python file of its model.
        transformed: Whether Sparse-IFT replaced layers, which transformers does not know.
    """
    spec, rows = train["spec"], list(tensors)
    total = sum(row["weights"] for row in rows)
    nonzero = sum(row["nonzero"] for row in rows)
    masked = [row for row in rows if row["masked"]]
    parts = [
        f"---\n{_metadata(train, evaluations).to_yaml()}\n---",
        f"# {cell(spec['id'])}",
        f"{code(spec['model'].get('label') or spec['model']['name'])} on "
        f"{code(train['data']['name'])}: {nonzero:,} of {total:,} weights are not zero. "
        + ("Trained with a fixed or moving mask." if masked else "Dense."),
        "## Load",
        _how_to_load(spec, own_code, transformed),
        "## Sparsity",
        table(
            ("tensor", "shape", "weights", "not zero", "sparsity"),
            [_tensor(row) for row in masked]
            + [_sum("all masked tensors", masked)] * bool(masked)
            + [_sum("tensors without a mask", [row for row in rows if not row["masked"]])]
            + [_sum("all", rows)],
        ),
        "## Recipe",
        "```yaml\n" + yaml.safe_dump(dict(spec), sort_keys=False, width=100).strip() + "\n```",
        _facts(train, source, licence),
        "## Evaluation",
        *(_evaluation(found) for found in evaluations),
        *([] if evaluations else [_last_validation(train)]),
        "## Repeat",
        f"```sh\n{train['command']}\n```",
        "`run.yaml` beside this file is the whole recipe. "
        f"Spec hash {code(train['spec_hash'])}, code hash {code(train['code_hash'])}.",
    ]
    return str(ModelCard("\n\n".join(parts) + "\n"))


def _metadata(train: Mapping[str, Any], evaluations: Sequence[Mapping[str, Any]]) -> ModelCardData:
    """Return the metadata that the hub reads; the weights have this repository's licence."""
    spec = train["spec"]
    kind, _ = KINDS.get(spec["task"], (None, None))
    results = [
        EvalResult(
            task_type=kind or spec["task"],
            dataset_type=score["task"],
            dataset_name=score["task"],
            dataset_split=score.get("split"),
            metric_type=score["metric"],
            metric_value=score["value"],
        )
        for found in evaluations
        for score in found["scores"]
        if score.get("value") is not None
    ]
    return ModelCardData(
        library_name="transformers",
        license="apache-2.0",
        datasets=[train["data"]["name"]],
        base_model=(spec.get("starts_from") or {}).get("run"),
        pipeline_tag=kind,
        tags=["sparse", *([] if spec.get("sparsity") is None else [_algorithm(spec)])],
        model_name=spec["id"],
        eval_results=results or None,
    )


def _algorithm(spec: Mapping[str, Any]) -> str:
    found = spec["sparsity"]
    return str(found.get("algorithm", "sparse")) if isinstance(found, Mapping) else "sparse"


def _how_to_load(spec: Mapping[str, Any], own_code: bool, transformed: bool) -> str:
    _, name = KINDS.get(spec["task"], (None, "AutoModel"))
    if transformed:
        return (
            "Sparse-IFT replaced layers, which transformers does not know. In a clone of the "
            "repository:\n\n```python\n"
            f"from transformers import {name}\n"
            "from experiments.evaluation.exported import read_model\n\n"
            f"model = read_model(folder, {name})\n```"
        )
    option = ", trust_remote_code=True" if own_code else ""
    return (
        f"```python\nfrom transformers import {name}\n\n"
        f"model = {name}.from_pretrained(folder{option})\n```\n\n"
        "Masked weights are zeros. `sparse_lib.keep_zeros(model)` keeps them zero in further "
        "training; `masks.safetensors`, if it is there, tells them from weights that are zero by "
        "chance."
    )


def _tensor(row: Mapping[str, Any]) -> list[str]:
    shape = " x ".join(map(str, row["shape"]))
    return [code(row["name"]), shape, *_counts(row["weights"], row["nonzero"])]


def _sum(name: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    weights, nonzero = (sum(row[key] for row in rows) for key in ("weights", "nonzero"))
    return [name, "", *_counts(weights, nonzero)]


def _counts(weights: int, nonzero: int) -> list[str]:
    share = f"{1 - nonzero / weights:.4%}" if weights else ""
    return [f"{weights:,}", f"{nonzero:,}", share]


def _facts(train: Mapping[str, Any], source: str, licence: str) -> str:
    data, spent = train["data"], train["flops"]
    rows = [
        ("data", f"{code(data['name'])}, hash {code(data['hash'])}"),
        ("source of the data", cell(source)),
        ("licence of the data", cell(licence)),
        ("FLOPs of training", f"{spent['executed']:,} (dense: {spent['dense_equivalent']:,})"),
        ("time", f"{train['wall_s']} s on {cell(train['cpu'])}"),
        ("versions", cell(", ".join(f"{k} {v}" for k, v in train["versions"].items()))),
    ]
    return table(("", ""), rows)


def _evaluation(found: Mapping[str, Any]) -> str:
    rows = []
    for score in found["scores"]:
        value = score.get("value")
        shown = cell(score.get("reason") or "") if value is None else repr(value)
        error = score.get("stderr")
        rows.append(
            [
                *(cell(score.get(key) or "") for key in ("task", "metric", "split")),
                shown,
                "" if error is None else repr(error),
                "" if score.get("num_items") is None else f"{score['num_items']:,}",
            ]
        )
    title = f"Suite {code(found['suite'])}, weights {code(found['weights_hash'])}."
    head = ("task", "metric", "split", "value", "standard error", "items")
    return f"{title}\n\n{table(head, rows)}"


def _last_validation(train: Mapping[str, Any]) -> str:
    scores = {k: v for k, v in train["final"].items() if k.startswith("validation_")}
    text = "No suite scored these weights; validation after the last step:"
    return f"{text}\n\n" + table(
        ("metric", "value"), [(cell(name), repr(value)) for name, value in scores.items()]
    )
