"""Token sequences with a common beginning share it: one row holds a trunk and its branches.

The choices of a question share the question, the sentences of a minimal pair their first words. In
a row the trunk comes first and each branch follows as if the others were not there: it sees the
trunk and itself, and its positions go on from the trunk's end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os.path import commonprefix

#: A sequence joins a row where that saves at least this share of its tokens: masked attention
#: costs more than causal attention.
WORTHWHILE = 0.2


@dataclass(frozen=True)
class Row:
    """Sequences that share a trunk.

    Attributes:
        trunk: their common tokens.
        branches: the other tokens of each sequence; may be empty.
        members: for each branch, the indices of the spans that have this sequence as inputs.
    """

    trunk: tuple[int, ...]
    branches: tuple[tuple[int, ...], ...]
    members: tuple[tuple[int, ...], ...]

    @property
    def tokens(self) -> list[int]:
        """The trunk, then the branches."""
        return [*self.trunk, *(token for branch in self.branches for token in branch)]

    @property
    def length(self) -> int:
        """Number of tokens."""
        return len(self.trunk) + sum(map(len, self.branches))

    @property
    def positions(self) -> list[int]:
        """Position of each token in its own sequence."""
        start = len(self.trunk)
        return [*range(start), *(start + i for branch in self.branches for i in range(len(branch)))]

    @property
    def owners(self) -> list[int]:
        """Number of the branch that each token belongs to; -1 in the trunk."""
        return [-1] * len(self.trunk) + [
            number for number, branch in enumerate(self.branches) for _ in branch
        ]

    def places(self, branch: int, start: int) -> list[int]:
        """Where in the row the tokens of a branch's sequence lie, from position ``start`` on."""
        end_of_trunk = len(self.trunk)
        shift = sum(map(len, self.branches[:branch]))
        end = end_of_trunk + len(self.branches[branch])
        own = range(max(start, end_of_trunk) + shift, end + shift)
        return [*range(start, end_of_trunk), *own]


def single(inputs: tuple[int, ...], members: Sequence[int]) -> Row:
    """A row of one sequence, all of it branch-free."""
    return Row(inputs, ((),), (tuple(members),))


def share(by_inputs: dict[tuple[int, ...], list[int]], *, longest: int) -> list[Row]:
    """Group sequences into rows, neighbours in lexicographic order together.

    Args:
        by_inputs: the spans' indices by their input tokens.
        longest: most tokens of a row.
    """
    rows: list[Row] = []
    group: list[tuple[int, ...]] = []
    trunk: tuple[int, ...] = ()

    def length(trunk: tuple[int, ...], group: list[tuple[int, ...]]) -> int:
        return len(trunk) + sum(len(inputs) - len(trunk) for inputs in group)

    def close() -> None:
        if len(group) == 1:
            rows.append(single(group[0], by_inputs[group[0]]))
        elif group:
            branches = tuple(inputs[len(trunk) :] for inputs in group)
            rows.append(Row(trunk, branches, tuple(tuple(by_inputs[i]) for i in group)))

    for inputs in sorted(by_inputs):
        common = commonprefix([trunk, inputs])
        joined = length(common, [*group, inputs])
        saved = length(trunk, group) + len(inputs) - joined
        if group and joined <= longest and saved >= WORTHWHILE * len(inputs):
            group.append(inputs)
            trunk = common
        else:
            close()
            group, trunk = [inputs], inputs
    close()
    return rows
