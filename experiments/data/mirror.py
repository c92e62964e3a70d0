"""Where a hub dataset lies on this machine.

Looked at are, in this order, `<mirror>/<hub id>`, a hub cache that is named as the mirror, and the
hub's own cache (`HF_HUB_CACHE`, else `HF_HOME/hub`, else `~/.cache/huggingface/hub`). A folder
holds what `datasets` reads: parquet or JSON Lines files, or what `save_to_disk` wrote, in the
folder itself or in one named after the config.
"""

import os
import re
from pathlib import Path
from typing import Any

from experiments.data.base import Source

#: Suffixes of data files.
SUFFIXES = (".parquet", ".jsonl", ".json", ".arrow")


def folder_of(hub_id: str, source: Source) -> Path | None:
    """Folder of a dataset on this machine."""
    roots = [] if source.mirror is None else [source.mirror, source.mirror / "hub"]
    if source.mirror is not None and (source.mirror / hub_id).is_dir():
        return source.mirror / hub_id
    # As `huggingface_hub` names the folder of what it fetched; it takes long to import.
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE", f"{home}/hub")).expanduser()
    for root in (*roots, cache):
        repository = root / f"datasets--{hub_id.replace('/', '--')}"
        try:
            revision = (repository / "refs" / "main").read_text("utf-8").strip()
        except OSError:
            continue
        if (snapshot := repository / "snapshots" / revision).is_dir():
            return snapshot
    return None


def holds(folder: Path, config: str | None) -> bool:
    """Whether a folder has data files, of this config where its README.md names configs."""
    names = configs(folder)
    files = (path for path in folder.rglob("*") if path.suffix in SUFFIXES)
    return (config is None or not names or config in names) and any(files)


def configs(folder: Path) -> list[str]:
    """The configs whose files a folder's README.md names."""
    readme = folder / "README.md"
    text = readme.read_text("utf-8", errors="replace") if readme.is_file() else ""
    named = re.split(r"^configs:", text, flags=re.MULTILINE)[1:]
    return re.findall(r"^[ -]*config_name: *['\"]?([^'\"\s]+)", "".join(named), re.MULTILINE)


def load(folder: Path, config: str | None, **options: Any) -> Any:
    """Read a folder by `datasets`; ``options`` are those of ``load_dataset``."""
    from datasets import load_dataset, load_from_disk

    own = folder / config if config and (folder / config).is_dir() else folder
    if (own / "dataset_dict.json").is_file():
        return load_from_disk(str(own))
    if configs(folder):
        return load_dataset(str(folder), config, **options)
    return load_dataset(str(own), **options)


def missing_rows(name: str, hub_id: str, config: str | None, source: Source) -> str | None:
    """Say in one sentence what of a dataset is not on this machine; None if nothing."""
    folder = folder_of(hub_id, source)
    if folder is not None and holds(folder, config):
        return None
    what = f"{hub_id} ({config})" if config else hub_id
    fetch = f"`python -m experiments prepare --data {name}` fetches it where there is a network"
    if folder is not None:
        return (
            f"{name} needs {what}, of which {folder} holds no parquet or JSON Lines files and "
            f"nothing that save_to_disk wrote: complete that folder, or {fetch}"
        )
    place = source.mirror / hub_id if source.mirror else f"<mirror>/{hub_id}"
    return (
        f"{name} needs {what}, which is not mirrored and not in the hub's cache: {fetch}; or put "
        f"its files into {place} and name the mirror's root by config key 'mirror' or variable "
        "SPARSE_MIRROR"
    )
