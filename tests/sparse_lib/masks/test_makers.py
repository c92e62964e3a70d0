"""Masks against hand tables, a naive reference and properties."""

import decimal
import math
from decimal import ROUND_HALF_UP, Decimal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparse_lib.masks.counts import num_nonzero
from sparse_lib.masks.makers import (
    add_random,
    generator,
    make_mask_drop_minimum,
    make_mask_grow_maximum,
    make_mask_topk_sparsity,
    make_masks_global_topk,
    random_score,
)
from sparse_lib.masks.selection import spread_points
from sparse_lib.masks.shapers import (
    BlockScoreShaper,
    InputGroupScoreShaper,
    NMScoreShaper,
    OutputGroupScoreShaper,
)

NAN, INF = math.nan, math.inf
fractions = st.one_of(
    st.integers(0, 1000).map(lambda i: i / 1000), st.floats(0, 1, allow_subnormal=False)
)
scores = st.lists(
    st.sampled_from([NAN, -INF, -1.5, -0.0, 0.0, 0.5, 0.5, 1.0, 2.0, INF]), min_size=1, max_size=40
)


def naive(score: list[float], among: list[bool], keep: int) -> list[bool]:
    candidates = [i for i, s in enumerate(score) if among[i] and not math.isnan(s)]
    chosen = set(sorted(candidates, key=lambda i: (-score[i], i))[:keep])
    return [i in chosen for i in range(len(score))]


COUNTS = [
    (0.9, 1000, 100),  # binary floating point truncates this to 99
    (0.95, 10, 1),  # exactly half a weight: up
    (0.999, 10, 1),  # floor of one
    *[(1, 10, 0), (1.0, 0, 0), (0.5, 0, 0), (0, 7, 7), (5e-324, 10, 10)],
    *[(0.3, 3 * 10**12, 21 * 10**11), (np.float32(0.95), 10, 1), (torch.tensor(0.95), 10, 1)],
]
OF_CSTORCH = [(0.8, 10, 1), (0.8, 100, 19), (0.8, 1000, 199), (0.95, 10, 0), (0.99, 100, 0)]


@pytest.mark.parametrize(
    ("sparsity", "numel", "count", "compat"),
    [*((*case, None) for case in COUNTS), *((*case, "cstorch-2.10") for case in OF_CSTORCH)],
)
def test_num_nonzero_by_hand(sparsity, numel, count, compat):
    assert num_nonzero(sparsity, numel, compat=compat) == count


@given(fractions, st.integers(1, 10**9))
def test_num_nonzero_is_half_up_of_the_decimal(sparsity, numel):
    with decimal.localcontext(prec=2000):
        exact = (1 - Decimal(repr(sparsity))) * numel
        expected = int(exact.to_integral_value(ROUND_HALF_UP))
    assert num_nonzero(sparsity, numel) == (expected if sparsity == 1 else max(1, expected))


@given(scores, fractions)
def test_topk_is_the_naive_one(score, sparsity):
    mask = make_mask_topk_sparsity(torch.tensor(score), sparsity)
    expected = naive(score, [True] * len(score), num_nonzero(sparsity, len(score)))
    assert mask.tolist() == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64])
def test_topk_of_any_dtype(dtype):
    score = torch.tensor([3, 1, 2, 3]).to(dtype)
    assert make_mask_topk_sparsity(score, 0.5).tolist() == [True, False, False, True]


def test_topk_leaves_scores_alone_and_takes_parameters_and_views():
    score = torch.nn.Parameter(torch.randn(6, 4))
    before = score.detach().clone()
    mask = make_mask_topk_sparsity(score.t(), 0.5)
    assert mask.shape == (4, 6) and mask.sum() == 12 and not mask.requires_grad
    assert torch.equal(score, before)


def random(seed=0):
    return {"tie_breaker": "random", "generator": generator(seed, "w", 0)}


def test_random_ties_are_exact_reproducible_and_spread():
    def draw(seed):
        return make_mask_topk_sparsity(torch.zeros(1000), 0.5, **random(seed))

    assert torch.equal(draw(1), draw(1)) and not torch.equal(draw(1), draw(2))
    assert draw(1).sum() == 500 and 200 < draw(1)[:500].sum() < 300
    with pytest.raises(ValueError, match="needs a generator"):
        make_mask_topk_sparsity(torch.zeros(4), 0.5, tie_breaker="random")
    with pytest.raises(ValueError, match="'first' or 'random', not 'last'"):
        make_mask_topk_sparsity(torch.zeros(4), 0.5, tie_breaker="last")


