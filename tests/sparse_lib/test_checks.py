"""Nonsense in arguments is refused by one sentence that names the argument."""

import pytest
import torch

import sparse_lib as sl


@pytest.mark.parametrize(
    "call,message",
    [
        (lambda: sl.schedules.Cycling([1, 2], repeat="false"), "repeat must be true or false"),
        (lambda: sl.device.backend("skip", costs=-1), "costs must be sparse_lib.device.Costs"),
        (lambda: sl.device.backend("skip", strict="no"), "strict must be true or false"),
        (lambda: sl.TopKAST(sparsity=0.5, regularization=-1), "regularization must be at least 0"),
        (
            lambda: sl.count_flops(torch.nn.Linear(4, 4), batch_size=10**30),
            "batch_size is 10+; it must be below",
        ),
        (
            lambda: sl.count_flops(torch.nn.Linear(4, 4), batch_size=True),
            "batch_size must be an integer, not True",
        ),
    ],
)
def test_nonsense_names_the_argument(call, message):
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
