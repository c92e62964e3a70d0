"""A result on a page: its row, its card and the words of its numbers, as Markdown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pandas as pd

from experiments.analysis.figures import caption
from experiments.analysis.methods import algorithm_name
from experiments.findings import ledger
from experiments.findings.claim import Claim, sources
from experiments.findings.estimate import (
    NO_TEST,
    OPEN,
    OPPOSITE,
    SAME,
    SMALLER,
    Arm,
    Estimate,
    estimate,
)  # fmt: skip
from experiments.findings.evidence import Evidence
from experiments.findings.ledger import AGREES, DIFFERS, Finding
from experiments.report.text import in_minutes, in_words
from experiments.specs.lookup import rerun_command
from experiments.store import paths, verification
from experiments.store.reference import entries

#: Digits after the point by unit.
DIGITS = {"nats": 3, "points": 1, "perplexity": 2, "BLEU": 1}
#: Cells of tables that say nothing.
UNKNOWN = ("–", "")
COLUMNS = ["claim", "label", "word", "effect", "low", "high", "unit", "target", "seeds", "workload"]
#: Methods of the source's Table 3 in its order; ours follow.
TABLE3 = ("dense", "static", "set", "rigl", "granet", "gmp")


def number(value: float, digits: int) -> str:
    """A signed number with a minus sign; nothing for NaN."""
    return "–" if math.isnan(value) else f"{value:+.{digits}f}".replace("-", "−")


def effect(found: Estimate, unit: str) -> str:
    """An effect with its 95% interval and unit."""
    digits = DIGITS.get(unit, 2)
    text = number(found.effect, digits)
    if found.has_interval:
        text += f" [{number(found.low, digits)}, {number(found.high, digits)}]"
    return f"{text} {unit}"


def link(key: str) -> str:
    """A source's name with its address."""
    source = sources()[key]
    return f"[{source.name}]({source.address})"


def published(found: Finding) -> str:
    """The source's own number, linked."""
    said = found.comparison.published or found.claim.published
    if said is None:
        return f"a statement ({link(found.claim.source)})"
    return f"{said.says} ({link(said.source)}, {said.where})"


def ours(found: Finding) -> str:
    """Our effect, or that there is none to read."""
    if found.claim.check is not None:
        return found.word.reason
    if found.estimate is None or not found.is_fair or found.claim.outcome is None:
        return "–"
    a, b = found.estimate.seeds
    seeds = str(a) if a == b else f"{a} and {b}"
    return f"{effect(found.estimate, found.claim.outcome.unit)}, {seeds} seeds"


def relative(found: Finding) -> tuple[str, str]:
    """Published and our effect as a share of arm b, for a cell; empty for points."""
    said, outcome = found.comparison.published, found.claim.outcome
    if outcome is None or outcome.unit == "points":
        return "", ""
    theirs = 100 * said.value / said.of if said and said.value and said.of else math.nan
    mine = found.share[0] if found.is_fair else math.nan
    return _side(outcome.sign * theirs), _side(outcome.sign * mine)


def _side(gain: float) -> str:
    """A gain in percent, in words and brackets; empty for NaN."""
    side = "worse" if gain < 0 else "better"
    return "" if math.isnan(gain) else f" ({abs(gain):.1f}% {side})"


def word(found: Finding) -> str:
    """The word in bold, and for no test its reason."""
    reason = f": {found.word.reason}" if found.word.word == NO_TEST else ""
    return f"**{found.word}**{reason}"


#: Signs of the answers, which are found faster than words.
SIGNS = {"yes": "✓", "in part": "◐", OPEN: "?", NO_TEST: "–", "no": "✗"}


