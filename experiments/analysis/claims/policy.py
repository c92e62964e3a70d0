"""The policy of verdicts: from a claim's test to the word that stands in the ledger.

``docs/policy.md`` states the rules for readers of a report. In short:

* A claim is tested in both directions at the same level. The two-sided p value of a direction is
  twice its one-sided one, so a direction is significant where the two-sided interval shown with it
  leaves out what the opposite allows.
* Primary claims of all studies are one family, corrected by Holm (1979): the chance of any false
  verdict among them is at most `ALPHA`. They may *hold* or be *contradicted*.
* Exploratory claims of all studies are another, corrected by Benjamini and Hochberg (1995): among
  what they suggest, at most a share of `ALPHA` is expected to be false. The evidence *suggests* or
  *suggests against* them.
* Claims whose tests are one and the same, by the hash of what decides them, are one member of their
  family and share its corrected p value.
* A planned claim without all of its seeds is a member of its family with a p value of 1. So what
  other studies find can make a verdict stronger, and never takes one back.
* A verdict needs `MIN_SEEDS` paired seeds, and all of those whose number was registered in
  advance: before these are there the difference is shown and not judged. A test that was changed
  after its runs were there is *post hoc*: it can suggest, never decide.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from experiments.analysis.stats import benjamini_hochberg, holm

ALPHA = 0.05
MIN_SEEDS = 5

HOLDS, CONTRADICTED = "holds", "contradicted"
SUGGESTS, SUGGESTS_AGAINST = "suggests", "suggests against"
INCONCLUSIVE, NOT_TESTED = "inconclusive", "not tested"
#: Of a statement that takes no side: its difference and interval are shown, nothing is judged.
OPEN_QUESTION = "open question"
#: All words of the ledger, from the strongest for a claim to none.
VERDICTS = (
    HOLDS,
    SUGGESTS,
    INCONCLUSIVE,
    SUGGESTS_AGAINST,
    CONTRADICTED,
    OPEN_QUESTION,
    NOT_TESTED,
)


@dataclass(frozen=True)
class Evidence:
    """A claim's test before any correction.

    Attributes:
        name: Id of the claim.
        is_primary: Whether it belongs to the family of primary claims.
        p: One-sided p value for the claim, in [0, 1]; NaN where no t test exists.
        p_opposite: One-sided p value for its opposite.
        num_seeds: Paired seeds.
        num_registered: Seeds that the claim is read at, where that was fixed in advance.
        post_hoc: Why the test does not count as registered before its runs; empty if it does.
        test: Hash of the test; claims that share it are one member of their family. Empty for a
            test of this claim alone.
    """

    name: str
    is_primary: bool
    p: float
    p_opposite: float
    num_seeds: int
    num_registered: int = MIN_SEEDS
    post_hoc: str = ""
    test: str = ""

    @property
    def member(self) -> str:
        """What counts once in the family: the test, or the claim where it has its own."""
        return self.test or self.name

    @property
    def is_whole(self) -> bool:
        """Whether all seeds are there that a verdict needs."""
        return self.num_seeds >= max(MIN_SEEDS, self.num_registered)


@dataclass(frozen=True)
class Verdict:
    """The word for a claim, the sentence that explains it, and the corrected two-sided p value."""

    word: str
    why: str
    p_adjusted: float


def two_sided(test: Evidence) -> float:
    """Two-sided p value of the direction that the data lean to; NaN where no t test exists."""
    if math.isnan(test.p) or math.isnan(test.p_opposite):
        return math.nan
    return min(1.0, 2 * min(test.p, test.p_opposite))


def verdicts(
    tests: Iterable[Evidence], *, num_primary: int = 0, num_exploratory: int = 0
) -> dict[str, Verdict]:
    """Judge all claims of a scale together.

    Args:
        tests: The tested claims.
        num_primary: Number of different tests in the family of primary claims, where more were
            planned than are tested; those count as tests with a p value of 1, as do tests that are
            not whole.
        num_exploratory: The same for exploratory ones.

    Returns:
        Claim id to verdict, in the order given.
    """
    tests = list(tests)
    families: dict[bool, dict[str, float]] = {True: {}, False: {}}
    for test in tests:
        counted = two_sided(test) if test.is_whole else 1.0
        families[test.is_primary][test.member] = counted
    primary, exploratory = families[True], families[False]
    adjusted = {
        True: holm(primary, count=max(num_primary, len(primary))),
        False: benjamini_hochberg(exploratory, count=max(num_exploratory, len(exploratory))),
    }
    return {test.name: _judge(test, adjusted[test.is_primary][test.member]) for test in tests}


def _judge(test: Evidence, adjusted: float) -> Verdict:
    if test.num_seeds < MIN_SEEDS:
        noun = "seed" if test.num_seeds == 1 else "seeds"
        why = f"{test.num_seeds} paired {noun}; a verdict needs {MIN_SEEDS}"
        return Verdict(INCONCLUSIVE, why, math.nan)
    if test.num_seeds < test.num_registered:
        why = f"{test.num_seeds} of the {test.num_registered} seeds that it is read at are there"
        return Verdict(INCONCLUSIVE, why, math.nan)
    if math.isnan(adjusted):
        return Verdict(INCONCLUSIVE, "all differences are equal, so no t test exists", adjusted)
    is_for = test.p <= test.p_opposite
    family = (
        "Holm over all primary claims"
        if test.is_primary
        else "Benjamini-Hochberg over all exploratory claims"
    )
    why = (
        f"two-sided p = {two_sided(test):.2g} {'for the claim' if is_for else 'for the opposite'}, "
        f"{adjusted:.2g} after {family}"
    )
    if adjusted > ALPHA:
        return Verdict(INCONCLUSIVE, why, adjusted)
    if test.is_primary and not test.post_hoc:
        return Verdict(HOLDS if is_for else CONTRADICTED, why, adjusted)
    if test.post_hoc:
        why += f"; post hoc: {test.post_hoc}"
    return Verdict(SUGGESTS if is_for else SUGGESTS_AGAINST, why, adjusted)


def registered(name: str, test_hash: str, registrations: Mapping[str, Mapping]) -> str:
    """Why a claim's test is post hoc; empty if it is as it was registered before its runs.

    Args:
        name: Id of the claim.
        test_hash: Hash of its entry in ``tests.yaml``.
        registrations: ``registrations.yaml``: claim id to its entry.
    """
    entry = registrations.get(name)
    if entry is None:
        return "the test is not registered"
    if entry["test"] != test_hash:
        return f"the test differs from the one registered on {entry['registered']}"
    return str(entry.get("post_hoc", ""))
