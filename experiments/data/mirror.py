"""What of the hub is mirrored: `<root>/<hub id>/` with the files of a dataset or a tokenizer.

A dataset's folder holds parquet files and a README.md whose header declares configs and splits.
"""

from collections.abc import Sequence
from pathlib import Path

import yaml
from yaml import YAMLError

from experiments.data.base import SPLITS, Source


def missing_rows(
    name: str,
    hub_id: str,
    config: str | None,
    source: Source,
    splits: Sequence[str] = SPLITS,
) -> str | None:
    """Say in one sentence what of a dataset is not mirrored; None if nothing."""
    folder = source.mirror / hub_id if source.mirror else None
    if folder is not None and any(folder.glob("**/*.parquet")):
        declared = declared_splits(folder / "README.md", config)
        absent = [split for split in splits if declared is not None and split not in declared]
        if not absent:
            return None
        return (
            f"{name} needs the {' and '.join(absent)} split of {hub_id}"
            f"{f' ({config})' if config else ''}, which {folder} lacks: complete that folder or "
            "unset the mirror and allow the hub with --config offline=false."
        )
    return _not_mirrored(name, hub_id, "parquet files and README.md", source)


def missing_tokenizer(hub_id: str, source: Source) -> str | None:
    """Say in one sentence that a published tokenizer is not mirrored; None if it is."""
    if source.mirror is not None and (source.mirror / hub_id).is_dir():
        return None
    return _not_mirrored("data.tokenizer", hub_id, "tokenizer files", source)


def _not_mirrored(name: str, hub_id: str, files: str, source: Source) -> str:
    return (
        f"{name} needs {hub_id}, which is not mirrored: put its {files} into "
        f"{source.mirror / hub_id if source.mirror else f'<mirror>/{hub_id}'}, name the mirror "
        f"root by config key 'mirror' or variable SPARSE_MIRROR, or allow the hub with "
        f"--config offline=false."
    )


def declared_splits(readme: Path, config: str | None) -> list[str] | None:
    """Splits of a config that a README's YAML header declares; None if it declares no configs."""
    try:
        header = readme.read_text().split("---\n") if readme.is_file() else []
        configs = (yaml.safe_load(header[1]) or {}).get("configs") if len(header) > 2 else None
        for entry in configs or ():
            files = entry.get("data_files")
            if entry["config_name"] == (config or "default") and isinstance(files, list):
                return [file["split"] for file in files]
    except (YAMLError, UnicodeDecodeError, OSError, AttributeError, KeyError, TypeError):
        return None  # reading the data says what is wrong
    return [] if config and configs else None
