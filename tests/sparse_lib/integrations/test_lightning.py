"""The callback in a real Lightning ``Trainer``: stop, resume, with the bits of one run."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("lightning.pytorch", reason="lightning is not installed")

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint

import sparse_lib as sl
from sparse_lib.integrations.lightning import SparsityCallback

RIGL = {"algorithm": "rigl", "sparsity": 0.75, "update": 2, "drop_fraction": 0.5, "seed": 1}


class Killed(Exception):
    pass


class KillAt(pl.Callback):
    def __init__(self, step):
        self.step = step

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step:
            raise Killed


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 8))
        self.sparse_before_the_optimizer = None

    def training_step(self, batch, index):
        return self.net(batch[0]).float().pow(2).sum(1).sub(1).pow(2).mean()

    def configure_optimizers(self):
        self.sparse_before_the_optimizer = sl.is_sparse(self)
        return torch.optim.AdamW(self.parameters(), 0.05)


def fit(folder, *callbacks, seed=0, resume=None, **options):
    torch.manual_seed(seed)
    data = torch.randn(32, 12, generator=torch.Generator().manual_seed(4))
    keep = ModelCheckpoint(folder, every_n_train_steps=2, save_top_k=-1, filename="{step}")
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    trainer = pl.Trainer(
        default_root_dir=folder, accelerator="cpu", accumulate_grad_batches=2,
        gradient_clip_val=1.0, callbacks=[*callbacks, keep], log_every_n_steps=1,
        **({"devices": 1, "max_steps": 8} | quiet | options),
    )  # fmt: skip
    module = Module()
    trainer.fit(module, DataLoader(TensorDataset(data), 4), ckpt_path=resume)
    return trainer, module


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_killed_training_ends_with_the_bits_of_one(tmp_path, precision):
    whole = SparsityCallback(RIGL)
    trainer, straight = fit(tmp_path / "whole", whole, precision=precision)
    assert straight.sparse_before_the_optimizer
    assert whole.algorithm.step == 8 and whole.algorithm[0].num_updates == 4
    assert trainer.logged_metrics["sparsity/sparsity"] == pytest.approx(0.75)
    with pytest.raises(Killed):
        fit(tmp_path / "cut", SparsityCallback(RIGL), KillAt(5), precision=precision)
    resumed = SparsityCallback(RIGL)
    last = tmp_path / "cut" / "step=4.ckpt"
    _, again = fit(tmp_path / "cut", resumed, seed=7, resume=last, precision=precision)
    for name, value in straight.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
    assert whole.algorithm.metrics() == resumed.algorithm.metrics()
    assert not again.net[0].weight[~again.net[0].weight_mask].any()


def in_ranks(folder, rank):
    """Ends of a whole training and of a stopped one; called on every rank."""

    def ends(part, *callbacks, seed, resume=None):
        ddp = pl.strategies.DDPStrategy(process_group_backend="gloo", start_method="popen")
        callbacks = SparsityCallback(RIGL), *callbacks
        options = {"strategy": ddp, "devices": 2, "max_steps": 4, "resume": resume}
        return fit(folder / part, *callbacks, seed=seed, **options)[1].state_dict()

    whole = ends("whole", seed=rank)
    with pytest.raises(Killed):
        ends("cut", KillAt(3), seed=rank)
    return [whole, ends("cut", seed=rank + 2, resume=folder / "cut" / "step=2.ckpt")]


def test_one_option_sends_the_sparsity_to_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tests.sparse_lib.integrations.test_trackers import points_of

    trainer, _ = fit(tmp_path, SparsityCallback(RIGL, tracker="tensorboard"), max_steps=3)
    found = points_of(tmp_path / "sparsity")
    assert [step for step, _ in found["sparsity/sparsity"]] == [1, 2, 3]
    assert float(trainer.logged_metrics["sparsity/sparsity"]) == found["sparsity/sparsity"][-1][1]
