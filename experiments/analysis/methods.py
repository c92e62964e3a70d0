"""Names, colours and markers of a study's methods, from the study's facts."""

from dataclasses import dataclass
from typing import Any

from experiments.specs.run import Treatment
from experiments.specs.schema import PlannedStudy

INK = "#1b1f24"
DENSE = "dense"
#: Names, colours and markers of known algorithms: Okabe and Ito's colour-blind-safe set.
ALGORITHMS = {
    DENSE: ("Dense", "#7F7F7F", "o"),
    "static": ("Static", "#D55E00", "s"),
    "set": ("SET", "#009E73", "^"),
    "rigl": ("RigL", "#0072B2", "D"),
    "granet": ("GraNet", "#E69F00", "v"),
    "gmp": ("GMP", "#CC79A7", "P"),
}
FAMILIES = {
    "wide": ("Sparse-Wide", "#332288"),
    "parallel": ("Sparse-Parallel", "#44AA99"),
    "factorized": ("Sparse-Factorized", "#999933"),
    "doped": ("Sparse-Doped", "#AA4499"),
}
WIDE_COLORS = {"static": "#88CCEE", "set": "#117733", "granet": "#DDCC77"}


def algorithm_name(key: str) -> str:
    """The name of an algorithm for readers; its key where it has no other."""
    name, *_ = ALGORITHMS.get(key, (key,))
    return name


def _looks() -> dict[str, tuple[str, str]]:
    """Label to colour and marker; settings of one method share a colour."""
    looks = {label: (color, marker) for label, color, marker in ALGORITHMS.values()}
    for family, (title, color) in FAMILIES.items():
        for algorithm, (label, _, marker) in ALGORITHMS.items():
            own = WIDE_COLORS.get(algorithm, color) if family == "wide" else color
            looks[f"{title} {label}"] = (own, marker)
    for suffix, marker in {"retuned": "*", "rare updates": "<"}.items():
        looks |= {f"{label}, {suffix}": (color, marker) for label, (color, _) in looks.items()}
    return looks | {"Dense, same steps": (INK, "X"), "Sparse-Wide iso": ("#AA3377", ">")}


LOOKS = _looks()
#: For other labels, in the order of the study: colours that people with any of the three colour
#: vision deficiencies tell from each other and from those of the known algorithms.
SPARE_COLORS = (
    "#9900FF", "#990000", "#000000", "#663366", "#FF33FF", "#CCCC99",
    "#99CC66", "#6633CC", "#336633", "#FF00CC", "#0099FF", "#993399",
)  # fmt: skip
SPARE_MARKERS = ("X", "<", ">", "p", "h", "*", "d", "o", "s", "^", "D", "v", "P")


@dataclass(frozen=True)
class Method:
    """One method of a study.

    Attributes:
        name: What people read: its label, else family and algorithm. Methods of one name differ in
            sparsity only.
        family: Sparse-IFT family, None without one.
        first: Method whose weights it starts from, None if it starts from scratch.
        is_plain: Whether the name says all about it but its sparsity.
        marker: Matplotlib marker; it carries the same information without colour.
    """

    key: str
    name: str
    algorithm: str = DENSE
    family: str | None = None
    sparsity: float = 0.0
    first: str | None = None
    retuned: bool = False
    is_plain: bool = False
    color: str = SPARE_COLORS[0]
    marker: str = SPARE_MARKERS[0]


class Methods:
    """The methods of a study by key; a key that the study does not know stands for itself."""

    def __init__(self, study: PlannedStudy) -> None:
        self._methods: dict[str, Method] = {}
        self._looks = dict(LOOKS)
        taken = {name for own in study.methods.values() for name in (_title(own), own.label)}
        self._free = [
            color for color in SPARE_COLORS
            if color not in {LOOKS[label][0] for label in taken if label in LOOKS}
        ]  # fmt: skip
        seen: set[tuple[str, float]] = set()
        for key, own in study.methods.items():
            title, start = _title(own), own.starts_from
            label = own.label or (f"{title}, retuned" if own.retuned else "")
            place = (title, own.final_sparsity)
            is_plain = not label and start is None and place not in seen
            if is_plain:
                seen.add(place)
            self._add(
                key,
                label or (title if is_plain else key),
                algorithm=own.algorithm,
                family=own.family,
                sparsity=own.final_sparsity,
                first=start and start.method,
                retuned=own.retuned,
                is_plain=is_plain,
            )

    def _add(self, key: str, name: str, **facts: Any) -> Method:
        if name not in self._looks:
            count = len(self._looks) - len(LOOKS)
            spare = (self._free or SPARE_COLORS, SPARE_MARKERS)
            color, marker = (each[count % len(each)] for each in spare)
            self._looks[name] = (color, marker)
        color, marker = self._looks[name]
        self._methods[key] = Method(key, name, color=color, marker=marker, **facts)
        return self._methods[key]

    def __getitem__(self, key: str) -> Method:
        """The method of a key."""
        return self._methods.get(key) or self._add(key, algorithm_name(key), algorithm=key)

    def treatment(self, key: str, sparsity: float) -> str:
        """A label such as ``RigL 80%``; the name alone at sparsity 0."""
        name = self[key].name
        return name if sparsity == 0 else f"{name} {100 * sparsity:g}%"

    def line(self, key: str) -> str:
        """The first method of the same name, which stands for all sparsities of it."""
        name = self[key].name
        return next(other.key for other in self._methods.values() if other.name == name)

    def settings_of(self, key: str) -> str:
        """The first method of which this one is a setting.

        Settings of one method have its algorithm, its name up to a comma, and with a family its
        size.
        """

        def facts(own: Method) -> tuple[Any, ...]:
            size = own.sparsity if own.family else None
            return own.algorithm, own.name.split(",")[0], own.first, own.family, size

        wanted = facts(self[key])
        return next(own.key for own in self._methods.values() if facts(own) == wanted)

    def phases(self, key: str) -> tuple[float, str] | None:
        """Sparsity of pre-training and kind of fine-tuning; None for a single phase."""
        own = self[key]
        if own.first is None:
            return None
        return self[own.first].sparsity, "sparse" if own.sparsity else "dense"


def _title(own: Treatment) -> str:
    """Family and algorithm in words."""
    name = algorithm_name(own.algorithm)
    return name if own.family is None else f"{FAMILIES.get(own.family, (own.family,))[0]} {name}"
