"""Evaluation of an image classifier: accuracy, loss, calibration, and accuracy class by class.

Shape suffixes: N images, K classes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field, PositiveInt

from experiments.data import verify
from experiments.data.base import SPLITS
from experiments.data.files import read_meta
from experiments.evaluation.exported import read_model
from experiments.evaluation.files import hash_files, read_json, run_of, weights_hash, write_json
from experiments.evaluation.skipping import skipping
from experiments.evaluation.suite import Common, digest, load_suite
from experiments.specs.code import code_hash

if TYPE_CHECKING:
    from torch import nn

TOP = 5


class Suite(Common):
    """What is scored of an image classifier."""

    splits: tuple[Literal["validation", "test"], ...] = Field(("validation", "test"), min_length=1)
    max_images: PositiveInt | None = Field(None, description="first images; None takes all")
    num_bins: PositiveInt = Field(15, description="bins of the calibration error")
    num_resamples: PositiveInt = Field(
        200, description="resamples for the standard error of the calibration error"
    )


def evaluate(
    model_dir: Path,
    data_dir: Path,
    suite: str,
    *,
    out: Path,
    cache: Path | None = None,
    mirror: Path | None = None,
) -> dict[str, Any]:
    """Score a classifier and write the result; an unchanged call returns what is there.

    Args:
        model_dir: exported model.
        data_dir: prepared images, those that the model was trained on.
        suite: name of a suite of this kind, or path of a YAML file.
        out: file to write (``eval.json``), or the folder to write it into.
        cache: folder of earlier results, one file per weights; None is ``out``'s folder.
        mirror: not used: all images are in ``data_dir``.

    Returns:
        What was written: run, hashes, ``scores``, wall_s.

    Raises:
        ValueError: if the suite is unknown or wrong, the model does not fit the images, or the
            prepared images are damaged.
    """
    model_dir, data_dir, out = Path(model_dir), Path(data_dir), Path(out)
    out = out if out.suffix == ".json" else out / "eval.json"
    settings = load_suite(suite, Suite)
    verify(data_dir)
    files = [data_dir / f"{s}.{part}.npy" for s in SPLITS[1:] for part in ("pixels", "labels")]
    hashes = {
        "weights_hash": weights_hash(model_dir),
        "suite_hash": settings.hash,
        "data_hash": read_meta(data_dir)["hash"],
    }
    inputs_hash = digest([hashes, hash_files(data_dir, files), code_hash(Path(__file__))])
    store = (cache or out.parent) / f"accuracy-{hashes['weights_hash'][:16]}.json"
    known = read_json(store)
    if inputs_hash not in known:
        began = time.perf_counter()
        scores = list(_scores(model_dir, data_dir, settings, hashes["data_hash"]))
        known[inputs_hash] = {"scores": scores, "wall_s": round(time.perf_counter() - began, 3)}
        write_json(store, known)
    result = {
        "run": run_of(model_dir),
        "suite": settings.name,
        **hashes,
        "inputs_hash": inputs_hash,
        **known[inputs_hash],
    }
    write_json(out, result)
    return result


def load_classifier(model_dir: Path) -> nn.Module:
    """An exported classifier in evaluation mode, transformed by Sparse-IFT or not.

    Raises:
        ValueError: if the folder lacks weights that the model has.
    """
    from transformers import AutoModelForImageClassification

    from experiments.models import _networks  # noqa: F401  registers its classes

    return read_model(model_dir, AutoModelForImageClassification)


def _scores(
    model_dir: Path, data_dir: Path, suite: Suite, data_hash: str
) -> Iterator[dict[str, Any]]:
    """All scores in the form of eval.json, split by split."""
    import torch

    from experiments.data import load
    from experiments.tasks.vision import centre, normalise

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = getattr(torch, suite.dtype)
    images = load(data_dir)
    model = skipping(load_classifier(model_dir).to(device=device, dtype=dtype), suite.execution)
    num_labels = getattr(model.config, "num_labels", None)
    if num_labels != len(images.meta["classes"]):
        raise ValueError(
            f"{model_dir} tells {num_labels} classes apart, but {data_dir} has "
            f"{len(images.meta['classes'])}"
        )
    for name in suite.splits:
        split = images.split(name)
        count = min(len(split), suite.max_images or len(split))
        parts = []
        for first in range(0, count, suite.batch_size):
            last = min(first + suite.batch_size, count)
            pixels = torch.from_numpy(split.pixels[first:last].copy())
            pixels = centre(pixels, getattr(model.config, "image_size", pixels.shape[-1]))
            with torch.no_grad():
                inputs = normalise(pixels, images.meta).to(device=device, dtype=dtype)
                parts.append(model(pixel_values=inputs).logits.double().cpu().numpy())
        shared = {
            "num_fewshot": 0,
            "limit": suite.max_images,
            **suite.how,
            "truncated_fraction": 0.0,
            "split": name,
            "data_hash": data_hash,
        }
        rows = score(
            np.concatenate(parts),
            split.labels[:count],
            images.meta["classes"],
            num_bins=suite.num_bins,
            num_resamples=suite.num_resamples,
        )
        yield from ({**row, **shared} for row in rows)


def score(
    logits: np.ndarray,
    labels: np.ndarray,
    classes: Sequence[str],
    *,
    num_bins: int = 15,
    num_resamples: int = 200,
) -> list[dict[str, Any]]:
    """Scores of predictions.

    Args:
        logits: (N, K).
        labels: (N,), from 0 to K - 1.
        classes: names of the K classes.
        num_bins: bins of the calibration error.
        num_resamples: resamples for its standard error.

    Returns:
        Rows with task, metric, value, stderr (None below two images), num_items, chance (a uniform
        guess) and higher_is_better: ``accuracy``, ``accuracy_top5``, ``loss`` in nats,
        ``calibration_error``, and ``class_accuracy`` of each class that occurs.
    """
    num_classes = len(classes)
    log_p = log_softmax(logits)
    ranks = rank_of_label(logits, labels)
    correct, top = (ranks == 0).astype(float), (ranks < TOP).astype(float)
    confidence = np.exp(log_p.max(1))
    losses = -log_p[np.arange(len(labels)), labels]

    def row(metric: str, values: np.ndarray, chance: float, *, better: bool = True, task="images"):
        value, error = mean_and_error(values)
        shared = {"num_items": len(values), "chance": chance, "higher_is_better": better}
        return {"task": task, "metric": metric, "value": value, "stderr": error, **shared}

    rows = [
        row("accuracy", correct, 1 / num_classes),
        row("accuracy_top5", top, min(TOP, num_classes) / num_classes),
        row("loss", losses, math.log(num_classes), better=False),
        {
            "task": "images",
            "metric": "calibration_error",
            **_calibration(confidence, correct, num_bins, num_resamples),
            "num_items": len(labels),
            "chance": None,
            "higher_is_better": False,
        },
    ]
    for label, name in enumerate(classes):
        own = correct[labels == label]
        if len(own):
            rows.append(row("class_accuracy", own, 1 / num_classes, task=f"class:{name}"))
    return rows


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities, (N, K)."""
    shifted = logits - logits.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def rank_of_label(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """How many classes come before the right one, (N,); of equal ones the first comes first."""
    own = logits[np.arange(len(labels)), labels][:, None]
    earlier = np.arange(logits.shape[1])[None] < labels[:, None]
    return ((logits > own) | ((logits == own) & earlier)).sum(1)


def mean_and_error(values: np.ndarray) -> tuple[float, float | None]:
    """Mean over independent images, and its standard error, None below two images."""
    error = None
    if len(values) > 1:
        error = float(values.std(ddof=1) / math.sqrt(len(values)))
    return float(values.mean()), error


def calibration_error(confidence: np.ndarray, correct: np.ndarray, num_bins: int) -> float:
    """Expected calibration error (Guo et al. 2017, equation 3): bins of equal width.

    Args:
        confidence: (N,), probability of the predicted class, in (0, 1].
        correct: (N,), 1.0 where the prediction is right, else 0.0.
        num_bins: the bin of a confidence c is (i / num_bins, (i + 1) / num_bins].
    """
    places = np.ceil(confidence * num_bins).astype(int).clip(1, num_bins) - 1
    gaps = np.bincount(places, weights=correct - confidence, minlength=num_bins)
    return float(np.abs(gaps).sum() / len(confidence))


def _calibration(
    confidence: np.ndarray, correct: np.ndarray, num_bins: int, num_resamples: int
) -> Mapping[str, float | None]:
    """The calibration error and its bootstrap standard error over images."""
    value, count = calibration_error(confidence, correct, num_bins), len(confidence)
    if count < 2:
        return {"value": value, "stderr": None}
    rng = np.random.default_rng(0)
    draws = (rng.integers(count, size=count) for _ in range(num_resamples))
    errors = [calibration_error(confidence[draw], correct[draw], num_bins) for draw in draws]
    return {"value": value, "stderr": float(np.std(errors, ddof=1)) if num_resamples > 1 else None}
