"""Damaged safetensors files: the weights that were written, or one sentence; never a crash.

They are read in a process of their own, so that a crash is seen.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import struct
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import sparse_lib as sl
from sparse_lib.checkpoint import export_safetensors, load_checkpoint, read_safetensors
from tests.fuzz import inputs, oracle

LAYOUTS = ("dense", "masks", "nan", "bitmask")
ABSENT, DIGEST = "sparse_nan_is_absent", "sparse_sha256"


def model() -> nn.Module:
    """A convolution and two linear layers, dense."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(12, 8), nn.Linear(8, 4))


@functools.cache
def exported(
    layout: str, with_digest: bool = True
) -> tuple[bytes, dict[str, torch.Tensor], dict[str, str]]:
    """A file of a layout: its bytes, tensors and metadata; without a digest as others write it."""
    with tempfile.TemporaryDirectory() as folder:
        masked = model()
        sl.Static(sparsity=0.5).apply(masked)
        path = export_safetensors(masked, Path(folder) / "model.safetensors", layout=layout)
        if not with_digest:
            with safe_open(path, framework="pt") as file:
                kept = {k: v for k, v in file.metadata().items() if k != DIGEST}
            save_file(load_file(path), path, metadata=kept)
        content = path.read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        metadata = json.loads(content[8 : 8 + length])["__metadata__"]
        return content, load_file(path), metadata


def read(connection: Any) -> None:
    """Answer paths with the sentence of the refusal, None, or the bug; the work of the child."""
    torch.set_num_threads(1)
    while True:
        path = connection.recv()
        try:
            weights, masks = read_safetensors(path)
            for name, tensor in weights.items():
                assert tensor.layout == torch.strided, name
                assert name not in masks or masks[name].shape == tensor.shape, name
            load_checkpoint(
                model(), {**weights, **{f"{name}_mask": mask for name, mask in masks.items()}}
            )
            connection.send(("accepted", ""))
        except ValueError as error:
            connection.send(("refused", str(error)))
        except Exception as error:
            connection.send(("bug", f"{type(error).__name__}: {error}"))


class Reader:
    """A child that reads checkpoints, and is started again when a file has ended it."""

    def __init__(self) -> None:
        self.process: Any = None

    def __call__(self, path: Path) -> str | None:
        """The refusal, None if accepted; raises where there was a bug or a crash."""
        if self.process is None or not self.process.is_alive():
            context = multiprocessing.get_context("fork")
            self.connection, other = context.Pipe()
            self.process = context.Process(target=read, args=(other,), daemon=True)
            self.process.start()
            other.close()
        self.connection.send(path)
        try:
            kind, text = self.connection.recv() if self.connection.poll(60) else ("hang", "")
        except (EOFError, ConnectionError):
            self.process.join()
            kind, text = "crash", f"exit code {self.process.exitcode}"
        if kind in ("hang", "crash"):
            self.stop()
        assert kind in ("accepted", "refused"), f"{kind}: {text}"
        # What does not fit the model is named by its tensor, what is no checkpoint by its file.
        named = (
            path.name,
            "the checkpoint",
            "model and checkpoint",
            "the mask of",
            "the model has",
        )
        assert kind == "accepted" or any(name in text for name in named), text
        return text if kind == "refused" else None

    def stop(self) -> None:
        """End the child."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.process = None


@pytest.fixture(scope="module")
def reader():
    child = Reader()
    yield child
    child.stop()


def replacements(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Other tensors in place of one: types, shapes, values outside of what is allowed."""
    flat = tensor.reshape(-1)
    whole = tensor.clone()
    others = [whole.to(kind) for kind in (torch.float64, torch.int64, torch.int32, torch.uint8)]
    others += [whole.to(torch.bool), whole.to(torch.float16), whole.to(torch.complex64)]
    others += [flat[:-1], flat[:0], flat[:1].squeeze(), tensor[None], torch.cat([flat, flat])]
    others += [tensor.flip(0), torch.zeros_like(tensor), torch.zeros(0), torch.zeros(3, 0)]
    for value in (-1, 1, 3, 100, 127):
        changed = whole.clone()
        changed.reshape(-1)[flat.numel() // 2] = value
        others.append(changed)
    if tensor.dtype == torch.int64:
        huge = torch.full_like(tensor, 2**62)
        others += [huge, -huge, torch.arange(tensor.numel()), tensor * 2]
    if tensor.is_floating_point():
        others += [torch.full_like(tensor, float("nan")), torch.full_like(tensor, float("inf"))]
    return others


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """A file of some layout with one to three faults."""
    content, tensors, metadata = exported(draw(st.sampled_from(LAYOUTS)), draw(st.booleans()))
    kind = draw(st.integers(0, 3))
    if kind == 0:
        return draw(inputs.damaged(content))
    if kind == 1:
        (length,) = struct.unpack("<Q", content[:8])
        head = json.loads(content[8 : 8 + length])
        head = inputs.as_json(draw(inputs.mutated([head]))).encode()
        return struct.pack("<Q", len(head)) + head + content[8 + length :]
    changed, facts = dict(tensors), dict(metadata)
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(sorted(changed) or ["x"]))
        fault = draw(st.integers(0, 7))
        if fault <= 3 and name in changed and changed[name].numel():
            others = replacements(changed[name])
            changed[name] = others[draw(st.integers(0, len(others) - 1))].contiguous()
        elif fault == 4:
            changed.pop(name, None)
        elif fault == 5:
            other = draw(st.one_of(st.sampled_from(sorted(tensors)), inputs.evil_names))
            changed[other.encode("utf-8", "replace").decode()] = tensors[
                draw(st.sampled_from(sorted(tensors)))
            ].clone()
        elif ABSENT in facts and fault == 6:
            facts[ABSENT] = draw(st.sampled_from(["", "{", "[]", "null", "1", '{"a": [1]}', '"a"']))
        elif ABSENT in facts and fault == 7:
            try:
                names = json.loads(facts[ABSENT])
            except ValueError:
                continue
            facts[ABSENT] = inputs.as_json(draw(inputs.mutated([names])))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        save_file(changed, path, metadata=facts)
        return path.read_bytes()


