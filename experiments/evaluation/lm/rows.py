"""Token sequences are packed into rows, where those that begin alike share their beginning.

The choices of a question share the question, the sentences of a minimal pair their first words. A
row holds the tokens of a prefix tree, each before its continuations: a token sees those it
continues and itself, and its position is the number of tokens that it continues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from os.path import commonprefix

#: Rows are filled up to this many tokens; long enough to share beginnings and leave no padding,
#: short enough that attention, which grows with the row, stays a small part of the work.
FILLED = 96
#: Beyond that a sequence joins a row where this saves at least such a share of its tokens.
WORTHWHILE = 0.2


@dataclass
class Row:
    """A prefix tree of sequences, as the model is fed it.

    Attributes:
        tokens: of all sequences, common ones once.
        positions: of each token in its sequences.
        ends: for each token, where the tokens that continue it end.
        paths: for each sequence, the places of its tokens in the row.
        members: for each sequence, the indices of the spans that have it as inputs.
    """

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    paths: list[list[int]] = field(default_factory=list)
    members: list[list[int]] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Number of tokens."""
        return len(self.tokens)

    def add(self, inputs: Sequence[int], common: int, members: list[int]) -> None:
        """Append a sequence that has its first ``common`` tokens from the one before."""
        begin, added = self.length, len(inputs) - common
        path = [*(self.paths[-1][:common] if common else ()), *range(begin, begin + added)]
        self.tokens += inputs[common:]
        self.positions += range(common, len(inputs))
        self.ends += [0] * added
        for place in path:
            self.ends[place] = begin + added
        self.paths.append(path)
        self.members.append(members)


def pack(by_inputs: dict[tuple[int, ...], list[int]], *, longest: int) -> list[Row]:
    """Rows of all sequences, neighbours in lexicographic order together.

    Args:
        by_inputs: the spans' indices by their input tokens.
        longest: most tokens of a row; 0 for one sequence each.
    """
    rows: list[Row] = []
    last: tuple[int, ...] = ()
    for inputs in sorted(by_inputs):
        common = len(commonprefix([last, inputs]))
        joined = (rows[-1].length if rows else longest) + len(inputs) - common
        worthwhile = joined <= FILLED or common >= WORTHWHILE * len(inputs)
        if joined > longest or not worthwhile:
            rows.append(Row())
            common = 0
        rows[-1].add(inputs, common, by_inputs[inputs])
        last = inputs
    return rows
