"""The model card: the README.md of an exported model, from the files of its run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from experiments.report.render import environment

#: Task of a run to what the hub calls it, and the class of transformers that loads the model.
KINDS = {
    "lm": ("text-generation", "AutoModelForCausalLM"),
    "vision": ("image-classification", "AutoModelForImageClassification"),
}


def card(
    train: Mapping[str, Any],
    evaluations: Sequence[Mapping[str, Any]],
    tensors: Iterable[Mapping[str, Any]],
    **facts: Any,
) -> str:
    """The text of the README.md.

    Args:
        tensors: One dict per tensor of the weights: ``name``, ``shape``, ``weights``, ``nonzero``,
            and ``masked`` (whether it has a mask).
        facts: ``source`` and ``licence`` of the data; ``own_code``, whether the folder brings the
            Python file of its model; ``transformed``, whether Sparse-IFT replaced layers.
    """
    spec, rows = train["spec"], list(tensors)
    masked = [row for row in rows if row["masked"]]
    kind, auto_class = KINDS.get(spec["task"], (spec["task"], "AutoModel"))
    sums = {
        "all masked tensors": masked,
        "tensors without a mask": [row for row in rows if not row["masked"]],
        "all": rows,
    }
    text = environment().get_template("card.md.j2")
    made = text.render(
        train=train,
        spec=spec,
        masked=masked,
        sums={
            name: {key: sum(row[key] for row in own) for key in ("weights", "nonzero")}
            for name, own in sums.items()
        },
        auto_class=auto_class,
        recipe=yaml.safe_dump(dict(spec), sort_keys=False, width=100).strip(),
        evaluations=evaluations,
        **facts,
    )
    return str(ModelCard(f"---\n{_metadata(train, evaluations, kind).to_yaml()}\n---\n\n{made}"))


def _metadata(
    train: Mapping[str, Any], evaluations: Sequence[Mapping[str, Any]], kind: str
) -> ModelCardData:
    """The metadata that the hub reads; the weights have this repository's licence."""
    spec = train["spec"]
    results = [
        EvalResult(
            task_type=kind,
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
    masks = spec.get("sparsity")
    algorithm = masks.get("algorithm", "sparse") if isinstance(masks, Mapping) else "sparse"
    return ModelCardData(
        library_name="transformers",
        license="apache-2.0",
        datasets=[train["data"]["name"]],
        base_model=(spec.get("starts_from") or {}).get("run"),
        pipeline_tag=kind,
        tags=["sparse", *([] if masks is None else [str(algorithm)])],
        model_name=spec["id"],
        eval_results=results or None,
    )
