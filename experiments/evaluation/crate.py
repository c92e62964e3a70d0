"""An exported model as an RO-Crate: who made its files from what, by which command.

It follows the profile Process Run Crate 0.5, https://w3id.org/ro/wfrun/process.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rocrate.model import ContextEntity, CreativeWork, SoftwareApplication
from rocrate.rocrate import ROCrate

from experiments.data.base import Dataset

PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
LICENSE = "https://spdx.org/licenses/Apache-2.0"


def write(folder: Path, train: Mapping[str, Any], corpus: Dataset) -> None:
    """Write ``ro-crate-metadata.json`` beside the files of an exported model."""
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
