"""How often the ledger would speak falsely: its own tests and policy on data without effects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from experiments.analysis import stats
from experiments.analysis.claims import comparison, policy

#: Margins are in the metric's units, the simulated values in seed standard deviations.
MARGIN_SD = 1.0


def false_verdicts(
    tests: Mapping[str, Mapping[str, Any]],
    seeds: Mapping[str, int],
    primary: set[str],
    *,
    replicates: int,
    seed: int = 0,
) -> pd.DataFrame:
    """Judge ledgers of runs that differ by chance only, and count what is false.

    Every selection of runs (an arm) that the tests name gets values from one normal distribution,
    one per seed; claims that share an arm share its values. Where a test has a margin, its arms
    differ by just as much as makes the word in question false.

    Args:
        tests: Claim id to its entry in ``tests.yaml``; comparisons only.
        seeds: Claim id to its number of paired seeds, at least 2.
        primary: The primary claims; the rest are exploratory.
        replicates: Number of simulated ledgers.
        seed: Of the random values.

    Returns:
        One row per family, case and boundary: ``rate``, the share of ledgers in which at least one
        claim of the family gets a word other than inconclusive, and its 95% Wilson interval ``low``
        to ``high``. The boundary is that of the claim (``for``) or of its opposite (``against``);
        they differ where a test has a margin. In the case ``no effect`` all links of a claim are
        there; in ``one link`` only its last is and the others hold by far, which is the worst case
        for a claim that holds only if all its links do.
    """
    rows = []
    for case in ("no effect", "one link"):
        for side in ("for", "against"):
            counts = {True: 0, False: 0}
            generator = np.random.default_rng(seed)
            for _ in range(replicates):
                values = _Arms(generator)
                found = policy.verdicts(
                    [
                        _evidence(name, test, seeds[name], name in primary, values, case, side)
                        for name, test in tests.items()
                    ]
                )
                for is_primary in counts:
                    counts[is_primary] += any(
                        verdict.word != policy.INCONCLUSIVE
                        for name, verdict in found.items()
                        if (name in primary) == is_primary
                    )
            for is_primary, count in counts.items():
                low, high = wilson(count, replicates)
                rows.append(
                    {
                        "family": "primary" if is_primary else "exploratory",
                        "case": case,
                        "boundary": side,
                        "ledgers": replicates,
                        "rate": count / replicates,
                        "low": low,
                        "high": high,
                    }
                )
    return pd.DataFrame(rows)


class _Arms:
    """Values of each arm by seed, drawn when first asked for."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator
        self._values: dict[str, np.ndarray] = {}

    def __call__(self, side: Mapping[str, Any], count: int) -> np.ndarray:
        key = json.dumps(side, sort_keys=True)
        if key not in self._values or self._values[key].size < count:
            self._values[key] = self._generator.normal(size=64)
        return self._values[key][:count]


def _evidence(
    name: str,
    test: Mapping[str, Any],
    count: int,
    is_primary: bool,
    values: _Arms,
    case: str,
    side: str,
) -> policy.Evidence:
    links = comparison.links_of(test)
    pairs = []
    for index, link in enumerate(links):
        far = case == "one link" and side == "for" and index < len(links) - 1
        pairs.append(_pair({**test, **link}, count, values, side=side, far=far))
    pair = pairs[0] if len(pairs) == 1 else comparison.weakest_link(pairs)[1]
    return policy.Evidence(name, is_primary, pair.p, pair.p_opposite, count)


def _pair(
    link: Mapping[str, Any], count: int, values: _Arms, *, side: str, far: bool
) -> stats.Paired:
    arms = [values(arm, count) for arm in comparison.sides_of(link)]
    difference = arms[0] - arms[1] if len(arms) == 2 else arms[0] - arms[1] - arms[2] + arms[3]
    direction, margin = link["direction"], MARGIN_SD * float(np.sign(link.get("margin", 0.0)))
    sign = -1.0 if direction == "less" else 1.0
    boundary = margin if side == "for" or direction == "equal" else min(margin, 0.0)
    if far:
        difference = difference * 1e-3 + (0.0 if direction == "equal" else sign * 100.0)
    else:
        difference = difference + sign * boundary
    return stats.paired(
        dict(enumerate(difference)),
        dict.fromkeys(range(count), 0.0),
        direction=direction,
        margin=margin,
    )


def wilson(count: int, total: int, *, z: float = 1.959964) -> tuple[float, float]:
    """Return Wilson's 95% interval of a share."""
    share = count / total
    centre = share + z * z / (2 * total)
    half = z * np.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    return float((centre - half) / scale), float((centre + half) / scale)
