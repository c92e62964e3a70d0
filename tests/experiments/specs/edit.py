"""Studies and specs that differ from committed ones, for tests."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from experiments.specs.expand import all_runs
from experiments.specs.read import STUDIES, load_study
from experiments.specs.run import RunSpec
from experiments.specs.schema import SCALES, SpecError

BASE = yaml.safe_load((STUDIES / "sparsity_library.yaml").read_text())
# One section per method, as its levels stand for them.
BASE["methods"] = load_study("sparsity_library").model_dump(exclude_unset=True)["methods"]


def edited(spec: RunSpec, change: Callable[[dict[str, Any]], Any]) -> RunSpec:
    """A spec whose JSON was changed in place."""
    value = spec.to_json()
    change(value)
    return RunSpec.model_validate(value)


def error_of(folder) -> str:
    with pytest.raises(SpecError) as caught:
        for scale in SCALES:
            all_runs(scale, folder=folder)
    message = str(caught.value)
    assert "\n" not in message
    return message


def two_phases(study: dict) -> None:
    """Add sparse pre-training and dense fine-tuning to the smoke scale."""
    start = {"method": "set", "densify": True}
    study["methods"]["finetuned"] = {"recipe": "full-batch", "starts_from": start}
    pretraining = study["scales"]["smoke"][0]
    pretraining["label"] = "pretraining"
    second = copy.deepcopy(pretraining)
    second.update(label=None, pretrained="pretraining", methods={"finetuned": 1})
    second["recipe"]["tokens"] = 8192
    study["scales"]["smoke"].append(second)


def with_transform(study: dict) -> None:
    wide = {"recipe": "full-batch", "final_sparsity": 0.5}
    wide["sparsity"] = {"algorithm": "rigl", "update": {"freq": "2%"}}
    study["methods"]["wide"] = {**wide, "transform": {"family": "wide", "sparsity": 0.5}}
    study["scales"]["smoke"][0]["methods"]["wide"] = 1
