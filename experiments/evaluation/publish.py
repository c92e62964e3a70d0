"""A trained model as a folder to hand on: weights, tokenizer, masks, its card, and an RO-Crate."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from rocrate.model import ContextEntity, CreativeWork, SoftwareApplication
from rocrate.rocrate import ROCrate

from experiments import data
from experiments.data.base import Dataset
from experiments.errors import UserError
from experiments.evaluation.files import weights_hash
from experiments.store.io import read_json
from experiments.store.paths import MASKS, STATES

PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
LICENSE = "https://spdx.org/licenses/Apache-2.0"
#: Writes the text of the card from a run's ``train.json``, its evaluations and its tensors.
Card = Callable[..., str]


def publish(folder: Path, out: Path, card: Card) -> Path:
    """Copy what a run trained, with a README.md and the metadata of an RO-Crate.

    Args:
        folder: A run's folder, with ``train.json`` and ``model/``; every ``eval*.json`` there that
            scored these weights is in the card.
        out: Folder to make; it appears whole or not at all.

    Raises:
        UserError: If the run is not finished, was scored with other weights, or ``out`` exists.
    """
    model = folder / "model"
    if not (folder / "train.json").is_file() or not model.is_dir():
        again = f"; train it by snakemake rerun --config run={folder.name}" * ("__" in folder.name)
        raise UserError(f"{folder} holds no train.json and model/ of a finished run{again}")
    if out.exists():
        raise UserError(f"out is {str(out)!r}, which exists; name a new folder")
    train = read_json(folder / "train.json")
    corpus = data.get(train["data"]["name"])
    made = out.with_name(f".{out.name}.{os.getpid()}")
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copytree(model, made, ignore=shutil.ignore_patterns(STATES, ".snakemake*"))
        (made / "run.yaml").write_text(yaml.safe_dump(train["spec"], sort_keys=False), "utf-8")
        config = read_json(made / "config.json")
        text = card(
            train,
            _evaluations(folder, weights_hash(model)),
            tensors(made),
            source=corpus.source,
            licence=corpus.license,
            own_code="auto_map" in config,
            transformed=(made / "transform.json").is_file(),
        )
        (made / "README.md").write_text(text, "utf-8")
        _write_crate(made, train, corpus)
        made.rename(out)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return out


def _evaluations(folder: Path, weights: str) -> Sequence[Mapping[str, Any]]:
    """All evaluations of a run that a suite made, of these weights."""
    found = []
    for path in sorted(folder.glob("eval*.json")):
        evaluation = read_json(path)
        if "scores" not in evaluation:
            continue
        if evaluation.get("weights_hash") != weights:
            raise UserError(f"{path} scored other weights than {folder / 'model'}; evaluate again")
        found.append(evaluation)
    return found


def tensors(model: Path) -> list[dict[str, Any]]:
    """Name, shape, weights, nonzero weights and mask (or not) of each tensor of a model's files."""
    from safetensors import safe_open

    masked: set[str] = set()
    if (model / MASKS).is_file():
        with safe_open(model / MASKS, framework="pt") as file:
            masked = set(file.keys())
    rows = []
    for path in sorted(model.glob("*.safetensors")):
        if path.name == MASKS:
            continue
        with safe_open(path, framework="pt") as file:
            for name in file.keys():
                tensor = file.get_tensor(name)
                rows.append(
                    {
                        "name": name,
                        "shape": list(tensor.shape),
                        "weights": tensor.numel(),
                        "nonzero": int(tensor.count_nonzero()),
                        "masked": name in masked,
                    }
                )
    return rows


def _write_crate(folder: Path, train: Mapping[str, Any], corpus: Dataset) -> None:
    """Write ``ro-crate-metadata.json``: who made the files from what, by which command.

    It follows the profile Process Run Crate 0.5, https://w3id.org/ro/wfrun/process.
    """
    spec, versions = train["spec"], train["versions"]
    crate = ROCrate()
    crate.name, crate.license = spec["id"], LICENSE
    crate.description = f"{spec['model']['name']}, trained on {corpus.name} by sparse_lib"
    profile = {"name": "Process Run Crate", "version": "0.5"}
    crate.root_dataset["conformsTo"] = crate.add(CreativeWork(crate, PROFILE, properties=profile))
    files = [
        crate.add_file(path, path.relative_to(folder).as_posix())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]
    program = SoftwareApplication(
        crate,
        "#sparse-lib",
        properties={
            "name": "sparse-lib",
            "softwareVersion": versions["sparse_lib"],
            "softwareRequirements": [f"{name} {versions[name]}" for name in versions],
            "identifier": f"code hash {train['code_hash']}",
        },
    )
    facts = {
        "@type": "Dataset",
        "name": corpus.name,
        "description": corpus.source,
        "license": corpus.license,
        "identifier": f"sha256:{train['data']['hash']}",
    }
    used = [
        crate.add(ContextEntity(crate, f"#{corpus.name}", properties=facts)),
        *(file for file in files if file.id == "run.yaml"),
    ]
    crate.add_action(
        crate.add(program),
        identifier="#training",
        object=used,
        result=[file for file in files if file.id != "run.yaml"],
        properties={
            "name": train["command"],
            "description": f"{train['wall_s']} s, {train['cpu']}",
        },
    )
    crate.metadata.write(folder)