@given(scores, fractions, st.randoms(use_true_random=False))
def test_drop_is_the_naive_one(score, fraction, rng):
    among = [rng.random() < 0.6 for _ in score]
    mask = torch.tensor(among)
    kept, count = make_mask_drop_minimum(torch.tensor(score), mask, fraction)
    keep = num_nonzero(fraction, sum(among))
    assert kept.tolist() == naive(score, among, keep)
    assert count == int(kept.sum()) and not (kept & ~mask).any()


@given(scores, fractions, st.randoms(use_true_random=False), st.booleans())
def test_growth_is_the_naive_one(score, sparsity, rng, known):
    present = [rng.random() < 0.4 for _ in score]
    mask, absent = torch.tensor(present), [not p for p in present]
    number = sum(present) if known else None
    grown = make_mask_grow_maximum(torch.tensor(score), mask, sparsity, number)
    grow = max(0, num_nonzero(sparsity, len(score)) - sum(present))
    assert (grown & ~mask).tolist() == naive(score, absent, grow)
    assert (grown & mask).tolist() == present


@pytest.mark.parametrize("shape", [(6, 8), (6, 8, 3, 3), (3, 200)])
def test_input_groups_compete_alone(shape):
    num_groups = shape[1] // 2
    score = torch.rand(shape)
    mask = make_mask_topk_sparsity(score, 0.5, InputGroupScoreShaper(num_groups))
    for ours, own in zip(mask.split(2, 1), score.split(2, 1), strict=True):
        assert torch.equal(ours, make_mask_topk_sparsity(own, 0.5))


@pytest.mark.parametrize("num_pools", [3, 100])
@settings(max_examples=30)
@given(st.data())
def test_pools_are_the_naive_ones(num_pools, data):
    values = data.draw(st.lists(st.sampled_from([NAN, -INF, 0.0, 1.0]), min_size=5, max_size=5))
    rows = torch.tensor(values).repeat(num_pools, 1)
    rows += torch.arange(num_pools).remainder(2).unsqueeze(1)  # two kinds of rows
    sparsity = data.draw(fractions)
    shaper = OutputGroupScoreShaper(num_pools)
    keep = num_nonzero(sparsity, 5)
    mask = make_mask_topk_sparsity(rows, sparsity, shaper)
    assert mask.tolist() == [naive(row, [True] * 5, keep) for row in rows.tolist()]
    present = torch.rand(num_pools, 5) < 0.5
    known = int(present.sum()) if data.draw(st.booleans()) else None
    grown = make_mask_grow_maximum(rows, present, sparsity, known, shaper)
    kept, count = make_mask_drop_minimum(rows, present, sparsity, shaper)
    for i, (row, before) in enumerate(zip(rows.tolist(), present.tolist(), strict=True)):
        absent = [not p for p in before]
        added = (grown & ~present)[i].tolist()
        assert added == naive(row, absent, max(0, keep - sum(before)))
        assert kept[i].tolist() == naive(row, before, num_nonzero(sparsity, sum(before)))
    assert count == kept.sum()