def read_file(reader: Reader, folder: Path, content: bytes) -> str | None:
    """Write the bytes and let the child read them."""
    path = folder / "damaged.safetensors"
    path.write_bytes(content)
    return reader(path)


@oracle.budget(short=150, share=0.35)
@given(content=files())
def test_a_damaged_checkpoint_is_read_or_refused_in_one_sentence(reader, content):
    oracle.judge("checkpoints", lambda folder: read_file(reader, folder, content), content)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_a_fault_it_is_read(reader, layout, tmp_path):
    assert read_file(reader, tmp_path, exported(layout)[0]) is None


def with_head(layout: str, old: str, new: str) -> bytes:
    """A file without a digest whose header is changed."""
    content = exported(layout, False)[0]
    (length,) = struct.unpack("<Q", content[:8])
    head = content[8 : 8 + length].decode().replace(old, new, 1).rstrip().encode()
    return struct.pack("<Q", len(head)) + head + content[8 + length :]


def with_tensor(layout: str, name: str, tensor: torch.Tensor | None) -> bytes:
    """A file without a digest with another tensor under a name, or none."""
    _, tensors, metadata = exported(layout, False)
    changed = {key: value for key, value in tensors.items() if key != name}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        save_file(changed if tensor is None else {**changed, name: tensor}, path, metadata=metadata)
        return path.read_bytes()


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "safetensors"),
        (exported("dense")[0][:-1], "safetensors"),
        (exported("bitmask")[0][:-1] + b"\x7f", "digest"),
        (with_head("dense", '"F32"', '"F\\n32"'), "safetensors"),
        (with_head("nan", '"sparse_nan_is_absent":"[', '"sparse_nan_is_absent":"[{'), ABSENT),
        (with_tensor("masks", "2.weight.bitmask", torch.ones(3, dtype=torch.uint8)), "2.weight"),
        (with_tensor("bitmask", "2.weight.compressed", None), "2.weight"),
        (with_tensor("bitmask", "2.weight.compressed", torch.ones(1)), "2.weight"),
        (with_tensor("bitmask", "2.weight.bitmask", torch.ones(12)), "2.weight"),
        (with_tensor("bitmask", "2.weight.shape", torch.tensor([2**62, 2**62])), "2.weight"),
        (with_tensor("bitmask", "2.weight.shape", torch.tensor([-8, 12])), "2.weight"),
    ],
)
def test_what_was_found_is_refused(reader, content, named, tmp_path):
    refused = read_file(reader, tmp_path, content)
    assert refused is not None and named in refused
    oracle.check_sentence(refused)
