"""Several processes train what one does: losses, masks, interruptions, other numbers of ranks."""

import json
import os
import signal

import pytest
import torch

from experiments.errors import UserError
from experiments.training import exports
from experiments.training import loop as training
from experiments.training.interruption import Interrupted
from experiments.training.ranks import Ranks
from tests import ranks
from tests.experiments.training.short import run_training, short_spec

#: Processes; `make soak` goes on with four, which share few cores here.
SIZE = 4 if "SOAK" in os.environ else 2


def begin(rank, size, folder, name):
    """What torchrun sets, and a fresh rendezvous."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    store = f"file://{folder}/store-{name}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=size)


def worker(rank, size, corpus, folder, plan):
    """Train each run of the plan: (name, method, strategy, where it is stopped)."""
    for name, method, strategy, stopped in plan:
        begin(rank, size, folder, f"{name}-{size}-{stopped}")
        step = training.Trainer.step

        def stopping(trainer, step=step, stopped=stopped):
            loss = step(trainer)
            if trainer.progress.step == stopped and rank == size - 1:
                os.kill(os.getpid(), signal.SIGTERM)  # one rank alone
            return loss

        training.Trainer.step = stopping
        ended = None
        try:
            spec = short_spec(method)
            training.train(
                spec,
                code_hash="1" * 64,
                command="test",
                data_dir=corpus,
                out=folder / name / "out",
                state_dir=folder / name / "state" / "run",
                strategy=strategy,
            )
        except Interrupted as error:
            ended = error.code
        training.Trainer.step = step
        assert ended == (143 if stopped else None), (name, ended)


def result(folder):
    rows = [json.loads(row) for row in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
    return json.loads((folder / "out" / "train.json").read_text()), rows


def masks(folder):
    from safetensors.torch import load_file

    return load_file(folder / "out" / "model" / exports.MASKS)


@pytest.mark.slow
def test_ranks_train_what_one_process_does(corpus, tmp_path):
    """Whole runs, and one that is stopped twice and goes on by the other strategy, then alone."""
    plan = [("ddp", "rigl", "ddp", None), ("moved", "rigl", "fsdp2", 9),
            ("moved", "rigl", "ddp", 16), ("fsdp", "granet", "fsdp2", None)]  # fmt: skip
    if SIZE > 2:  # processes of other numbers cannot share one start
        ranks.run(worker, 2, corpus, tmp_path, plan[:2])
        plan = plan[2:]
    ranks.run(worker, SIZE, corpus, tmp_path, plan)
    run_training(short_spec("rigl"), corpus, tmp_path / "moved")
    for method, names in {"rigl": ("ddp", "moved"), "granet": ("fsdp",)}.items():
        run_training(short_spec(method), corpus, tmp_path / method)
        truth, rows = result(tmp_path / method)
        for name in names:
            found, others = result(tmp_path / name)
            losses = [row["loss"] for row in rows]
            assert [row["loss"] for row in others] == pytest.approx(losses, rel=1e-4), name
            expected = masks(tmp_path / method)
            for key, mask in masks(tmp_path / name).items():
                assert torch.equal(mask, expected[key]), (name, key)
            for key in ("layers", "num_parameters", "num_nonzero", "flops"):
                assert found[key] == truth[key], (name, key)
            assert not (tmp_path / name / "state" / "run").exists()
    assert result(tmp_path / "fsdp")[0]["compute"] == {"processes": SIZE, "strategy": "fsdp2"}
    assert "compute" not in result(tmp_path / "rigl")[0]


def draw_and_go_on(rank, size, folder):
    """Each rank draws numbers of its own, also after its state was restored."""
    from experiments.training.ranks import Ranks
    from experiments.training.state import generators, set_generators

    begin(rank, size, folder, "generators")
    group = Ranks()
    torch.manual_seed(100 + rank)
    torch.rand(3)
    states = group.gather(generators(torch.device("cpu")))
    expected = torch.rand(2)
    set_generators(states[rank], torch.device("cpu"))
    assert torch.equal(torch.rand(2), expected)
    drawn = group.gather(expected)
    assert len(states) == len(drawn) == size and not torch.equal(drawn[0], drawn[1])
    group.close()


def test_every_rank_goes_on_with_its_own_random_numbers(tmp_path):
    ranks.run(draw_and_go_on, 2, tmp_path)


def test_a_launch_without_a_meeting_place_is_one_sentence(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(UserError, match="WORLD_SIZE is 2, but MASTER_ADDR is not set"):
        Ranks()
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(UserError, match="RANK is 2 of WORLD_SIZE 2; torchrun sets both"):
        Ranks()
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(UserError, match="WORLD_SIZE is 'two'; it must be a number"):
        Ranks()