@pytest.mark.parametrize("shaper", [OutputGroupScoreShaper(100), NMScoreShaper(2, 4)])
def test_random_ties_within_pools(shaper):
    mask = make_mask_topk_sparsity(torch.zeros(100, 8), 0.5, shaper, **random())
    pools, _ = shaper(mask)
    assert (pools.sum(-1) == pools.shape[-1] // 2).all()
    assert len(pools.unique(dim=0)) > 3


def test_blocks_by_hand():
    score = torch.tensor([[1.0, 1, 0, 9], [1, 1, 0, 0], [5, 5, 2, 2], [5, 5, 2, 2]])
    average = make_mask_topk_sparsity(score, 0.5, BlockScoreShaper(2))
    assert average.int().tolist() == [[0, 0, 1, 1]] * 2 + [[1, 1, 0, 0]] * 2
    largest = make_mask_topk_sparsity(score, 0.75, BlockScoreShaper(2, pooling="max"))
    assert largest.int().tolist() == [[0, 0, 1, 1]] * 2 + [[0] * 4] * 2
    score = torch.zeros(5, 3, 2, 2)
    score[4, 2] = 1.0  # a block of one row and one column in the corner
    mask = make_mask_topk_sparsity(score, 0.8, BlockScoreShaper((2, 2)))
    assert mask.shape == score.shape and mask[4, 2].all() and mask.sum() == 4
    kept, _ = make_mask_drop_minimum(score, mask, 0.0, BlockScoreShaper((2, 2)))
    assert torch.equal(kept, mask)
    grown = make_mask_grow_maximum(score, mask, 0.6, int(mask.sum()), BlockScoreShaper((2, 2)))
    assert grown.sum() == mask.sum() + 2 * 2 * 4


@given(
    *[st.integers(1, 9)] * 2, *[st.integers(1, 4)] * 2, fractions, st.sampled_from(["avg", "max"])
)
def test_blocks_stay_or_go_whole(rows, columns, height, width, sparsity, pooling):
    score = torch.rand(rows, columns, generator=generator(0, "w", 0))
    shaper = BlockScoreShaper((height, width), pooling=pooling)
    mask = make_mask_topk_sparsity(score, sparsity, shaper)
    blocks = [tile for strip in mask.split(height, 0) for tile in strip.split(width, 1)]
    assert all(tile.all() or not tile.any() for tile in blocks)
    assert sum(bool(tile.any()) for tile in blocks) == num_nonzero(sparsity, len(blocks))


@given(st.integers(1, 4), st.integers(0, 5), st.integers(1, 4), fractions)
def test_n_of_m_is_never_exceeded(n, extra, groups, sparsity):
    m = n + extra
    score = torch.rand(3, m * groups, generator=generator(0, "w", 0))
    mask = make_mask_topk_sparsity(score, sparsity, NMScoreShaper(n, m)).view(-1, m)
    keep = min(n, num_nonzero(sparsity, m))
    assert mask.tolist() == [naive(row, [True] * m, keep) for row in score.view(-1, m).tolist()]


@given(st.lists(scores, min_size=1, max_size=4), fractions)
def test_global_masks_share_one_exact_count(parts, sparsity):
    tensors = {str(i): torch.tensor(part) for i, part in enumerate(parts)}
    masks = make_masks_global_topk(tensors, sparsity)
    numbers = {name: int((~score.isnan()).sum()) for name, score in tensors.items()}
    floor = sum(map(bool, numbers.values())) if sparsity < 1 else 0
    wanted = max(num_nonzero(sparsity, sum(map(len, parts))), floor)
    assert sum(int(mask.sum()) for mask in masks.values()) == min(wanted, sum(numbers.values()))
    for name, mask in masks.items():
        assert not mask[tensors[name].isnan()].any()
        assert sparsity == 1 or mask.any() or not numbers[name]


def test_generators_depend_on_all_three_and_scores_of_half_precision_do_not_tie():
    state = torch.get_rng_state()
    keys = [(0, "fc.weight", 0), (1, "fc.weight", 0), (0, "fc2.weight", 0), (0, "fc.weight", 1)]
    seeds = [generator(*key).initial_seed() for key in keys]
    # A constant: Python's own hash of a string would differ between processes.
    assert len({*seeds}) == 4 and seeds[0] == 7727498849340917847
    assert torch.equal(state, torch.get_rng_state())
    score = random_score(torch.empty(4096, dtype=torch.bfloat16), generator(0, "w", 0))
    assert score.dtype == torch.float32 and score.unique().numel() > 4000


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        *[
            (lambda s=s: num_nonzero(s, 10), ValueError, "sparsity.*between 0 and 1")
            for s in (-0.1, 1.1, NAN, INF)
        ],
        *[
            (lambda s=s: num_nonzero(s, 10), TypeError, "sparsity must be a number")
            for s in (None, "0.5", True, [0.5, 0.5])
        ],
        (lambda: num_nonzero(0.5, 10, compat="2.9"), ValueError, "compat.*'cstorch-2.10'"),
        (lambda: num_nonzero(0.5, -1), ValueError, "numel.*at least 0"),
        (lambda: make_mask_topk_sparsity([1, 2], 0.5), TypeError, "score"),
        (lambda: make_mask_topk_sparsity(torch.rand(4), 0.5, 3), TypeError, "score_shaper"),
        (lambda: make_mask_drop_minimum(torch.rand(4), torch.ones(3), 0.5), ValueError, r"not \(3"),
        (lambda: make_mask_grow_maximum(torch.rand(4), None, 0.5), TypeError, "mask.*None"),
        (lambda: OutputGroupScoreShaper(0), ValueError, "num_groups"),
        (lambda: NMScoreShaper(5, 4), ValueError, "5"),
        (lambda: BlockScoreShaper((2, 0)), ValueError, "block"),
        (lambda: BlockScoreShaper(2, pooling="sum"), ValueError, "pooling"),
        *[
            (lambda s=s: make_mask_topk_sparsity(torch.rand(4), 0.5, s), ValueError, "2 dimensions")
            for s in (InputGroupScoreShaper(4), BlockScoreShaper(2))
        ],
    ],
)
def test_bad_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


