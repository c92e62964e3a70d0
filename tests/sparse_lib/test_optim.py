"""Torch's optimizers with ``apply``."""

import pytest

from sparse_lib import optim
from sparse_lib.algorithms.static import Static
from tests.sparse_lib.algorithm_cases import make_model


@pytest.mark.parametrize(
    ("name", "options", "states"),
    [
        ("SGD", {"lr": 0.1}, []),
        ("SGD", {"lr": 0.1, "momentum": 0.9}, ["momentum_buffer"]),
        ("AdamW", {}, ["exp_avg", "exp_avg_sq"]),
        ("Adam", {"amsgrad": True}, ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"]),
        ("Adagrad", {}, ["sum"]),
        ("SparseAdam", {}, ["exp_avg", "exp_avg_sq"]),
        ("LBFGS", {}, []),
    ],
)
def test_optimizers_name_the_states_that_become_sparse(name, options, states):
    model, sparsity = make_model(), Static(0.5)
    model.apply(sparsity)
    optimizer = getattr(optim, name)(model.parameters(), **options)
    assert optimizer.state_names_to_sparsify() == states
    assert all(not state for state in optimizer.state.values()) or name == "Adagrad"
    assert optimizer.apply(sparsity) is optimizer and sparsity.drives_optimizer
    with pytest.raises(TypeError, match="apply takes a sparsity algorithm, not 3"):
        optimizer.apply(3)
