"""Comparisons and what they found, in words."""

import math
from collections.abc import Sequence

from experiments.analysis import stats
from experiments.analysis.claims import policy
from experiments.analysis.claims.links import Namer, name_of, sides_of
from experiments.analysis.claims.policy import CONTRADICTED, HOLDS, INCONCLUSIVE
from experiments.specs.run import Run
from experiments.specs.schema import ClaimTest, Comparison

#: Units of metrics whose names do not say them.
UNITS = {"loss": "nats", "bleu": "BLEU", "bits_per_byte": "bits per byte"}
SIGNS = {"less": "<", "greater": ">", "differ": "differs from", "equal": "equals"}


def words_of(test: ClaimTest, links: list[Comparison], name: Namer = name_of) -> str:
    """Return the machine form of a claim in words, with its note."""
    if test.order is not None:
        words = f"{test.metric}: " + " < ".join(map(name, test.order))
    else:
        words = "; ".join(describe(link, name) for link in links)
    return words if test.note is None else f"{words} ({test.note})"


def describe(link: Comparison, name: Namer = name_of) -> str:
    """Return the machine form of a comparison in words."""
    if link.collapse is not None:
        split = f"{link.split} " if link.split else ""
        return (
            f"{_collapsed(link, name)} with {split}{link.metric} below "
            f"{link.collapse.below:g} of the median, above {link.collapse.rate:g}"
        )
    sides = f" {SIGNS[link.direction or '']} ".join(_sides(link, name))
    size = link.margin
    margin = f" by at least {size:g}" if size > 0 else f", {-size:g} allowed" if size else ""
    margin = f" within {size:g}" if link.direction == "equal" else margin
    split = f"{link.split} " if link.split else ""
    return f"{split}{link.metric}: {sides}{margin}"


def difference(link: Comparison, name: Namer = name_of) -> str:
    """Return what the effect of a comparison is, in words."""
    return _collapsed(link, name) if link.collapse else f"{link.metric}: {minus(link, name)}"


def minus(link: Comparison, name: Namer = name_of) -> str:
    """Return what is subtracted from what, by the names of the sides."""
    return " minus ".join(_sides(link, name))


def _collapsed(link: Comparison, name: Namer) -> str:
    return f"share of seeds of {name(link.a or {})}"


def _sides(link: Comparison, name: Namer) -> list[str]:
    """Names of what is compared: two selections, or two differences of selections."""
    if link.gaps is not None:
        return [f"({name(a)} minus {name(b)})" for a, b in link.gaps]
    return [name(side) for side in sides_of(link)]


def alone(pair: stats.Paired) -> str:
    """Return the word for a comparison that stands alone: no correction, from three seeds on."""
    if pair.num_seeds < stats.MIN_SEEDS or math.isnan(pair.p):
        return INCONCLUSIVE
    if 2 * min(pair.p, pair.p_opposite) > policy.ALPHA:
        return INCONCLUSIVE
    return HOLDS if pair.p <= pair.p_opposite else CONTRADICTED


def link_alone(
    link: Comparison, pair: stats.Paired, name: Namer = name_of, *, names_metric: bool
) -> str:
    """Return a link's effect and its word, as if there were no other."""
    metric = f"{link.metric}: " if names_metric else ""
    return f"{metric}{minus(link, name)} {effect_of(pair, unit_of(link))} {alone(pair)}"


def effect_of(pair: stats.Paired, unit: str = "") -> str:
    """Return an effect with its unit, the means behind it and its interval, where there are any."""
    means = f" ({means_of(pair)})" if means_of(pair) else ""
    interval = "" if math.isnan(pair.low) else f" [{pair.low:.3g}, {pair.high:.3g}]"
    return f"{pair.effect:+.3g}{f' {unit}' if unit else ''}{means}{interval}"


def unit_of(link: Comparison) -> str:
    """Return the unit of a comparison's effect; empty where the metric's name is all."""
    return "" if link.collapse else UNITS.get(link.metric or "", "")


def means_of(pair: stats.Paired) -> str:
    """Return the means of both sides, to two digits of their difference or more; empty without."""
    if any(map(math.isnan, pair.means)):
        return ""
    size = abs(pair.effect)
    decimals = min(6, max(1, 1 - math.floor(math.log10(size)))) if size > 0 else 4
    a, b = (f"{mean + 0.0:.{decimals}f}" for mean in pair.means)
    return f"{a} against {b}"


def replication(where: str, pair: stats.Paired) -> str:
    """Return what the same comparison gives on another workload."""
    seeds = f"{pair.num_seeds} {'seed' if pair.num_seeds == 1 else 'seeds'}"
    return f"{where}: {alone(pair)}, {effect_of(pair)}, {seeds}"


def waits_for(runs: Sequence[Run]) -> str:
    """Return how many planned runs are missing and what they cost; empty if none is."""
    if not runs:
        return ""
    hours = sum(run.core_seconds for run in runs) / 3600
    noun = "run" if len(runs) == 1 else "runs"
    return f"; {len(runs)} {noun} missing, about {hours:.2g} core-hours planned"


def no_runs(names: list[str], links: list[Comparison]) -> str:
    """Return the sentence for sides of which there is no run."""
    metrics = " and ".join(dict.fromkeys(link.metric or "" for link in links))
    return f"this scale has no finished run of {' or '.join(dict.fromkeys(names))} with {metrics}"
