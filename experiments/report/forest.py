"""The figure of the front page: each effect relative to the published one, and the pooled
workloads."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.analysis import style
from experiments.analysis.methods import INK, algorithm_name
from experiments.findings.estimate import NO_TEST, OPEN, OPPOSITE, SAME, SMALLER
from experiments.findings.ledger import Finding
from experiments.findings.pool import Pooled

COLORS = {SAME: "#0072B2", OPPOSITE: "#D55E00", SMALLER: "#6B6B6B", OPEN: "#6B6B6B"}
#: Ends of the axis of multiples; what lies further out ends in an arrow.
RANGE = (-1.2, 4.0)


def draw(findings: Sequence[Finding], pooled: Mapping[tuple[str, str], Pooled]) -> Figure:
    """Three panels: effects as multiples of the published ones, effects without one, the pooled
    forest."""
    names = {f.claim.name: f"{at}. {f.claim.title}" for at, f in enumerate(findings, 1)}
    sized = [f for f in findings if math.isfinite(f.ratio[0])]
    plain = [f for f in findings if f.estimate is not None and f not in sized and f.is_fair]
    heights = [0.9 + 0.42 * len(sized), 0.9 + 0.42 * len(plain), 0.9 + 0.42 * len(pooled)]
    shown = [height for height, own in zip(heights, (sized, plain, pooled), strict=True) if own]
    with style.sheet():
        figure, panels = style.panels(len(shown) or 1, heights=shown)
        axes = iter(panels)
        if not shown:
            style.say_empty(panels[0], "No comparison is finished yet.")
        if sized:
            _ratios(next(axes), sized, names)
        if plain:
            _shares(next(axes), plain, names)
        if pooled:
            _forest(next(axes), pooled)
    return figure


def _ratios(axes: Axes, findings: Sequence[Finding], names: Mapping[str, str]) -> None:
    axes.axvspan(0.5, 2, color="#8a8f98", alpha=0.18, lw=0)
    for place, found in enumerate(reversed(findings)):
        axes.plot(1, place - 0.22, "o", color="#6B6B6B", ms=4)
        if found.is_fair:
            _bar(axes, place, *found.ratio, COLORS[found.word.word], *RANGE)
        else:
            axes.text(0.02, place, NO_TEST, va="center", fontsize=8, color=INK)
    _rows(axes, [names[found.claim.name] for found in reversed(findings)])
    axes.set_xlim(*RANGE)
    axes.set_xticks([-1, 0, 0.5, 1, 2, 3, 4], ["-1", "0", "0.5", "1", "2", "3", "4"])
    axes.set_xlabel("0: no effect, 1: as large as published (shaded: half to twice)")
    axes.axvline(0, color=INK, lw=0.8)
    axes.set_title("Ours as multiples of published")


def _shares(axes: Axes, findings: Sequence[Finding], names: Mapping[str, str]) -> None:
    for place, found in enumerate(reversed(findings)):
        assert found.claim.outcome is not None and found.estimate is not None
        e, sign = found.estimate, found.claim.outcome.sign
        ends: tuple[float, ...] = (e.effect, e.low, e.high)
        if found.claim.outcome.metric == "perplexity":
            ends = tuple(math.log1p(share / 100) for share in found.share)
        value, low, high = (sign * end for end in ends)
        _bar(axes, place, value, low, high, COLORS[found.word.word])
    _rows(axes, [names[found.claim.name] for found in reversed(findings)])
    axes.axvline(0, color=INK, lw=0.8)
    axes.set_xlabel("reduction of loss, nats (right is better)")
    axes.set_title("Published without a comparable number")


def _forest(axes: Axes, pooled: Mapping[tuple[str, str], Pooled]) -> None:
    names = []
    for place, ((a, b), found) in enumerate(reversed(list(pooled.items()))):
        for effect in found.effects:
            axes.plot(-effect.value, place - 0.2, "|", color="#6B6B6B", ms=7)
        word = OPEN if not found.low * found.high > 0 else SAME if found.mean < 0 else OPPOSITE
        _bar(axes, place + 0.12, -found.mean, -found.low, -found.high, COLORS[word])
        count = len(found.effects)
        pair = f"{algorithm_name(a)} - {algorithm_name(b)}"
        names.append(f"{pair}\nbetter in {found.better} of {count}")
    _rows(axes, names)
    axes.axvline(0, color=INK, lw=0.8)
    axes.set_xlabel("reduction of loss, % (right is better)")
    axes.set_title("Pooled over text and images (ticks)")


def _bar(
    axes: Axes,
    place: float,
    value: float,
    low: float,
    high: float,
    color: str,
    left: float = -math.inf,
    right: float = math.inf,
) -> None:
    """A diamond with its interval, which ends in an arrow where it leaves the axis."""
    low, high = sorted((low, high))
    axes.plot([max(low, left), min(high, right)], [place, place], color=color, lw=1.6)
    for end, mark, is_out in ((left, "<", low < left), (right, ">", high > right)):
        if is_out:
            axes.plot(end, place, mark, color=color, ms=6, clip_on=False)
    if left <= value <= right:
        axes.plot(value, place, "D", color=color, ms=5)


def _rows(axes: Axes, names: Sequence[str]) -> None:
    wrapped = [name if "\n" in name else textwrap.fill(name, 26) for name in names]
    axes.set_yticks(range(len(names)), wrapped, fontsize=8)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.grid(axis="y", visible=False)
