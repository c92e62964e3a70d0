"""The keys of a command's ``--config``: what each is without one, and what it may be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator

from experiments import data
from experiments.errors import did_you_mean
from experiments.specs.code import ROOT
from experiments.specs.read import check_study
from experiments.specs.schema import SpecError, check_choice
from experiments.strict import read_yaml

DEFAULTS: dict[str, Any] = read_yaml((ROOT / "config" / "config.yaml").read_text("utf-8"))
SCHEMA = json.loads((ROOT / "workflow" / "schemas" / "config.schema.json").read_text("utf-8"))[
    "properties"
]


def checked(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration, if every key and value is allowed."""
    # Snakemake reads numbers, True and False of the command line, but not false or null.
    words = {"true": True, "false": False, "null": None}
    config = DEFAULTS | {k: words.get(v, v) if type(v) is str else v for k, v in config.items()}
    for key, value in config.items():
        if key not in SCHEMA:
            raise SpecError(
                f"unknown config key {key!r} with the value {value!r}: known are "
                f"{', '.join(SCHEMA)}{did_you_mean(str(key), SCHEMA)}"
            )
        rule = SCHEMA[key]
        if "enum" in rule and value not in rule["enum"]:
            check_choice(key, value, filter(None, rule["enum"]))
        if not Draft202012Validator(rule).is_valid(value):
            raise SpecError(f"{key} is {value!r}, but must be {rule['errorMessage']}")
    check_study(config["study"], "all")
    if config["mirror"] is not None:
        data.mirror_root(config["mirror"])
    return config
