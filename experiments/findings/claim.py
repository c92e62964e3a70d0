"""A result of the sources as data: who published it where, and which arms are compared."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import AfterValidator, Field, PositiveFloat, ValidationError, model_validator

from experiments.errors import UserError, not_one_of
from experiments.specs.code import ROOT
from experiments.specs.schema import Scale, module_names
from experiments.strict import Strict, first_problem, read_yaml

FOLDER = Path(__file__).parent
NINE = FOLDER / "nine"
FIGURES = ROOT / "experiments" / "analysis" / "figures"
MOST_SUPPORTING = 16


class Source(Strict):
    """An entry of the bibliography."""

    name: str = Field(description="what a link says")
    title: str
    address: str = Field(pattern="^https?://")


@functools.cache
def sources() -> dict[str, Source]:
    """The bibliography, by the key that results name."""
    read = yaml.safe_load((FOLDER / "sources.yaml").read_text(encoding="utf-8"))
    return {key: Source.model_validate(entry) for key, entry in read.items()}


def _known_source(key: str) -> str:
    if key not in sources():
        raise ValueError(not_one_of("source", key, sources(), "experiments/findings/sources.yaml"))
    return key


SourceKey = Annotated[str, AfterValidator(_known_source)]


class Published(Strict):
    """An effect as its source prints it, arm a minus arm b."""

    value: float | None = Field(None, description="None where it is not readable")
    of: PositiveFloat | None = Field(
        None, description="value of arm b; with it effects are compared as shares of theirs"
    )
    says: str = Field(description="the cell of the table")
    source: SourceKey
    where: str = Field(description="table or figure")


class Outcome(Strict):
    """The measurement on each run that arms are compared by."""

    metric: str
    split: Literal["train", "validation", "test"] | None = Field(description="None: over several")
    unit: str = Field(description="of an effect, in words")
    better: Literal["lower", "higher"]
    times: float = Field(1.0, description="records to the unit: 100 for shares in percent")
    noun: str = Field(description="what an axis says")

    @property
    def sign(self) -> int:
        """1 where a positive effect is the better one."""
        return 1 if self.better == "higher" else -1


class Place(Strict):
    """A workload, and where it needs them the arms on it."""

    models: list[str] = Field(description="labels; several are strata of one estimate")
    data: str
    budget: PositiveFloat = Field(description="tokens or epochs")
    stable: bool = Field(False, description="whether the rate is constant and then decays")
    a: list[str] | None = None
    b: list[str] | None = None
    b_model: str | None = Field(None, description="the model of arm b, where it is another one")
    b_budget: PositiveFloat | None = Field(None, description="of arm b, where it is another one")
    label: str = ""
    scale: Scale | None = Field(None, description="where its runs are, if not at the page's")
    rates: Literal["own"] | None = Field(None, description="where the claim's are shared")
    planned: int = Field(0, description="seeds of each arm, where the claim's are others")
    seen: list[int] = Field([], description="seeds that were read before n was fixed")
    registered: str | None = Field(
        None, description="the day on which n was fixed, before the runs"
    )


class Comparison(Strict):
    """Arm a against arm b: each a list of methods, the first of which a workload has is taken."""

    label: str = ""
    a: list[str] = []
    b: list[str] = []
    published: Published | None = None
    direction: Literal["lower", "higher"] | None = Field(
        None, description="of a against b as published; the better one if it is not given"
    )
    places: dict[Scale, list[Place]] = Field(
        {}, description="workloads, the primary one first; the first that is trained is taken"
    )
    trend: dict[Scale, list[Place]] = Field({}, description="other sparsities or budgets")
    equal_flops: bool = Field(False, description="whether unequal training FLOPs are no fair test")


class Check(Strict):
    """Numbers that follow by computing, without a trained run."""

    computation: str
    table: str
    ours: str
    published: str
    rows: str = Field(description="query of the rows that count")
    says: str = Field(description="what is compared, in words")
    shown: str = Field("", description="query of the rows whose values of ours stand in the row")


def _known_figure(name: str) -> str:
    known = module_names(FIGURES)
    if name.rpartition(".")[2] not in known:
        raise ValueError(not_one_of("figure", name, known, "experiments/analysis/figures"))
    return name


class Card(Strict):
    """The content of its card on the front page besides the effect."""

    table3: bool = Field(False, description="whether it has the library blog's Table 3")
    figures: list[Annotated[str, AfterValidator(_known_figure)]] = Field(
        [], description="of its study, or study.figure"
    )
    sizes: str = Field("", description="weights and data, here / in the source")
    differs: str = ""
    doubt: str = ""


class Claim(Comparison):
    """A result of the sources."""

    name: str
    title: str
    short: str = Field("", description="its name in the headline")
    says: str = Field(description="what the source claims, in our words")
    source: SourceKey
    where: str
    study: str = Field(description="whose page has the details")
    outcome: Outcome | None = None
    interest: PositiveFloat = Field(1.0, description="smallest effect of interest, in the unit")
    limit: str = Field("", description="half of it in words, where the effect is a cost")
    planned: int = Field(0, description="seeds of each arm, fixed before the runs")
    rates: Literal["own", "shared"] = Field(
        "own", description="shared: one learning rate, the dense model's, as in the source"
    )
    never: str | None = Field(None, description="why no run of these sizes can test it")
    links: list[Comparison] = Field([], description="several comparisons, each with its own word")
    check: Check | None = None
    card: Card = Card()

    @model_validator(mode="after")
    def complete(self) -> Self:
        """A trained comparison needs an outcome and two arms, unless it is a check."""
        if self.check is None and self.outcome is None:
            raise ValueError("one of outcome and check must be given")
        if self.check is None and not (self.links or (self.a and self.b)):
            raise ValueError("one of a with b, links and check must be given")
        return self

    def comparisons(self) -> list[Comparison]:
        """Its links with what they take over from the claim; the claim itself without links."""
        shared = {key: getattr(self, key) for key in Comparison.model_fields}
        own = [shared | {k: getattr(link, k) for k in link.model_fields_set} for link in self.links]
        return [Comparison.model_validate(each) for each in own or ([shared] if self.a else [])]


def _read(path: Path, entry: Any) -> Claim:
    try:
        return Claim.model_validate(entry)
    except ValidationError as error:
        raise UserError(f"{path.name}: {': '.join(first_problem(error))}") from None


@functools.cache
def nine() -> tuple[Claim, ...]:
    """The results of the sources, in their order."""
    return tuple(
        _read(path, read_yaml(path.read_text(encoding="utf-8")))
        for path in sorted(NINE.glob("*.yaml"))
    )


@functools.cache
def supporting() -> tuple[Claim, ...]:
    """Further claims, each with a name of its own."""
    path = FOLDER / "supporting.yaml"
    found = tuple(
        _read(path, entry) for entry in read_yaml(path.read_text(encoding="utf-8"))["claims"]
    )
    names = [claim.name for claim in (*nine(), *found)]
    if len(found) > MOST_SUPPORTING or len(set(names)) < len(names):
        raise UserError(f"{path.name}: at most {MOST_SUPPORTING} claims, each with its own name")
    return found
