"""Model outputs, from which metrics are computed.

Shape suffixes: N images, K classes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy import special


class Estimate(NamedTuple):
    """A score with its standard error.

    Attributes:
        stderr: its standard error over items, None where unknown.
        num_items: how many independent items it is taken over.
        chance: score of a uniform guess, where that has one.
    """

    value: float
    stderr: float | None
    num_items: int
    chance: float | None = None


@dataclass(frozen=True)
class Images:
    """Answers to images.

    Attributes:
        logits: (N, K).
        labels: (N,), from 0 to K - 1.
    """

    logits: np.ndarray
    labels: np.ndarray
    classes: Sequence[str]

    @cached_property
    def log_probabilities(self) -> np.ndarray:
        """(N, K)."""
        return special.log_softmax(self.logits, axis=1)


@dataclass(frozen=True)
class Tokens:
    """Losses of a stream of tokens.

    Attributes:
        losses: nats of each window, summed over its tokens.
        sizes: tokens of each window.
        stride: tokens that a window scores.
    """

    losses: Sequence[float]
    sizes: Sequence[int]
    stride: int


@dataclass(frozen=True)
class Documents:
    """Losses of documents, each on its own.

    Attributes:
        losses: nats of each document.
        num_bytes: of each document in UTF-8.
        stride: tokens that a window scores.
    """

    losses: Sequence[float]
    num_bytes: Sequence[int]
    stride: int


@dataclass(frozen=True)
class Repeats:
    """Losses of the second halves of passages that are read twice in a row, nats per token.

    Attributes:
        first: at the first reading of each passage.
        second: at the second one, the first in the context.
        stride: tokens of a passage.
    """

    first: Sequence[float]
    second: Sequence[float]
    stride: int


def mean(values: np.ndarray, chance: float | None = None) -> Estimate:
    """Mean over independent items with its standard error, None below two items."""
    error = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None
    return Estimate(float(values.mean()), error, len(values), chance)


def ratio(losses: Sequence[float], sizes: Sequence[float]) -> tuple[float, float | None]:
    """Sum of losses over sum of sizes, with its standard error over clusters.

    The clusters (windows or documents) are treated as independent draws; the error is the
    linearised one of a ratio estimator (Cochran, Sampling Techniques, 1977, section 6.4).

    Returns:
        The ratio, and its standard error or None with fewer than two clusters.
    """
    value = math.fsum(losses) / math.fsum(sizes)
    num = len(losses)
    if num < 2:
        return value, None
    squares = math.fsum((a - value * b) ** 2 for a, b in zip(losses, sizes, strict=True))
    return value, math.sqrt(squares * num / (num - 1)) / math.fsum(sizes)


def exponential(loss: float, error: float | None) -> tuple[float, float | None]:
    """exp(loss) and its standard error by the delta method; infinite where exp overflows."""
    value = math.inf if loss >= 700 else math.exp(loss)
    return value, None if error is None else value * error
