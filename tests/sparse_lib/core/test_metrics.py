"""Metrics against hand-made masks."""

import json

import pytest
import torch
from torch import nn

import sparse_lib as sl
from sparse_lib.core.metrics import MaskHistory
from tests.cases import descend, driven, make_model, train


@pytest.mark.parametrize("shape", [(50,), (6, 7), (3, 4, 2, 2)])
def test_a_history_equals_sets(shape):
    source = torch.Generator().manual_seed(1)
    masks = [torch.rand(shape, generator=source) < 0.4 for _ in range(9)]
    history = MaskHistory()
    sets = [set(m.flatten().nonzero().flatten().tolist()) for m in masks]
    grown = survived = 0
    for index, (old, new) in enumerate(zip(masks, masks[1:])):
        # Half of the way, the state goes through a file.
        if index == 4:
            state, history = history.state_dict(), MaskHistory()
            history.load_state_dict(state, torch.ones(0, dtype=torch.bool))
        history.record(old.transpose(0, -1).transpose(0, -1), new)
        if index:
            fresh = sets[index] - sets[index - 1]
            grown, survived = grown + len(fresh), survived + len(fresh & sets[index + 1])
        seen = sets[: index + 2]
        assert history.in_time_overparameterization(new) == len(set.union(*seen)) / new.numel()
        always = set.intersection(*seen)
        assert history.degree_of_constraint() == len(always) / len(sets[0])
        assert history.survival == (survived / grown if grown else None)
        assert history.churn == len(sets[index + 1] - sets[index]) / len(sets[index + 1])


def test_a_runs_metrics_by_hand():
    model = nn.Sequential(nn.Linear(4, 2, bias=False), nn.Linear(2, 2))
    model[1].bias.requires_dense = True
    algorithm = sl.Static({"0.*": 0.5, "1.*": 0.25})
    algorithm.apply(model)
    for first in ([1, 1, 1, 1], [1, 1, 1, 0]):
        algorithm.sparse_params["0.weight"].mask = torch.tensor([first, [0, 0, 0, 0]])
    initial = [s.history.num_initial for s in algorithm.sparse_params.values()]
    assert initial == [4, 0]  # half of eight; the second mask was never replaced
    flops = sl.count_flops(model, batch_size=3)
    summary = algorithm.metrics(flops)
    assert json.loads(json.dumps(summary)) == summary
    first, second = summary["tensors"]["0.weight"], summary["tensors"]["1.weight"]
    assert first["sparsity"] == 5 / 8 and first["target"] == 0.5 and first["num_updates"] == 2
    assert first["churn"] == 0.0 and first["dead_units"] == 1
    names = "sparsity target churn itop degree_of_constraint survival dead_units num_updates"
    assert second == dict(zip(names.split(), (0.25, 0.25, 0.0, 0.75, 1.0, None, 0, 0), strict=True))
    assert summary["sparsity"] == 6 / 12 and summary["dead_units"] == 1
    # Per sample 2 FLOPs for each of 3 + 3 weights, thrice in training; 8 + 4 weights if dense.
    costs = {"forward": 3 * 2 * 6, "training_step": 3 * 3 * 2 * 6}
    costs |= {"dense_training_step": 3 * 3 * 2 * 12, "run": 0, "dense_run": 0}
    assert summary["flops"] == costs


@pytest.mark.parametrize("sparsity", [0.6, {"type": "linear", "init": 0.3, "slope": 0.05}])
def test_flops_of_a_run_are_the_sum_of_its_steps(sparsity):
    def build(seed):
        model = make_model(seed)
        members = {"0.weight": sl.RigL(sparsity, update={"freq": 3}), "2.*": sl.SET(0.7, 2)}
        algorithm = sl.Group({**members, "*": sl.Static(0.5)}, seed=1)
        optimizer = driven(algorithm, model)
        return model, algorithm, optimizer

    model, algorithm, optimizer = build(0)
    flops, total = sl.count_flops(model, batch_size=8), 0
    for step in range(10):
        # Linear layers of 12 x 16 and 16 x 6 weights; every third weight gradient is dense.
        first, second = (int(layer.weight_mask.sum()) for layer in (model[0], model[2]))
        gradient = 12 * 16 if (step + 1) % 3 == 0 else first
        total += 2 * 8 * (2 * first + gradient + 3 * second)
        if step == 5:  # the count goes on in another process
            states = [part.state_dict() for part in (model, algorithm, optimizer)]
            model, algorithm, optimizer = build(1)
            for part, state in zip((model, algorithm, optimizer), states):
                part.load_state_dict(state)
        train(model, optimizer, 1, start=step)
    summary = algorithm.metrics(flops)["flops"]
    assert summary["run"] == total
    assert summary["dense_run"] == 10 * 3 * 2 * 8 * (12 * 16 + 16 * 6)


def test_drop_fraction_of_the_present_step_is_among_the_metrics():
    model = nn.Linear(8, 8, bias=False)
    fraction = {"type": "linear", "init": 0.5, "slope": -0.1}
    algorithm = sl.SET(0.5, update=1, drop_fraction=fraction)
    optimizer = driven(algorithm, model)
    seen = []
    for _ in range(5):
        seen.append(algorithm.metrics()["drop_fraction"])
        descend(optimizer, model(torch.ones(1, 8)).sum())
    assert seen == pytest.approx([0.5, 0.4, 0.3, 0.2, 0.1])
    assert "drop_fraction" not in sl.Static(0.5).metrics()
    with pytest.raises(TypeError, match="metrics takes what count_flops returns, not 5"):
        algorithm.metrics(5)
