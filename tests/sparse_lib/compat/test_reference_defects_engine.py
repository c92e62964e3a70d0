"""Defects found in the reference library (cerebras-pytorch 2.10) that must be impossible here.

One test per defect, named by its number in our list, about training and what keeps it sparse; each
fails if the defect is present. ``test_reference_defects_api.py`` has those of configs, schedules
and mask makers.
"""

import copy
import gc
import io
import pickle
import weakref

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

import sparse_lib as sl
from tests.sparse_lib.algorithm_cases import assert_enforced, make_model, snapshot, train

DYNAMIC = [sl.GMP, sl.SET, sl.RigL, sl.GraNet]


def start(algorithm, model=None, **options):
    model = make_model() if model is None else model
    algorithm.apply(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, **options)
    algorithm.apply(optimizer)
    return model, optimizer


def masked(layer):
    return layer.weight.detach()[~layer.weight_mask]


def train_on_own_data(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    algorithm = sl.RigL(0.7, update=1, drop_fraction=0.5, seed=1)
    model, optimizer = start(algorithm)
    parallel = DistributedDataParallel(model, broadcast_buffers=False)
    for step in range(2):
        optimizer.zero_grad()
        data = torch.randn(8, 12, generator=torch.Generator().manual_seed(10 * rank + step))
        parallel(data).pow(2).mean().backward()
        optimizer.step()
    torch.save(model.state_dict(), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_defect_4_ranks_with_other_data_have_the_same_masks_and_weights(tmp_path):
    mp.start_processes(train_on_own_data, (str(tmp_path),), nprocs=2, start_method="spawn")
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_defect_7_a_mask_loaded_through_a_wrapper_stays():
    source = make_model()
    sl.Static(0.5, seed=1).apply(source)
    model, algorithm = make_model(1), sl.Static(0.5, seed=2)
    algorithm.apply(model)
    wrapped = nn.DataParallel(model)
    wrapped.load_state_dict({f"module.{k}": v for k, v in source.state_dict().items()})
    algorithm.initialize()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    algorithm.apply(optimizer)
    train(model, optimizer, 2)
    assert torch.equal(model[0].weight_mask, source[0].weight_mask)
    assert_enforced(algorithm)


def test_defect_8_static_in_a_plain_loop_trains_sparse():
    model = make_model()
    sl.Static(0.5).apply(model)  # not even applied to the optimizer, nor kept
    gc.collect()
    train(model, torch.optim.Adam(model.parameters(), 0.1), 3)
    assert not masked(model[0]).any()


def test_defect_13_a_second_algorithm_is_refused_not_ignored():
    model = make_model()
    sl.Static(0.5).apply(model)
    with pytest.raises(ValueError, match="already sparsified by Static"):
        sl.SET(0.5).apply(model)


def test_defect_14_a_second_model_with_the_same_names_is_refused():
    algorithm = sl.Static(0.5)
    algorithm.apply(make_model())
    with pytest.raises(ValueError, match="another model"):
        algorithm.apply(make_model())


def test_defect_15_a_deep_copy_keeps_the_enforcement():
    model, _ = start(sl.RigL(0.5, 1))
    teacher = copy.deepcopy(model)
    train(teacher, torch.optim.AdamW(teacher.parameters(), 0.1), 3)
    assert not masked(teacher[0]).any() and teacher[0].weight.any()


def test_defect_16_a_model_can_be_pickled_and_saved_whole():
    model, _ = start(sl.RigL(0.5, 1))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)):
        train(twin, torch.optim.AdamW(twin.parameters(), 0.1), 3)
        assert not masked(twin[0]).any() and twin[0].weight.any()


@pytest.mark.parametrize("cls", [sl.Static, *DYNAMIC])
def test_defect_17_two_forwards_before_one_backward(cls):
    algorithm = cls(0.5)
    model, optimizer = start(algorithm)
    for _ in range(3):
        optimizer.zero_grad()
        (model(torch.ones(2, 12)) - model(torch.zeros(2, 12)) - 1).pow(2).sum().backward()
        optimizer.step()
        assert_enforced(algorithm, optimizer)


@pytest.mark.parametrize("cls", DYNAMIC)
def test_defect_18_layers_without_bias(cls):
    algorithm = cls(0.5, update=1)
    model, optimizer = start(algorithm, nn.Sequential(nn.Linear(12, 6, bias=False)))
    train(model, optimizer, 2)
    assert algorithm.num_sparse_params == 1 and algorithm.num_updates == 2


