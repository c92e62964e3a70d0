"""Devices, number formats, batches and states made meanwhile, and scores before training."""

import pytest
import torch

from experiments import tasks
from experiments.training import device, state, trainer
from tests.experiments.training.short import run_training, short_spec, weights


def with_gpus(monkeypatch, number):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: number > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: number)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


def test_auto_takes_a_gpu_if_there_is_one(monkeypatch):
    with_gpus(monkeypatch, 0)
    assert device.resolve("auto") == torch.device("cpu")
    with_gpus(monkeypatch, 2)
    assert device.resolve("auto") == torch.device("cuda", 0)
    assert device.resolve("cuda:1") == torch.device("cuda", 1)


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


@pytest.mark.parametrize("ahead", [False, True])
def test_a_step_gets_its_batch_in_any_order(ahead):
    def make(step):
        return torch.arange(12) + 100 * step, torch.arange(12) * 2

    batches = tasks.Batches(make, device=torch.device("cpu"))
    batches.ahead = ahead
    for step in (0, 1, 5, 4):  # what was made ahead, and what was not
        assert [part.tolist() for part in batches.of(step)] == [x.tolist() for x in make(step)]
    batches.close()


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
        trainer.allow(precision)
        assert torch.backends.cudnn.allow_tf32 is allowed
        assert torch.backends.cuda.matmul.allow_tf32 is allowed
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
