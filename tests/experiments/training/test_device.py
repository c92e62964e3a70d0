"""Devices, number formats, micro-batches, batches made ahead, and states written meanwhile."""

import pytest
import torch

from experiments.training import device, state, trainer
from experiments.training.batches import Batches
from tests.experiments.specs.edit import edited
from tests.experiments.training.short import run_training, short_spec, weights


def with_gpus(monkeypatch, number):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: number > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: number)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


def test_auto_takes_a_gpu_if_there_is_one(monkeypatch):
    with_gpus(monkeypatch, 0)
    assert device.resolve("auto") == torch.device("cpu")
    with_gpus(monkeypatch, 2)
    assert device.resolve("auto", local_rank=1) == torch.device("cuda", 1)
    assert device.resolve("cuda:0", local_rank=1) == torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("name", "number", "words"),
    [
        ("cuda", 0, "would take GPU 0, but torch .* sees 0 CUDA devices here"),
        ("cuda:3", 2, "would take GPU 3, but torch .* sees 2 CUDA devices here"),
        ("mps", 0, "device is 'mps', but torch .* sees no Metal GPU here"),
        ("gpu", 1, "device is 'gpu', but must be auto, cpu, mps, cuda or cuda:<number>"),
    ],
)
def test_a_device_that_is_not_there_is_one_sentence(name, number, words, monkeypatch):
    with_gpus(monkeypatch, number)
    with pytest.raises(ValueError, match=words):
        device.resolve(name)


def test_samples_are_shared_in_order_and_once():
    def make(step):
        return torch.arange(12) + 100 * step, torch.arange(12) * 2

    for ahead in (False, True):
        for step in (0, 1, 5):
            seen = []
            for rank in range(2):
                batches = Batches(
                    make,
                    size=12,
                    device=torch.device("cpu"),
                    rank=rank,
                    num_ranks=2,
                    num_parts=3,
                    ahead=ahead,
                )
                for other in (step, step + 1):  # what was made ahead, and what was not
                    parts = batches.parts(other)
                assert [len(part[0]) for part in parts] == [2, 2, 2]
                seen += [first.tolist() for first, second in parts]
                batches.close()
            assert sum(seen, []) == make(step + 1)[0].tolist()
    with pytest.raises(ValueError, match="recipe.batch_size is 12, which 5 processes with 1"):
        Batches(make, size=12, device=torch.device("cpu"), num_ranks=5)


def test_micro_batches_change_only_the_rounding(corpus, tmp_path):
    plain = short_spec("rigl", steps=8)
    parts = edited(plain, lambda spec: spec["recipe"].update(micro_batches=4))
    assert "micro_batches" not in plain.to_json()["recipe"] and parts.hash != plain.hash
    truth, found = (
        run_training(spec, corpus, tmp_path / str(i)) for i, spec in enumerate((plain, parts))
    )
    assert found["final"]["train_loss"] == pytest.approx(truth["final"]["train_loss"], rel=1e-5)
    assert found["layers"] == truth["layers"]
    assert found["compute"] == {"micro_batches": 4}


def test_bf16_and_compiled_runs_train_and_say_so(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "COMPILE_BACKEND", "eager")
    spec = short_spec("rigl", steps=8)
    truth = run_training(spec, corpus, tmp_path / "plain", execution="dense")
    compiled = run_training(spec, corpus, tmp_path / "compiled", execution="dense", compile=True)
    assert weights(tmp_path / "compiled") == weights(tmp_path / "plain")
    assert compiled["compute"] == {"compile": True}
    skipping = run_training(spec, corpus, tmp_path / "skip", execution="skip")
    both = run_training(spec, corpus, tmp_path / "both", execution="skip", compile=True)
    assert skipping["execution"] == both["execution"] == "skip"
    assert weights(tmp_path / "both") == weights(tmp_path / "skip")
    half = run_training(spec, corpus, tmp_path / "half", precision="bf16")
    assert half["compute"] == {"precision": "bf16"}
    assert half["final"]["train_loss"] == pytest.approx(truth["final"]["train_loss"], rel=0.02)
    assert half["final"]["train_loss"] != truth["final"]["train_loss"]


def test_all_generators_go_on():
    import random

    import numpy as np

    def draw():
        return torch.rand(2).tolist(), random.random(), np.random.rand()

    states = state.generators(torch.device("cpu"))
    first = draw()
    state.set_generators(states, torch.device("cpu"))
    assert draw() == first


@pytest.mark.parametrize(
    ("precision", "allowed"), [("fp32", False), ("bf16", False), ("tf32", True)]
)
def test_only_tf32_computes_in_tf32(precision, allowed):
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        torch.backends.cudnn.allow_tf32 = True  # torch's default, for convolutions
        device.allow(precision)
        assert torch.backends.cudnn.allow_tf32 is allowed
        assert torch.backends.cuda.matmul.allow_tf32 is allowed
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
