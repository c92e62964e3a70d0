"""How often the ledger would speak falsely: its own tests and policy on data without effects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd

from experiments.analysis import stats
from experiments.analysis.claims import policy
from experiments.analysis.claims.links import links_of, sides_of
from experiments.specs.schema import ClaimTest, Comparison

#: Margins are in the metric's units, the simulated values in seed standard deviations.
MARGIN_SD = 1.0
CASES, SIDES = ("no effect", "one link"), ("for", "against")


def false_verdicts(
    tests: Mapping[str, ClaimTest],
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
    for case in CASES:
        for side in SIDES:
            p, opposite = p_values(tests, seeds, case, side, replicates=replicates, seed=seed)
            both = {
                name: np.minimum(1.0, 2 * np.minimum(p[name], opposite[name])) for name in tests
            }
            for family, speaks in (("primary", any_by_holm), ("exploratory", any_by_bh)):
                own = [both[name] for name in tests if (name in primary) == (family == "primary")]
                count = int(speaks(np.array(own)).sum()) if own else 0
                low, high = wilson(count, replicates)
                rows.append(
                    {
                        "family": family,
                        "case": case,
                        "boundary": side,
                        "ledgers": replicates,
                        "rate": count / replicates,
                        "low": low,
                        "high": high,
                    }
                )
    return pd.DataFrame(rows)


def any_by_holm(p: np.ndarray) -> np.ndarray:
    """Return in which ledgers Holm's correction leaves any claim significant.

    Args:
        p: Two-sided p values, ``[claims, ledgers]``.
    """
    return len(p) * p.min(axis=0) <= policy.ALPHA


def any_by_bh(p: np.ndarray) -> np.ndarray:
    """Return in which ledgers Benjamini and Hochberg's correction does; argument as above."""
    ranks = np.arange(1, len(p) + 1)[:, None]
    return np.any(np.sort(p, axis=0) * len(p) / ranks <= policy.ALPHA, axis=0)


def p_values(
    tests: Mapping[str, ClaimTest],
    seeds: Mapping[str, int],
    case: str,
    side: str,
    *,
    replicates: int,
    seed: int = 0,
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return each claim's one-sided p value and that of its opposite, one per simulated ledger.

    Arguments as in `false_verdicts`; ``case`` is one of `CASES`, ``side`` one of `SIDES`.
    """
    generator = np.random.default_rng(seed)
    arms: dict[str, np.ndarray] = {}
    most = max(seeds.values(), default=0)

    def values(arm: Mapping[str, Any], count: int) -> np.ndarray:
        key = json.dumps(arm, sort_keys=True)
        if key not in arms:
            arms[key] = generator.normal(size=(replicates, most))
        return arms[key][:, :count]

    forward, backward = {}, {}
    for name, test in tests.items():
        links = links_of(test)
        found = []
        for index, link in enumerate(links):
            sides = [values(arm, seeds[name]) for arm in sides_of(link)]
            far = case == "one link" and side == "for" and index < len(links) - 1
            found.append(_link(link, sides, side=side, far=far))
        p, opposite = (np.array(part) for part in zip(*found, strict=True))
        # As `comparison.weakest_link`: the largest p, and the smallest opposite times their number.
        forward[name] = p.max(axis=0)
        backward[name] = np.minimum(1.0, len(links) * opposite.min(axis=0))
    return forward, backward


def _link(
    link: Comparison, arms: list[np.ndarray], *, side: str, far: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Both p values of one comparison in every ledger; ``arms`` are ``[ledgers, seeds]``."""
    if link.collapse is not None:
        rate = link.collapse.rate
        collapsed = (arms[0] < NormalDist().inv_cdf(rate)).sum(axis=-1)
        return stats.binomial_tails(collapsed, arms[0].shape[-1], rate)
    difference = arms[0] - arms[1] if len(arms) == 2 else arms[0] - arms[1] - arms[2] + arms[3]
    direction, margin = link.direction or "", MARGIN_SD * float(np.sign(link.margin))
    sign = -1.0 if direction == "less" else 1.0
    boundary = margin if side == "for" or direction == "equal" else min(margin, 0.0)
    if far:
        difference = difference * 1e-3 + (0.0 if direction == "equal" else sign * 100.0)
    else:
        difference = difference + sign * boundary
    return stats.p_values(difference, direction, margin)


def wilson(count: int, total: int, *, z: float = 1.959964) -> tuple[float, float]:
    """Return Wilson's 95% interval of a share."""
    share = count / total
    centre = share + z * z / (2 * total)
    half = z * np.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    return float((centre - half) / scale), float((centre + half) / scale)
