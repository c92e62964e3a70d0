"""Miniature mirrors of the hub."""

import pyarrow as pa
import pyarrow.parquet as pq


def write_mirror(root, hub_id, splits, configs=("default",), digest="0"):
    """Write parquet files and the README that declares them."""
    folder = root / hub_id
    lines = ["---", "configs:"]
    for config in configs:
        lines += [f"- config_name: {config}", "  data_files:"]
        (folder / config).mkdir(parents=True, exist_ok=True)
        for split, rows in splits.items():
            pq.write_table(pa.table({"text": rows}), folder / config / f"{split}.parquet")
            lines += [f"  - split: {split}", f"    path: {config}/{split}.parquet"]
    (folder / "README.md").write_text("\n".join([*lines, f"content: '{digest}'", "---", ""]))