def agrees(found: Finding) -> tuple[str, str]:
    """Whether ours agrees with the source, and in what.

    The answer is ``yes``, ``in part`` (worse at some of the other settings, or not by the seeds
    that were run after others were read), ``no``, `OPEN` or `NO_TEST`.
    """
    name, size, sides = found.word.word, found.word.size, _sides(found)
    said, times = found.comparison.published or found.claim.published, "the direction"
    if name == SAME and said and size:
        scaled = f"effect of {sources()[said.source].name} (as shares of the loss)"
        whose = scaled if said.of else "published effect"
        times = f"the direction, {found.ratio[0]:.1f} times the {whose}"
    if name == SAME and sides["worse"] and sides.total() > 2:
        worse = f"worse at {sides['worse']} of {sides.total()} other settings"
        return "in part", f"{times}, but {worse}"
    if name == SAME and size:
        return "yes", times
    if name == SMALLER and found.is_cost and found.claim.outcome and found.estimate:
        unit, side = found.claim.outcome.unit, math.copysign(1, found.target)
        seeds, limit = found.estimate.seeds[0], f"{abs(found.target) / 2:.2g} {unit}"
        limit += f" ({found.claim.limit})" * bool(found.claim.limit)
        kind = "sizes do not compare; "
        kind += f"with all {seeds} seeds the interval ends below our limit of {limit}"
        if (new := found.unseen) is not None and str(found.unseen_word) != str(found.word):
            most = f"{max(side * new.low, side * new.high):.{DIGITS.get(unit, 2)}f}"
            first = len(found.place.seen) if found.place else 0
            alone = f"with only the {new.seeds[0]} run after {first} were read it ends at {most}"
            return "in part", f"{kind}; {alone}"
        return "yes", kind
    return {
        SAME: ("yes", "the direction; sizes do not compare"),
        SMALLER: ("no", "at most half of it, or nothing"),
        OPPOSITE: ("no", "the opposite"),
        AGREES: ("yes", "arithmetic"),
        DIFFERS: ("no", "arithmetic"),
        NO_TEST: (NO_TEST, found.word.reason.replace(";", ":").split(":")[0]),
    }.get(name, (name, ""))


def short_word(found: Finding) -> str:
    """Whether ours agrees with the source: a sign, a word, and in what."""
    answer, kind = agrees(found)
    return f"{SIGNS[answer]} **{answer}**" + f": {kind}" * bool(kind)


def _sides(found: Finding) -> Counter[str]:
    """On how many other workloads arm a is better, unclear or worse."""
    sign = found.claim.outcome.sign if found.claim.outcome else 1
    return Counter(
        "unclear" if not e.low * e.high > 0 else "better" if sign * e.effect > 0 else "worse"
        for _, e in found.trend
    )


def trend(found: Finding) -> str:
    """The effect at other sparsities and budgets: of more than two the first, and how many lead."""
    outcome = found.claim.outcome
    if outcome is None or not found.trend:
        return "–"
    told = []
    for label, e in found.trend:
        gain, is_points = outcome.sign * e.effect, outcome.unit == "points"
        size = f"{abs(gain):.1f} points" if is_points else f"{100 * abs(gain / e.means[1]):.1f}%"
        side = f"{size} {'better' if gain > 0 else 'worse'}"
        told.append(f"{label}: {side if e.low * e.high > 0 else f'unclear ({side})'}")
    if len(told) < 3:
        return "; ".join(told)
    sides = _sides(found)
    counts = [f"{sides[side]} {side}" for side in ("better", "unclear", "worse") if sides[side]]
    below = ""
    if found.word.size in ("as large", "larger"):
        ends = [max(e.low / found.target, e.high / found.target) for _, e in found.trend]
        less = sum(end < 0.5 for end in ends)
        below = f"; separately, at {less} clearly below half of the published effect" * bool(less)
    return f"{', '.join(counts)} of {len(told)}{below}; for example {told[0]}"


def row(number: int, found: Finding, evidence: Evidence) -> list[str]:
    """A row of the nine: result, published, ours, whether they agree, sizes, gate, trend."""
    at = f"; {found.place.label}" if found.place and found.is_fair and found.place.label else ""
    theirs, mine = relative(found)
    return [
        f"{number}. [{found.claim.title}](#{found.claim.name})",
        published(found) + theirs,
        (few_shot(evidence) if found.claim.name == "few-shot" else ours(found)) + mine + at,
        short_word(found),
        trend(found),
        _filled(found.claim.card.sizes, facts(found, evidence)) or "–",
        "arithmetic" if found.claim.check is not None else found.gate.notes or "–",
    ]


def agreement(found: Finding, kept: Any) -> str:
    """Whether a finding agrees with the committed one; ``kept`` is its row."""
    if kept is None:
        return "–"
    mine, theirs = str(found.word), str(kept["word"])
    if mine.startswith(NO_TEST) or theirs.startswith(NO_TEST):
        return "–"
    if mine.split(",")[0] == theirs.split(",")[0]:
        return "yes"
    if found.is_fair and kept["low"] == kept["low"] and found.estimate is not None:
        same = found.estimate.effect * kept["effect"] > 0
        sure = found.estimate.low * found.estimate.high > 0 and kept["low"] * kept["high"] > 0
        return ("yes, by direction" if same else "no") if sure else "not resolved"
    return "not resolved"


