"""Miniature mirrors of the hub."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from PIL import Image


def write_mirror(root, hub_id, splits, configs=("default",)):
    """Write parquet files and the README that declares them."""
    for config in configs:
        (root / hub_id / config).mkdir(parents=True, exist_ok=True)
        for split, rows in splits.items():
            table = rows if isinstance(rows, pa.Table) else pa.table({"text": rows})
            pq.write_table(table, root / hub_id / config / f"{split}.parquet")
    declare(
        root / hub_id, {c: {split: f"{c}/{split}.parquet" for split in splits} for c in configs}
    )


def declare(folder, configs):
    """Write the README that names the files of each split of each configuration."""
    files = [
        {"config_name": name, "data_files": [{"split": s, "path": p} for s, p in paths.items()]}
        for name, paths in configs.items()
    ]
    (folder / "README.md").write_text(f"---\n{yaml.safe_dump({'configs': files})}---\n")


def encoded(pixels) -> dict:
    """An image as the hub stores it; `pixels` are (S, S, 3) or (S, S)."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return {"bytes": file.getvalue(), "path": None}


def write_images(
    root, hub_id, config, *, image="image", label="label", shape=(32, 32, 3), num_classes=2,
    order=range(40), splits=("train", "test"),
):  # fmt: skip
    """Write the same random images into each split, in the given order; returns them."""
    folder = root / hub_id
    folder.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (len(order), *shape), dtype=np.uint8)
    features = {image: {"_type": "Image"}, label: {"dtype": "int64", "_type": "Value"}}
    stored = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([(image, stored), (label, pa.int64())])
    schema = schema.with_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    for split in splits:
        rows = [{image: encoded(pixels[i]), label: i % num_classes} for i in order]
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / f"{split}-0.parquet")
    declare(folder, {config: {split: f"{split}-*" for split in splits}})
    return pixels
