"""Where a hub dataset lies on this machine, and in which layout.

Looked at are, in this order, `<mirror>/<hub id>`, a hub cache that is named as the mirror, and the
hub's own cache (`HF_HUB_CACHE`, else `HF_HOME/hub`, else `~/.cache/huggingface/hub`). A folder may
hold

- parquet or JSON Lines files that a README.md declares by config and split,
- such files without a README.md, each named after its split, in the folder itself, in `data/` or in
  one named after the config,
- what `datasets.save_to_disk` wrote, as a whole or for one config.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from yaml import YAMLError

from experiments.data.base import SPLITS, Source

#: Suffixes of data files, with what `datasets` calls their kind.
KINDS = {".parquet": "parquet", ".jsonl": "json", ".json": "json"}
#: Files that `datasets` writes beside the data.
NOT_DATA = ("dataset_dict.json", "dataset_info.json", "dataset_infos.json", "state.json")


@dataclass(frozen=True)
class Layout:
    """How the splits of a dataset lie in a folder.

    Attributes:
        saved: Whether `datasets.load_from_disk` reads it.
        kind: Of the files where no README.md declares them: ``parquet`` or ``json``.
        files: Split to its files, where no README.md declares them.
        splits: Names of the splits; None where only reading tells.
    """

    folder: Path
    saved: bool = False
    kind: str | None = None
    files: Mapping[str, list[str]] | None = None
    splits: Sequence[str] | None = None

    def load(self, config: str | None, **options: Any) -> Any:
        """Read it by `datasets`; ``options`` are those of ``load_dataset``."""
        from datasets import load_dataset, load_from_disk

        if self.saved:
            return load_from_disk(str(self.folder))
        if self.files is not None:
            return load_dataset(self.kind, data_files=dict(self.files), **options)
        return load_dataset(str(self.folder), config, **options)


def folder_of(hub_id: str, source: Source) -> Path | None:
    """Folder of a dataset on this machine."""
    roots = [] if source.mirror is None else [source.mirror, source.mirror / "hub"]
    if source.mirror is not None and (source.mirror / hub_id).is_dir():
        return source.mirror / hub_id
    for root in (*roots, hub_cache()):
        repository = root / f"datasets--{hub_id.replace('/', '--')}"
        try:
            snapshot = (
                repository / "snapshots" / (repository / "refs" / "main").read_text("utf-8").strip()
            )
        except OSError:
            continue
        if snapshot.is_dir():
            return snapshot
    return None


def hub_cache() -> Path:
    """The folder in which `huggingface_hub` keeps what it fetched; it is not imported."""
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    return Path(os.environ.get("HF_HUB_CACHE", f"{home}/hub")).expanduser()


def layout(folder: Path, config: str | None) -> Layout | None:
    """How a folder holds a dataset; None where it holds none."""
    places = [folder / config, folder] if config else [folder]
    for place in places:
        try:
            saved = yaml.safe_load((place / "dataset_dict.json").read_text("utf-8"))["splits"]
            return Layout(place, saved=True, splits=saved)
        except (OSError, KeyError, TypeError, YAMLError):
            continue
    declared = declared_splits(folder / "README.md", config)
    if declared and any(path.suffix in KINDS for path in folder.rglob("*")):
        return Layout(folder, splits=declared)
    for place in [*places, *(place / "data" for place in places)]:
        for suffix, kind in KINDS.items():
            found: dict[str, list[str]] = {}
            for path in sorted(place.glob(f"*{suffix}")):
                split = path.name.split(".")[0].split("-")[0]
                if path.name not in NOT_DATA:
                    found.setdefault(split, []).append(str(path))
            if found:
                return Layout(place, kind=kind, files=found, splits=[*found])
    if declared is None and any(folder.glob("**/*.parquet")):
        return Layout(folder)
    return None


def missing_rows(
    name: str, hub_id: str, config: str | None, source: Source, splits: Sequence[str] = SPLITS
) -> str | None:
    """Say in one sentence what of a dataset is not on this machine; None if nothing."""
    folder = folder_of(hub_id, source)
    found = None if folder is None else layout(folder, config)
    if found is not None and (found.splits is None or {*splits} <= {*found.splits}):
        return None
    what = f"{hub_id} ({config})" if config else hub_id
    if found is not None:
        absent = [split for split in splits if split not in (found.splits or ())]
        return (
            f"{name} needs the {' and '.join(absent)} split of {what}, which {folder} lacks: "
            f"complete that folder, or {_command(name)}"
        )
    if folder is not None:
        return (
            f"{name} needs {what}, of which {folder} holds no parquet or JSON Lines files and "
            f"nothing that save_to_disk wrote: complete that folder, or {_command(name)}"
        )
    place = source.mirror / hub_id if source.mirror else f"<mirror>/{hub_id}"
    return (
        f"{name} needs {what}, which is not mirrored and not in the hub's cache: {_command(name)}; "
        f"or put its files into {place} and name the mirror's root by config key 'mirror' or "
        "variable SPARSE_MIRROR"
    )


def _command(name: str) -> str:
    return f"`python -m experiments prepare --data {name}` fetches it where there is a network"


def declared_splits(readme: Path, config: str | None) -> list[str] | None:
    """Splits of a config that a README's YAML header declares; None if it declares no configs."""
    try:
        header = readme.read_text(encoding="utf-8").split("---\n") if readme.is_file() else []
        configs = (yaml.safe_load(header[1]) or {}).get("configs") if len(header) > 2 else None
        for entry in configs or ():
            files = entry.get("data_files")
            if entry["config_name"] == (config or "default") and isinstance(files, list):
                return [file["split"] for file in files]
    except (YAMLError, UnicodeDecodeError, OSError, AttributeError, KeyError, TypeError):
        return None  # reading the data says what is wrong
    return [] if config and configs else None
