"""Mask makers, for any scores, masks, shapes and pools: properties, not implementations."""

import math

import hypothesis.strategies as st
import numpy as np
import torch
from hypothesis import given, settings

from sparse_lib.masks.counts import num_nonzero
from sparse_lib.masks.makers import (
    make_mask_drop_minimum,
    make_mask_grow_maximum,
    make_mask_topk_sparsity,
    make_masks_global_topk,
)
from sparse_lib.masks.shapers import (
    BlockScoreShaper,
    InputGroupScoreShaper,
    NMScoreShaper,
    OutputGroupScoreShaper,
    ScoreFlattener,
)

bounded = settings(deadline=None, derandomize=True, max_examples=100)
fractions = st.one_of(st.integers(0, 100).map(lambda i: i / 100), st.floats(0, 1))
few_values = st.sampled_from([math.nan, -math.inf, -2.0, -0.0, 0.0, 0.25, 1.0, 1.0, math.inf])
any_values = st.one_of(few_values, st.floats(width=32, allow_nan=True))
seeds = st.integers(0, 2**31 - 1)


@st.composite
def tensors(draw, values=any_values, rows=4, columns=8):
    shape = (draw(st.integers(1, rows)), draw(st.integers(1, columns)))
    flat = draw(st.lists(values, min_size=math.prod(shape), max_size=math.prod(shape)))
    return torch.tensor(flat, dtype=torch.float32).view(shape)


@st.composite
def scored_masks(draw):
    score = draw(tensors())
    bits = draw(st.lists(st.booleans(), min_size=score.numel(), max_size=score.numel()))
    return score, torch.tensor(bits).view(score.shape)


@st.composite
def shaped(draw):
    """A shaper and a tensor that it fits."""
    groups = draw(st.integers(1, 4))
    shaper, rows, columns = draw(
        st.sampled_from(
            [
                (ScoreFlattener(), 3, 4),
                (OutputGroupScoreShaper(groups), groups * 2, 5),
                (InputGroupScoreShaper(groups), 3, groups * 3),
                (NMScoreShaper(min(2, groups), groups), 3, groups * 4),
            ]
        )
    )
    flat = draw(st.lists(any_values, min_size=rows * columns, max_size=rows * columns))
    return shaper, torch.tensor(flat, dtype=torch.float32).view(rows, columns)


def numbers(tensor):
    return int((~tensor.isnan()).sum())


@bounded
@given(tensors(), fractions)
def test_topk_keeps_the_exact_count_of_the_best_numbers(score, sparsity):
    mask = make_mask_topk_sparsity(score, sparsity)
    assert mask.dtype == torch.bool and mask.shape == score.shape
    wanted = num_nonzero(sparsity, score.numel())
    assert int(mask.sum()) == min(wanted, numbers(score))
    assert not mask[score.isnan()].any()
    absent = score[~mask & ~score.isnan()]
    if mask.any() and absent.numel():
        assert score[mask].min() >= absent.max()


@bounded
@given(tensors(few_values), fractions)
def test_equal_scores_are_kept_by_index(score, sparsity):
    flat = score.flatten()
    mask = make_mask_topk_sparsity(flat, sparsity)
    for value in flat[~flat.isnan()].unique():
        kept = mask[flat == value].tolist()
        assert kept == sorted(kept, reverse=True)


@bounded
@given(tensors(few_values), fractions, seeds)
def test_random_ties_keep_the_count_and_the_scores(score, sparsity, seed):
    first = make_mask_topk_sparsity(score, sparsity)
    masks = [
        make_mask_topk_sparsity(
            score, sparsity, tie_breaker="random", generator=torch.Generator().manual_seed(seed)
        )
        for _ in range(2)
    ]
    assert torch.equal(*masks)
    assert sorted(score[masks[0]].tolist()) == sorted(score[first].tolist())


@bounded
@given(st.integers(1, 60), fractions, seeds)
def test_topk_does_not_depend_on_the_order(numel, sparsity, seed):
    generator = np.random.default_rng(seed)
    score = torch.from_numpy(generator.permutation(numel).astype(np.float32))
    order = torch.from_numpy(generator.permutation(numel))
    mask = make_mask_topk_sparsity(score, sparsity)
    assert torch.equal(make_mask_topk_sparsity(score[order], sparsity), mask[order])


@bounded
@given(scored_masks(), fractions)
def test_drop_stays_inside_the_old_mask(pair, fraction):
    score, mask = pair
    kept, count = make_mask_drop_minimum(score, mask, fraction)
    assert not (kept & ~mask).any()
    present = int(mask.sum())
    assert count == int(kept.sum()) == min(num_nonzero(fraction, present), numbers(score[mask]))
    assert not kept[score.isnan()].any()
    dropped = score[mask & ~kept & ~score.isnan()]
    if kept.any() and dropped.numel():
        assert score[kept].min() >= dropped.max()