class Operators(TorchDispatchMode):
    """Counts the operators of tensors with more than one element."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if not isinstance(result, torch.Tensor) or result.numel() > 1:
            self.names.append(func.overloadpacket.__name__)
        return result


def operators_of_a_step(algorithm):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, foreach=False)
    if algorithm is not None:
        algorithm.apply(model)
        algorithm.apply(optimizer)
    train(model, optimizer, 3)
    data = torch.ones(2, 12)
    optimizer.zero_grad()
    with Operators() as operators:
        model(data).sum().backward()
        optimizer.step()
    return operators.names


@pytest.mark.parametrize("cls", [sl.Static, *DYNAMIC])
def test_defect_20_between_updates_only_masking_is_computed(cls):
    options = {} if cls is sl.Static else {"update": {"freq": 3}}  # the fourth step has none due
    ours = operators_of_a_step(cls(0.5, **options))
    views = {"detach", "view", "t", "alias"}
    for name in operators_of_a_step(None):
        ours.remove(name)
    extra = [name for name in ours if name not in views]
    # Gradient, weight and momentum of three tensors: nine selections, nothing else.
    assert extra == ["bitwise_and_"] * 9


@pytest.mark.parametrize("cls", [sl.RigL, sl.GraNet])
def test_defect_21_dense_gradients_are_kept_only_when_due(cls, monkeypatch):
    algorithm = cls(0.5, update={"freq": 3})
    kept, grow = [], cls.grow_score

    def grow_score(self, p):
        kept.append(weakref.ref(self.dense_gradient(p)))
        return grow(self, p)

    monkeypatch.setattr(cls, "grow_score", grow_score)
    model, optimizer = start(algorithm)
    for step in range(1, 7):
        due = step % 3 == 0
        assert algorithm.needs_dense_gradient is due
        assert bool(model[0].weight._backward_hooks) is due
        train(model, optimizer, 1, start=step)
        with pytest.raises(RuntimeError, match="no dense gradient.*set autoupdate to False"):
            algorithm.dense_gradient(model[0].weight)
    assert len(kept) == 6 and not any(reference() is not None for reference in kept)


@pytest.mark.parametrize("cls", [sl.Static, *DYNAMIC])
def test_defect_22_no_global_random_number_is_drawn_and_there_is_a_seed(cls):
    results = []
    for seed in (1, 1, 2):
        options = {} if cls is sl.Static else {"update": 1}
        model, algorithm = make_model(), cls(0.5, seed=seed, **options)
        torch.manual_seed(11)
        state = torch.get_rng_state()
        model, optimizer = start(algorithm, model)
        train(model, optimizer, 3)
        assert torch.equal(state, torch.get_rng_state())
        results.append(snapshot(model)["0.weight_mask"])
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])


def test_defect_23_parameters_get_no_global_mask_property():
    before = set(dir(nn.Parameter))
    start(sl.SET(0.5))
    assert set(dir(nn.Parameter)) == before and "mask" not in before


def test_defect_24_weights_are_zero_from_the_start_and_eval_changes_nothing():
    model = make_model()
    dense = model[0](torch.ones(1, 12))
    algorithm = sl.Static(0.5)
    algorithm.apply(model)
    assert not masked(model[0]).any()
    layer = model[0]
    expected = nn.functional.linear(
        torch.ones(1, 12), layer.weight * layer.weight_mask, layer.bias * layer.bias_mask
    )
    output = layer(torch.ones(1, 12))  # a submodule first
    assert torch.equal(output, expected) and not torch.equal(output, dense)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    algorithm.apply(optimizer)
    versions = [param._version for param in model.parameters()]
    model.eval()(torch.ones(1, 12))
    assert versions == [param._version for param in model.parameters()]


def test_defect_25_dense_and_sparse_checkpoints_convert():
    sparse, dense = make_model(), make_model(1)
    sl.Static(0.5).apply(sparse)
    trained = copy.deepcopy(dense.state_dict())
    mask = sparse[0].weight_mask.clone()
    dense.load_state_dict(sl.checkpoint.export_dense(sparse))  # sparse into dense: no extra keys
    assert torch.equal(dense[0].weight, sparse[0].weight)
    # Dense into sparse: the masks that are there stay, or are lifted when asked to load them all.
    sparse.load_state_dict(trained, strict=False)
    assert torch.equal(sparse[0].weight, trained["0.weight"].where(mask, torch.zeros(())))
    sl.load_checkpoint(sparse, trained, strict=False)
    assert torch.equal(sparse[0].weight, trained["0.weight"]) and sparse[0].weight_mask.all()
    sl.finalize(sparse)
    assert sparse.state_dict().keys() == trained.keys()


def test_defect_31_static_reports_the_sparsity_that_is_there():
    algorithm = sl.Static(0.9, init_method="from_zeros")
    model, optimizer = start(algorithm)
    seen = {}
    algorithm.register_computed_sparsity_hook(lambda alg, name, level: seen.update({name: level}))
    train(model, optimizer, 1)
    assert seen == dict.fromkeys(("0.weight", "0.bias", "2.weight"), 0.0)


@pytest.mark.parametrize("cls", [torch.optim.Adam, torch.optim.NAdam, torch.optim.Adadelta])
def test_defect_37_scalars_of_the_optimizer_are_no_masked_states(cls):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(2.0))

    model, algorithm = Scaled(), sl.Static(1.0)
    algorithm.apply(model)
    optimizer = cls(model.parameters())
    algorithm.apply(optimizer)
    for count in (1, 2):
        (model.scale * 3).backward()
        optimizer.step()
        state = optimizer.state[model.scale]
        assert state["step"] == count and float(model.scale.detach()) == 0.0
        if cls is torch.optim.NAdam:
            assert float(state["mu_product"]) > 0


def test_defect_38_several_backends_in_one_process():
    model = make_model()
    sl.Static(0.8).apply(model)
    data = torch.randn(3, 12)
    outputs = [
        sl.device.compile(model, sl.device.backend(name, crossover=0.0))(data)
        for name in ("dense", "skip", "dense")
    ]
    assert torch.equal(outputs[0], outputs[2])
    torch.testing.assert_close(outputs[0], outputs[1])


def test_defect_39_loss_scaling_does_not_shrink_updates():
    weights = []
    for scale in (None, 2.0**15):
        model, optimizer = start(sl.RigL(0.5, update=2, seed=1))
        scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
        for _ in range(4):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(2, 12)).pow(2).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        weights.append(snapshot(model))
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
