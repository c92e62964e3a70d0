"""Needs of runs against arithmetic by hand, records of finished runs and a real forward pass."""

import json
from types import SimpleNamespace

import pytest
import torch

from experiments import models
from experiments.cli.app import app
from experiments.errors import UserError
from experiments.specs.expand import all_runs
from experiments.store import reference
from experiments.tasks import lm
from experiments.training import resources
from experiments.training.resources import RESERVED, Launched, needs, shape_of

RATE = 1e14
#: Llama of 1.3 billion weights: width, inner width, layers, vocabulary, context.
H, F, L, V, T = 2048, 5504, 24, 32000, 2048
BLOCK = 4 * H * H + 3 * H * F
WEIGHTS = 2 * V * H + L * BLOCK + (2 * L + 1) * H


@pytest.fixture(scope="module")
def runs():
    found = all_runs("paper").values()
    return {r.spec.method: r for r in found if r.spec.model.label == "llama2-1.3b"}


@pytest.fixture(scope="module")
def planned(runs):
    """The needs of a method's run, in one process unless more are asked for."""

    def ask(method="rigl", memory=80e9, **launched):
        launched = Launched(**{"precision": "bf16", **launched})
        return needs(runs[method], launched, device_bytes=int(memory), flops_per_s=RATE)

    return ask


