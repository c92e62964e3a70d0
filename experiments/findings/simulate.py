"""How often the words err, and how often a true effect gets its own: `python -m
experiments.findings.simulate`."""

from __future__ import annotations

from collections import Counter

import numpy as np

from experiments.findings.estimate import OPEN, OPPOSITE, SAME, SMALLER, Arm, estimate, judge

#: True effects as multiples of the published one.
EFFECTS = {"none": 0.0, "half": 0.5, "as published": 1.0, "twice": 2.0, "opposite": -1.0}
#: Standard error of the difference as a share of the published effect, and seeds of each arm.
DESIGNS = ((0.25, 5), (0.5, 5), (0.25, 3))
#: Further arms of the workload, whose seeds make its deviation known better.
OTHER_ARMS = 4


def shares(
    effect: float, error: float, seeds: int, *, draws: int = 2000, seed: int = 0
) -> dict[str, float]:
    """How often each word comes out.

    Args:
        effect: True effect, as a multiple of the published one.
        error: True standard error of the difference, in the same unit.
        seeds: Of each arm.

    Returns:
        Word to share; ``as large`` is the share of ``same direction`` that contains the published
        size.
    """
    random, found = np.random.default_rng(seed), Counter()
    deviation = error * np.sqrt(seeds / 2)
    arms = [Arm("m", f"arm{index}", "", 0.0) for index in range(2 + OTHER_ARMS)]
    for values in random.normal(0, deviation, (draws, len(arms), seeds)):
        values[0] += effect
        cells = {arm: dict(enumerate(own)) for arm, own in zip(arms, values, strict=True)}
        word = judge(estimate(cells, [(arms[0], arms[1])]), 1.0, is_published=True)
        found[word.word] += 1
        found["as large"] += word.size == "as large"
    return {key: found[key] / draws for key in (SAME, "as large", SMALLER, OPEN, OPPOSITE)}


def table() -> list[str]:
    """The rows of the table in docs/policy.md."""
    lines = [
        "| standard error, seeds | true effect | same direction | of it as large "
        "| smaller than half, or nothing | not resolved | opposite |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for error, seeds in DESIGNS:
        for name, effect in EFFECTS.items():
            found = [f"{100 * share:.0f}%" for share in shares(effect, error, seeds).values()]
            lines.append(f"| {error:g} of it, {seeds} | {name} | {' | '.join(found)} |")
    return lines


if __name__ == "__main__":
    print("\n".join(table()))
