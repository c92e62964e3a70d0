"""Rows against the prefix trees that they hold, written out."""

import itertools
import random

import pytest

from experiments.evaluation.lm import rows
from experiments.evaluation.lm.rows import pack


def packed(sequences, longest=1000):
    return pack({tuple(s): [i] for i, s in enumerate(sequences)}, longest=longest)


def sees(row, place) -> list[int]:
    """Places that a token sees, as the mask has it."""
    return [i for i in range(place + 1) if place < row.ends[i]]


def test_a_tree_of_four_sequences():
    (row,) = packed([[1, 2, 3, 4], [1, 2, 3, 5], [1, 2], [1, 6]])
    assert row.tokens == [1, 2, 3, 4, 5, 6]
    assert row.positions == [0, 1, 2, 3, 3, 1]
    assert row.ends == [6, 5, 5, 4, 5, 6]
    assert row.paths == [[0, 1], [0, 1, 2, 3], [0, 1, 2, 4], [0, 5]]
    assert row.members == [[2], [0], [1], [3]]


def test_sequences_with_nothing_in_common_share_a_row_unseen():
    (row,) = packed([[1, 2], [3, 4]])
    assert row.tokens == [1, 2, 3, 4]
    assert row.positions == [0, 1, 0, 1]
    assert [sees(row, place) for place in range(4)] == [[0], [0, 1], [2], [2, 3]]


@pytest.mark.parametrize("longest", [0, 9, 30, 1000])
def test_each_token_sees_its_own_sequence_only(longest, monkeypatch):
    monkeypatch.setattr(rows, "FILLED", 20)
    generator = random.Random(0)
    sequences = {tuple(generator.choices(range(3), k=generator.randint(1, 9))) for _ in range(60)}
    found = []
    for row in packed(sequences, longest):
        assert row.length <= max(longest, max(map(len, sequences)))
        for path in row.paths:
            found.append(tuple(row.tokens[place] for place in path))
            assert [row.positions[place] for place in path] == list(range(len(path)))
            for number, place in enumerate(path):
                assert sees(row, place) == path[: number + 1]
    assert sorted(found) == sorted(sequences)


def test_the_rows_of_a_tree_have_each_beginning_once():
    sequences = [list(s) for s in itertools.product(range(3), repeat=4)]
    (row,) = packed(sequences)
    assert row.length == 3 + 9 + 27 + 81


def test_long_sequences_join_only_where_that_saves_enough(monkeypatch):
    monkeypatch.setattr(rows, "FILLED", 4)
    alike, apart = [[1, 2, 3, 4, 5], [1, 2, 3, 4, 6]], [[1, 2, 3, 4, 5, 6], [1, 3, 3, 4, 5, 6]]
    assert [row.length for row in packed(alike)] == [6]
    assert [row.length for row in packed(apart)] == [6, 6]
    assert [row.length for row in packed(alike, longest=5)] == [5, 5]
