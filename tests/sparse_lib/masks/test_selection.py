"""Selection in tensors too large to sort, against a full stable sort."""

import math

import numpy as np
import pytest
import torch

from sparse_lib.masks.makers import (
    add_random,
    make_mask_drop_minimum,
    make_mask_grow_maximum,
    make_mask_topk_sparsity,
)
from sparse_lib.masks.selection import spread_points

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