def kept_text(kept: Any) -> str:
    """A committed finding in short."""
    if kept is None:
        return "–"
    if kept["effect"] != kept["effect"] or str(kept["word"]).startswith(NO_TEST):
        return str(kept["word"])
    digits = DIGITS.get(kept["unit"], 2)
    ends = f"[{number(kept['low'], digits)}, {number(kept['high'], digits)}]"
    return f"{number(kept['effect'], digits)} {ends} {kept['unit']}: {kept['word']}"


def facts(found: Finding, evidence: Evidence) -> dict[str, str]:
    """Numbers that the lines of a card may name; none where no run is compared."""
    if found.place is None:
        return {}
    runs, budget = evidence.runs.set_index("run").loc[list(found.runs)], found.place.budget
    base = runs[runs["transform"] == ""].index
    size = float(evidence.of_runs("num_parameters", base if len(base) else runs.index).max())
    numbers = {"weights": in_words(size), "tokens": in_words(budget), "epochs": f"{budget:g}"}
    work = evidence.of_runs("flops_executed", runs.index).to_numpy()
    work = work + evidence.of_runs("flops_executed", runs["first"]).fillna(0).to_numpy()
    own = pd.DataFrame({"work": work, "bleu": evidence.of_runs("bleu", runs.index).to_numpy()})
    is_a = runs["method"].isin(found.a).to_numpy()
    means = own.groupby(is_a).mean().reindex([True, False])
    numbers |= {
        "per_weight": f"{budget / size:.0f}",
        "flops": f"{means.work.div(means.work[False])[True]:.2f}",
    }
    return numbers | {"bleu_a": f"{means.bleu[True]:.1f}", "bleu_b": f"{means.bleu[False]:.1f}"}


def command(found: Finding, scale: str) -> str:
    """The command that repeats a result's runs, and compares them where all are committed."""
    if not found.runs:
        return f"snakemake reproduce --config scale={scale} study={found.claim.study}"
    again = rerun_command(found.runs)
    is_committed = {*found.runs} <= {*entries()}
    return again.replace("rerun", "verify", 1) if is_committed else again


def commands(found: Finding, evidence: Evidence) -> list[tuple[str, str]]:
    """Commands that repeat a result, each after its runs and minutes.

    Where all runs take long, the shortest run of arm a comes first. The minutes include the runs
    that others start from.
    """
    whole = command(found, evidence.scale)
    times = evidence.of_runs("wall_s", found.runs) / 60
    starts = evidence.runs.set_index("run")["first"].reindex(found.runs)
    before = evidence.of_runs("wall_s", starts).fillna(0) / 60
    total = times.sum() + before[~before.index.duplicated()].sum()
    if not total:
        return [("All of it", whole)]
    times += before.to_numpy()
    also = " and the runs they start from" if before.any() else ""
    rows = [(f"All {len(times)} runs{also}, {in_minutes(total)} of one core", whole)]
    if total > 10 and len(times) > 1:
        method = evidence.runs.set_index("run")["method"].loc[list(found.runs)]
        times = times[method.isin(found.a).to_numpy()]
        alone = rerun_command([str(times.idxmin())]).replace("rerun", "verify", 1)
        rows.insert(0, (f"One run, {in_minutes(times.min())}", alone))
    return rows


