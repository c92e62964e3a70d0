"""Each size keeps the layer's multiply-adds (paper, section 3)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparse_lib import ift

sparsities = st.floats(0, 0.99)
sizes = st.integers(1, 10_000)


@given(sparsities, sizes, sizes)
def test_every_member_keeps_the_multiply_adds(s, m, n):
    dense = m * n
    wide = ift.wide_factor(s)
    inner = ift.factorized_size(m, n, s)
    rank = ift.doped_rank(m, n, s)
    assert (wide * m) * (wide * n) * (1 - s) == pytest.approx(dense)
    assert ift.parallel_branches(s) * m * n * (1 - s) == pytest.approx(dense)
    assert inner * (m + n) * (1 - s) == pytest.approx(dense)
    assert m * n * (1 - s) + rank * (m + n) == pytest.approx(dense)


def test_published_widths():
    # The source rounds 1086.1 up to a legal width, 1092 = 12 heads of 91.
    assert 768 * ift.wide_factor(0.5) == pytest.approx(1086.1, abs=0.1)
    assert 768 * ift.wide_factor(0.75) == 1536


@pytest.mark.parametrize("sparsity", [-0.1, 1.0, 2])
def test_bad_sparsity_is_named(sparsity):
    with pytest.raises(ValueError, match="sparsity is"):
        ift.wide_factor(sparsity)


def test_bad_size_is_named():
    with pytest.raises(ValueError, match="num_outputs is 0"):
        ift.doped_rank(4, 0, 0.5)