@bounded
@given(scored_masks(), fractions, st.booleans())
def test_growth_is_disjoint_and_never_shrinks(pair, sparsity, count_is_known):
    score, mask = pair
    before = mask.clone()
    known = int(mask.sum()) if count_is_known else None
    grown = make_mask_grow_maximum(score, mask, sparsity, mask_nonzero=known)
    assert torch.equal(mask, before)
    assert not (mask & ~grown).any()
    new = grown & ~mask
    room = max(0, num_nonzero(sparsity, mask.numel()) - int(mask.sum()))
    assert int(new.sum()) == min(room, numbers(score[~mask]))
    assert not new[score.isnan()].any()
    left = score[~grown & ~score.isnan()]
    if new.any() and left.numel():
        assert score[new].min() >= left.max()


@bounded
@given(scored_masks(), fractions, fractions)
def test_drop_and_growth_together_meet_the_sparsity(pair, sparsity, fraction):
    score, _ = pair
    score = score.nan_to_num(nan=0.0)
    mask = make_mask_topk_sparsity(score, sparsity)
    kept, count = make_mask_drop_minimum(score, mask, fraction)
    grown = make_mask_grow_maximum(-score, kept, sparsity, mask_nonzero=count)
    assert int(grown.sum()) == int(mask.sum())


@bounded
@given(shaped(), fractions, fractions)
def test_each_pool_has_its_exact_count(pair, sparsity, fraction):
    shaper, score = pair
    pools, _ = shaper(score)
    pools = pools.reshape(-1, pools.shape[-1])
    wanted = shaper.count(sparsity, pools.shape[1])

    def counts(tensor):
        return shaper(tensor)[0].reshape(pools.shape).sum(1)

    mask = make_mask_topk_sparsity(score, sparsity, shaper)
    available = (~pools.isnan()).sum(1)
    assert torch.equal(counts(mask), available.clamp(max=wanted))
    kept, total = make_mask_drop_minimum(score, mask, fraction, shaper)
    present = counts(mask).tolist()
    assert counts(kept).tolist() == [num_nonzero(fraction, count) for count in present]
    assert total == int(kept.sum()) and not (kept & ~mask).any()
    full = score.nan_to_num(nan=0.0)
    grown = make_mask_grow_maximum(full, kept, sparsity, score_shaper=shaper)
    assert set(counts(grown).tolist()) == {wanted} and not (kept & ~grown).any()


@bounded
@given(st.integers(1, 4), st.integers(0, 5), st.integers(1, 4), fractions, seeds)
def test_n_of_m_is_never_exceeded(n, extra, groups, sparsity, seed):
    m = n + extra
    score = torch.rand(3, m * groups, generator=torch.Generator().manual_seed(seed))
    mask = make_mask_topk_sparsity(score, sparsity, NMScoreShaper(n, m))
    counts = mask.view(-1, m).sum(1)
    assert set(counts.tolist()) == {min(n, num_nonzero(sparsity, m))}


@bounded
@given(
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(1, 4),
    fractions,
    st.sampled_from(["avg", "max"]),
    seeds,
)
def test_blocks_stay_or_go_whole(rows, columns, height, width, sparsity, pooling, seed):
    score = torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed))
    shaper = BlockScoreShaper((height, width), pooling=pooling)
    mask = make_mask_topk_sparsity(score, sparsity, shaper)
    blocks = [tile for strip in mask.split(height, 0) for tile in strip.split(width, 1)]
    assert all(tile.all() or not tile.any() for tile in blocks)
    assert sum(bool(tile.any()) for tile in blocks) == num_nonzero(sparsity, len(blocks))


@bounded
@given(st.lists(tensors(few_values, 3, 6), min_size=1, max_size=4), fractions)
def test_global_masks_share_one_exact_count(parts, sparsity):
    scores = {str(i): part for i, part in enumerate(parts)}
    masks = make_masks_global_topk(scores, sparsity)
    total = sum(part.numel() for part in parts)
    available = sum(map(numbers, parts))
    floor = sum(numbers(part) > 0 for part in parts) if sparsity < 1 else 0
    wanted = max(num_nonzero(sparsity, total), floor)
    assert sum(int(mask.sum()) for mask in masks.values()) == min(wanted, available)
    for name, mask in masks.items():
        assert not mask[scores[name].isnan()].any()
        assert sparsity == 1 or mask.any() or not numbers(scores[name])


@bounded
@given(fractions, st.integers(0, 10**6))
def test_counts_are_bounded_and_monotone(sparsity, numel):
    count = num_nonzero(sparsity, numel)
    assert 0 <= count <= numel
    assert abs(count - (1 - sparsity) * numel) <= max(0.5 + 1e-6 * numel, 1)
    assert count >= num_nonzero(min(1.0, sparsity + 0.1), numel)
    assert (count == 0) == (sparsity == 1 or numel == 0)