def means(found: Finding) -> str:
    """The means of both arms, in the unit of the effect."""
    if not found.is_fair or found.estimate is None or found.claim.outcome is None:
        return ""
    outcome = found.claim.outcome
    a, b = (f"{mean:.{DIGITS.get(outcome.unit, 2)}f}" for mean in found.estimate.means)
    return f"{a} against {b}" + ("%" if outcome.times == 100 else f" {outcome.unit.split(' (')[0]}")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table without the columns in which nothing is known."""
    known = [
        at for at in range(len(head)) if at == 0 or any(row[at] not in UNKNOWN for row in rows)
    ]
    lines = [[str(row[at]).replace("|", "/").replace("\n", " ") for at in known] for row in rows]
    lines = [[head[at] for at in known], ["---"] * len(known), *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def table3(found: Finding, evidence: Evidence) -> str:
    """The rows of Table 3 on the finding's workload: every method at its sparsity."""
    if found.place is None or found.estimate is None or found.claim.outcome is None:
        return ""
    rows, values = evidence.at(found.place), evidence.values(found.claim.outcome)
    own = rows["run"].isin(found.runs)
    level = rows.loc[own, "sparsity"].max()
    rows = rows[rows["data"].isin(rows.loc[own, "data"])]
    rows = rows[(rows["transform"] == "") & (rows["first"] == "")]
    cells = evidence.cells(rows, values)

    def most_seeds(algorithm: str) -> Arm | None:
        """The arm of an algorithm at its sparsity with most seeds."""
        wanted = rows["sparsity"] == (0.0 if algorithm == "dense" else level)
        methods = set(rows.loc[wanted & (rows["algorithm"] == algorithm), "method"])
        arms = [arm for arm in cells if arm.method in methods]
        return max(arms, key=lambda arm: len(cells[arm]), default=None)

    lines, static = [], most_seeds("static")
    for name in TABLE3:
        if (arm := most_seeds(name)) is None:
            continue
        mean, against, better = sum(cells[arm].values()) / len(cells[arm]), "", ""
        if static is not None and arm != static:
            e = estimate(cells, [(arm, static)], sign=-1)
            against, better = effect(e, "nats"), f"{e.better:.2f}"
        runs = rows.loc[rows["method"] == arm.method, "run"]
        ratio = evidence.of_runs("flops_ratio", runs).mean()
        sparsity = "–" if name == "dense" else f"{100 * level:g}%"
        line = [algorithm_name(name), sparsity, f"{math.exp(mean):.1f}", against, better]
        lines.append([*line, f"{ratio:.2f}", str(len(cells[arm]))])
    head = ["method", "sparsity", "perplexity here", "loss minus Static"]
    return table([*head, "P(better than Static)", "FLOPs of dense", "seeds"], lines)


def few_shot(evidence: Evidence, *, whole: bool = False) -> str:
    """The few-shot scores in a cell, or by method in a sentence."""
    scores = evidence.scores[evidence.scores["metric"] == "leaderboard_mean"]
    rows = scores.merge(evidence.runs, on="run").query("sparsity in (0.0, 0.8)")
    if rows.empty:
        return "No few-shot score was measured at this scale." if whole else "–"
    level, noise = 100 * rows["chance"].mean(), 100 * rows["stderr"].mean()
    means = 100 * rows.groupby("algorithm")["value"].mean()
    if not whole:
        return f"{means.min():.1f} to {means.max():.1f}% for all methods, chance {level:.1f}%"
    parts = ", ".join(f"{algorithm_name(name)} {value:.1f}%" for name, value in means.items())
    return (
        f"Chance is {level:.1f}%, the standard error of a run {noise:.1f} points, which more seeds "
        f"do not lower, since all answer the same questions: {parts}."
    )


def card(found: Finding, evidence: Evidence, pictures: dict[str, str]) -> dict[str, Any]:
    """A result's card."""
    claim, shown = found.claim, found.claim.card
    known = facts(found, evidence)
    body = [table3(found, evidence)] if shown.table3 else []
    if claim.name == "few-shot":
        body.append(few_shot(evidence, whole=True))
    unit = claim.outcome.unit if claim.outcome else ""
    is_told = found.word.word == NO_TEST or (found.word.word == SMALLER and found.is_cost)
    if found.trend and claim.outcome is not None:
        head = ["where", f"effect ({claim.outcome.better} is better)", "P(better)", "seeds"]
        lines = [
            [label, effect(e, unit), _better(e), "{} and {}".format(*e.seeds)]
            for label, e in found.trend
        ]
        body.append(table(head, lines))
    if found.unseen is not None:
        count = found.unseen.seeds[0]
        alone = f"{effect(found.unseen, unit)}, {found.unseen_word}"
        body.append(f"The {count} seeds trained after registration, alone: {alone}.")
    return {
        "name": claim.name,
        "title": claim.title,
        "says": claim.says,
        "study": claim.study,
        "where": found.place.label if found.place is not None and found.is_fair else "",
        "means": means(found),
        "paired": _paired(found.estimate, unit),
        "source": f"{link(claim.source)}, {claim.where}",
        "published": published(found),
        "ours": ours(found),
        "agrees": short_word(found),
        "reason": "" if claim.check or is_told else found.word.reason,
        "better": f"{found.estimate.better:.2f}" if found.is_fair and found.estimate else "",
        "badge": _badge(found),
        "body": [part for part in body if part],
        "pictures": [
            (caption(name.rpartition(".")[2]), pictures[name])
            for name in shown.figures
            if name in pictures
        ],
        "differs": _filled(shown.differs, known),
        "doubt": _filled(shown.doubt, known),
        "verified": verification.repeats(found.runs),
        "commands": commands(found, evidence),
    }


