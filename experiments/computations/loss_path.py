"""The loss on the straight line between a static solution and a pruned one: Evci et al. 2020,
section 4.4, for the finished runs of the study lottery whose models are on this machine; of the
others the committed points stand."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pandas as pd
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from experiments.data import load
from experiments.evaluation.vision import load_classifier
from experiments.specs.expand import study_runs
from experiments.specs.read import load_study
from experiments.specs.run import Run
from experiments.store import paths
from experiments.tasks.vision import normalise

STUDY, ENDS = "lottery", ("static90", "gmp90")
#: Points of the line, both ends included.
POINTS = 21
#: Images that each loss is the mean of, and those that the norms' statistics are taken from.
IMAGES, CALIBRATION, BATCH = 2000, 2500, 250
COLUMNS = ["static", "pruned", "seed", "share", "train", "validation"]
Batches = list[tuple[torch.Tensor, torch.Tensor]]


def compute(scale: str) -> dict[str, pd.DataFrame]:
    """The table ``path``: by pair of runs and point the losses in nats per image.

    ``share`` goes from 0, the static solution, to 1, the pruned one.
    """
    kept = paths.REFERENCE / "loss_path" / "path.csv"
    known = pd.read_csv(kept) if kept.is_file() else pd.DataFrame(columns=COLUMNS)
    found = [pd.DataFrame(columns=COLUMNS)]
    for static, pruned in _pairs(scale):
        folders = [paths.run(scale, run.id) / "model" for run in (static, pruned)]
        if all((folder / "config.json").is_file() for folder in folders):
            images: Any = load(paths.data(static.data_label))
            first, last = map(load_classifier, folders)
            parts = {name: _batches(images, name) for name in ("train", "validation")}
            rows = pd.DataFrame(along(first, last, parts))
            own = {"static": static.id, "pruned": pruned.id, "seed": static.spec.seed}
            found.append(rows.assign(**own)[COLUMNS])
        else:
            found.append(known[(known["static"] == static.id) & (known["pruned"] == pruned.id)])
    return {"path": pd.concat([part for part in found if len(part)] or found[:1])}


def along(first: nn.Module, last: nn.Module, parts: dict[str, Batches]) -> list[dict[str, float]]:
    """Mean losses at `POINTS` points between the weights of two models of equal shapes.

    Statistics of batch norms are no weights: at each point they are taken anew from the first
    training batches.

    Args:
        first: Where ``share`` is 0.
        last: Where it is 1.
        parts: Batches by name; those of ``train`` serve the statistics too.
    """
    model = copy.deepcopy(first)
    ends = [dict(end.named_parameters()) for end in (first, last)]
    rows = []
    for point in range(POINTS):
        share = point / (POINTS - 1)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.copy_(torch.lerp(ends[0][name], ends[1][name], share))
            _calibrate(model, parts["train"])
            losses = {name: _loss(model, batches) for name, batches in parts.items()}
        rows.append({"share": share, **losses})
    return rows


def _pairs(scale: str) -> Iterator[tuple[Run, Run]]:
    """The static and the pruned run of each seed."""
    runs = {(run.spec.method, run.spec.seed): run for run in study_runs(load_study(STUDY), scale)}
    for (method, seed), run in runs.items():
        if method == ENDS[0] and (ENDS[1], seed) in runs:
            yield run, runs[ENDS[1], seed]


def _batches(images: Any, split: str) -> Batches:
    """The first images of a split, as they are, and their labels."""
    found, own = [], images.split(split)
    for start in range(0, min(max(IMAGES, CALIBRATION), len(own)), BATCH):
        chosen = slice(start, start + BATCH)
        pixels = torch.from_numpy(own.pixels[chosen].copy())
        labels = torch.from_numpy(own.labels[chosen].copy())
        found.append((normalise(pixels, images.meta), labels))
    return found


def _calibrate(model: nn.Module, batches: Batches) -> None:
    norms = [part for part in model.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean over all batches
    model.train()
    for pixels, _ in batches[: CALIBRATION // BATCH] if norms else ():
        model(pixel_values=pixels)
    model.eval()


def _loss(model: nn.Module, batches: Batches) -> float:
    total, count = 0.0, 0
    for pixels, labels in batches[: IMAGES // BATCH]:
        total += cross_entropy(model(pixel_values=pixels).logits, labels, reduction="sum").item()
        count += len(labels)
    return total / count