def test_flops_of_a_large_run_are_those_of_the_formula(planned):
    dense, rigl = planned("dense"), planned("rigl")
    assert dense.num_weights == WEIGHTS and dense.units == dense.steps * 512 * T
    attention = 2 * 2 * L * T * T * H
    sample = 3 * (2 * T * (L * BLOCK + V * H) + attention)
    assert dense.flops == dense.flops_dense == dense.steps * 512 * sample
    assert dense.gpu_hours == pytest.approx(dense.flops / RATE / 3600)
    # RigL: a fifth of the blocks, but for dense weight gradients every 2% of the steps up to 75%.
    kept = L * (4 * (H * H // 5 + 1) + 3 * (H * F // 5 + 1))
    sparse = 3 * (2 * T * (kept + V * H) + attention)
    extra = 2 * T * (L * BLOCK - kept)
    updates = sum(1 for n in range(1, 51) if round(0.02 * rigl.steps) * n <= 0.75 * rigl.steps)
    expected = 256 * (rigl.steps * sparse + updates * extra)
    assert rigl.flops == pytest.approx(expected, rel=2e-4)
    assert rigl.num_left == pytest.approx(WEIGHTS - L * BLOCK + kept, rel=1e-6)


def test_memory_is_that_of_weights_gradients_states_and_masks(planned):
    alone = planned().memory
    assert alone.weights == alone.gradients == alone.optimizer / 2 == 4 * WEIGHTS
    assert alone.masks == 2 * L * BLOCK and planned("static").memory.masks == L * BLOCK
    # bfloat16 copies of all matrices but the embedding, for the backward pass.
    assert alone.casts == pytest.approx(2 * (L * BLOCK + V * H), rel=0.01)
    assert planned(precision="fp32").memory.casts < 0.01 * alone.casts
    ddp = planned(processes=8, strategy="ddp").memory
    assert ddp.gradients == 2 * alone.gradients and ddp.weights == alone.weights
    parts = planned(processes=8, strategy="fsdp2").memory
    assert parts.weights == alone.weights // 8 and parts.masks == alone.masks // 8
    norms = 2 * H
    root = 2 * V * H + H
    assert parts.gathered == 4 * (2 * root + 3 * (BLOCK + norms))


def test_a_run_fits_with_as_many_micro_batches_as_its_memory_asks_for(planned):
    item = planned(processes=8, strategy="fsdp2")
    assert not item.fits and item.samples == 32 and item.micro_batches == 4
    memory = item.memory
    assert memory.peak(8) + RESERVED <= 80e9 < memory.peak(16) + RESERVED
    assert planned(processes=8, strategy="fsdp2", micro_batches=4).fits
    assert planned(memory=20e9).micro_batches is None
    with pytest.raises(UserError, match="256, which 3 processes with 1 micro-batches each cannot"):
        planned(processes=3)


def test_bytes_that_are_kept_are_those_of_a_real_forward_pass(tmp_path, monkeypatch):
    """A real model of the smoke scale on a CPU; logits in float32, which have a gradient each."""
    monkeypatch.chdir(tmp_path)  # no prepared data there says that the vocabulary is smaller
    (run, *_) = [r for r in all_runs("smoke").values() if r.spec.model.label == "llama-30k"]
    shape = shape_of(run.spec)
    spec = run.spec
    model = models.get("llama").build(spec.model.config, vocab_size=256, context=32, eos_id=0)
    owner = SimpleNamespace(recipe=spec.recipe)
    batches = [torch.zeros(samples, 33, dtype=torch.long) for samples in (1, 2)]
    own = [*model.parameters(), *model.buffers()]
    one, two = (
        sum(resources.saved(own, lambda batch=batch: lm.Task.loss(owner, model, batch)))
        for batch in batches
    )
    fixed, sample, largest = resources.kept_bytes(spec, shape, "fp32")
    assert fixed == 2 * one - two
    assert sample == pytest.approx(two - one, rel=0.05)  # kernels keep copies of other layouts
    assert largest == 32 * 256 * 4


@pytest.mark.parametrize("method", ["static", "set", "rigl90", "gmp", "granet"])
def test_planned_flops_are_those_that_finished_runs_counted(method):
    run = next(
        r for r in all_runs("small").values()
        if r.spec.method == method and r.spec.data.name == "enwiki-slice" and not r.spec.seed
        and r.spec.model.label == "llama-0.2m" and "sparsity_library" in r.studies
    )  # fmt: skip
    record = reference.find(run.id)
    found = needs(run, Launched(), device_bytes=10**10, flops_per_s=RATE)
    assert found.flops == record["flops"]["executed"]
    assert found.flops_dense == record["flops"]["dense_equivalent"]
    assert found.num_weights == record["num_parameters"]
    assert found.num_left == record["num_nonzero"]


def test_the_command_prints_a_table_or_json(capsys):
    words = ["plan", "--scale", "paper", "--study", "lenet"]
    app(words, standalone_mode=False)
    shown = capsys.readouterr().out
    assert "lenet-300-100 on mnist" in shown and "not measured" in shown
    assert max(map(len, shown.splitlines()[:-1])) < 150
    app([*words, "--json", "--memory", "40GB", "--flops-per-s", "1e13"], standalone_mode=False)
    told = json.loads(capsys.readouterr().out)
    assert told["assumed"]["memory_bytes"] == 40 * 10**9
    assert told["assumed"]["throughput"] == "stated" and not told["unknown"]
    by_run = {row["run"]: row for row in told["runs"]}
    assert len(by_run) == len(told["runs"]) == len(all_lenet := [*by_run])
    dense = next(by_run[name] for name in all_lenet if by_run[name]["method"] == "dense")
    # 784 x 300 x 100 x 10, forward and twice backward.
    step = 3 * 2 * (784 * 300 + 300 * 100 + 100 * 10) * dense["units"] // dense["steps"]
    assert dense["flops"] == dense["steps"] * step
    assert dense["gpu_hours"] == pytest.approx(dense["flops"] / 1e13 / 3600)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--memory", "80"], "memory is '80', but must be a number with MB, GB, MiB or GiB"),
        (["--memory", "much"], "memory is 'much', but must be a number with MB, GB, MiB or GiB"),
        (["--kind", "v100"], "kind is 'v100', but must be one of a100, h100"),
        (["--precision", "fp32"], "no throughput is known: state --flops-per-s"),
        (["--strategy", "tp"], "strategy is 'tp', but must be one of ddp, fsdp2"),
    ],
)
def test_a_wrong_option_is_one_sentence(words, said, capsys):
    command = ["plan", "--scale", "paper", "--study", "flops", *words]
    with pytest.raises(UserError, match=said):
        app(command, standalone_mode=False)