def _paired(found: Estimate | None, unit: str) -> str:
    """The interval that a paired one stands in place of."""
    if found is None or found.unpaired is None:
        return ""
    low, high = (number(end, DIGITS.get(unit, 2)) for end in found.unpaired)
    return f"Paired by seed; unpaired [{low}, {high}]."


def _better(found: Estimate) -> str:
    """P(better), of three seeds or more."""
    return f"{found.better:.2f}" if min(found.seeds) > 2 else "–"


def _filled(line: str, known: dict[str, str]) -> str:
    """A line of a card with its numbers; empty where it names one that is not known."""
    return line.format(**known) if known or "{" not in line else ""


def _badge(found: Finding) -> str:
    place = found.place
    if place is None or not (place.registered or place.seen):
        return ""
    if not place.registered:
        return "some seeds were added after a first look"
    seen = f", after seeds {', '.join(map(str, place.seen))} were read" if place.seen else ""
    return f"registered {place.registered}{seen}"


def workload(found: Finding) -> str:
    """The models of a comparison and how long they train, in words."""
    place = found.place
    if place is None:
        return "–"
    models = " against ".join(filter(None, [", ".join(place.models), place.b_model]))
    budget = max(place.budget, place.b_budget or 0)
    return f"{models}, {in_words(budget)} {'epochs' if budget < 10_000 else 'tokens'}"


def supporting(evidence: Evidence, study: str = "") -> list[tuple[Claim, str]]:
    """The supporting claims, of a study or all, each with its table."""
    found = []
    for group in ledger.supporting(evidence, study):
        lines = []
        for each in group:
            label, said = each.comparison.label or each.claim.title, each.comparison.published
            verdict = "; ".join(filter(None, [word(each), _badge(each)]))
            on, says = workload(each), said.says if said else "–"
            lines.append([label, on, says, ours(each), verdict])
        made = table(["comparison", "trained", "published", "here", "verdict"], lines)
        found.append((group[0].claim, made))
    return found


def findings_table(findings: list[Finding]) -> pd.DataFrame:
    """Findings as rows; the columns are `COLUMNS`."""
    rows = []
    for found in findings:
        claim, e, place = found.claim, found.estimate, found.place
        row: dict[str, Any] = {"claim": claim.name, "label": found.comparison.label}
        row |= {"word": str(found.word), "target": found.target}
        if e is not None and place is not None:
            row |= {"effect": e.effect, "low": e.low, "high": e.high}
            row |= {"seeds": "{} and {}".format(*e.seeds)}
            row |= {"workload": f"{', '.join(place.models)} on {place.data}, {place.budget:g}"}
            row |= {"unit": claim.outcome.unit if claim.outcome else ""}
        rows.append(row)
    return pd.DataFrame(rows, columns=COLUMNS)


def reference() -> pd.DataFrame | None:
    """The committed findings by the name of their claim; None before there are any."""
    path = paths.REFERENCE / "findings.csv"
    return pd.read_csv(path).set_index("claim") if path.is_file() else None


def summary(findings: Sequence[Finding]) -> str:
    """Which results agree, by name and number in the table."""
    by_answer: dict[str, list[str]] = {}
    for number, found in enumerate(findings, 1):
        answer, kind = agrees(found)
        size = kind.removeprefix("the direction").lstrip(",; ").split(" (")[0]
        note = f": {size}" * (answer in ("yes", "no"))
        named = f"{found.claim.short or found.claim.title} ({number}{note})"
        by_answer.setdefault(answer, []).append(named)
    agree = by_answer.pop("yes", [])
    parts = [f"Ours agree with {len(agree)} of {len(findings)} published results in direction"]
    parts[0] += f": {', '.join(agree)}" * bool(agree)
    names = {"in part": "In part", OPEN: "Not resolved", NO_TEST: "No fair test", "no": "Disagree"}
    parts += [
        f"{said}: {', '.join(by_answer.get(name, ['none']))}"
        for name, said in names.items()
        if name in by_answer or name == "no"
    ]
    return ". ".join(parts) + "."