SIZE = 200_003
_RANDOM = np.random.default_rng(0)


def _misleading() -> np.ndarray:
    scores = _RANDOM.random(SIZE)
    scores[(spread_points() * SIZE).astype(int)] = 5.0  # what the sample sees is all on top
    return scores


SCORES = {
    "continuous": _RANDOM.standard_normal(SIZE),
    "mostly zero": np.where(_RANDOM.random(SIZE) < 0.9, 0.0, _RANDOM.standard_normal(SIZE)),
    "all equal": np.full(SIZE, 0.25),
    "three values": _RANDOM.integers(0, 3, SIZE).astype(float),
    "few values": _RANDOM.integers(0, 500, SIZE).astype(float),
    "NaN": np.where(_RANDOM.random(SIZE) < 0.5, math.nan, _RANDOM.standard_normal(SIZE)),
    "nearly all NaN": np.where(_RANDOM.random(SIZE) < 0.999, math.nan, 1.0),
    "infinite": np.where(_RANDOM.random(SIZE) < 0.3, -math.inf, math.inf),
    "ascending": np.linspace(-1, 1, SIZE),
    "misleading": _misleading(),
    "misleading the other way": -_misleading(),
}


def best_by_sorting(scores: np.ndarray, among: np.ndarray, keep: int) -> np.ndarray:
    """Mask of the ``keep`` best numbers, equal ones in order of position."""
    candidates = np.flatnonzero(among & ~np.isnan(scores))
    order = np.argsort(-scores[candidates], kind="stable")
    mask = np.zeros(scores.size, dtype=bool)
    mask[candidates[order[:keep]]] = True
    return mask


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", SCORES)
def test_large_tensors_are_selected_as_by_a_stable_sort(kind, dtype):
    scores = torch.from_numpy(SCORES[kind]).to(dtype)
    exact = scores.double().numpy()
    everywhere = np.ones(SIZE, dtype=bool)
    for sparsity, keep in ((0.01, 198_003), (0.5, 100_002), (0.9, 20_000), (0.9999, 20)):
        expected = best_by_sorting(exact, everywhere, keep)
        assert np.array_equal(make_mask_topk_sparsity(scores, sparsity).numpy(), expected)


@pytest.mark.parametrize("kind", SCORES)
def test_large_tensors_drop_and_grow_as_by_a_stable_sort(kind):
    scores = torch.from_numpy(SCORES[kind]).float()
    exact = scores.double().numpy()
    present = np.random.default_rng(1).permutation(SIZE) < 120_000
    mask = torch.from_numpy(present)
    kept, num_kept = make_mask_drop_minimum(scores, mask, 0.3)
    expected = best_by_sorting(exact, present, 84_000)
    assert np.array_equal(kept.numpy(), expected) and num_kept == expected.sum()
    grown = make_mask_grow_maximum(scores, mask, 0.25)
    expected = present | best_by_sorting(exact, ~present, 150_002 - 120_000)
    assert np.array_equal(grown.numpy(), expected)


def test_every_pair_of_absent_positions_is_added_equally_often():
    mask = torch.tensor([True, False, False, True, False, False])  # 2 of 4 come by drawing
    for count, num_sets in ((0, 1), (1, 4), (2, 6), (3, 4), (4, 1), (9, 1)):
        seen: dict[tuple, int] = {}
        for seed in range(600):
            grown = add_random(mask, count, torch.Generator().manual_seed(seed))
            added = tuple((grown & ~mask).nonzero().flatten().tolist())
            assert len(added) == min(count, 4) and bool(grown[mask].all())
            seen[added] = seen.get(added, 0) + 1
        assert len(seen) == num_sets
        expected = 600 / num_sets
        statistic = sum((times - expected) ** 2 / expected for times in seen.values())
        assert statistic < 20.5  # chi-square, 5 degrees of freedom: p = 0.001
