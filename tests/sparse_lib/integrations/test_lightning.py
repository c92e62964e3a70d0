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
from tests.cases import assert_enforced, assert_equal

RIGL = {"algorithm": "rigl", "sparsity": 0.75, "update": 2, "drop_fraction": 0.5, "seed": 1}
QUIET = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}


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
    module = Module()
    data = torch.randn(32, 12, generator=torch.Generator().manual_seed(4))
    keep = ModelCheckpoint(folder, every_n_train_steps=2, save_top_k=-1, filename="{step}")
    trainer = pl.Trainer(
        default_root_dir=folder, accelerator="cpu", accumulate_grad_batches=2,
        gradient_clip_val=1.0, callbacks=[*callbacks, keep], log_every_n_steps=1,
        **({"devices": 1, "max_steps": 8} | QUIET | options),
    )  # fmt: skip
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
    assert_equal(straight.state_dict(), again.state_dict())
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


def test_targets_that_are_missed_are_told_before_training_or_after_it(tmp_path):
    callback = SparsityCallback({"algorithm": "rigl", "sparsity": 0.9, "update": 1000})
    with pytest.warns(UserWarning, match="RigL changes no mask in 3 steps"):
        fit(tmp_path, callback, max_steps=3)

    class EverySecond(Module):
        automatic_optimization = False

        def training_step(self, batch, index):
            self.manual_backward(self.net(batch).square().mean())
            if index % 2:
                self.optimizers().step()

    rising = {"type": "polynomial", "init": 0.0, "final": 0.8, "start": 0, "stop": 8, "power": 1}
    callback = SparsityCallback({"algorithm": "gmp", "sparsity": rising})
    options = {"max_epochs": 1, "default_root_dir": tmp_path} | QUIET
    trainer = pl.Trainer(accelerator="cpu", callbacks=[callback], **options)
    with pytest.warns(UserWarning, match="at a sparsity of 0.40 .* at step 4 of 4, .* to 0.80"):
        trainer.fit(EverySecond(), DataLoader(torch.randn(8, 12)))


class TwoNetworks(pl.LightningModule):
    """Two networks with an optimizer each, trained by hand, as a GAN is."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(12, 12), nn.Linear(12, 12)

    def training_step(self, batch, index):
        for network, optimizer in zip((self.first, self.second), self.optimizers(), strict=True):
            optimizer.zero_grad()
            self.manual_backward(network(batch[0]).square().mean())
            optimizer.step()

    def configure_optimizers(self):
        return [torch.optim.SGD(n.parameters(), 0.1) for n in (self.first, self.second)]


def test_two_callbacks_for_two_networks_train_and_resume(tmp_path):
    def callbacks():
        return [
            SparsityCallback(RIGL | {"param_filter": f"{name}.weight", "sparsity": sparsity})
            for name, sparsity in (("first", 0.75), ("second", 0.5))
        ]

    def run(made, steps, resume=None):
        trainer = pl.Trainer(
            max_epochs=steps, limit_train_batches=1, accelerator="cpu", callbacks=made,
            default_root_dir=tmp_path, enable_checkpointing=False, **QUIET,
        )  # fmt: skip
        module = TwoNetworks()
        trainer.fit(module, DataLoader(TensorDataset(torch.randn(16, 12)), 4), ckpt_path=resume)
        trainer.save_checkpoint(tmp_path / "last.ckpt")
        return module

    run(callbacks(), 4)
    resumed = callbacks()
    module = run(resumed, 6, tmp_path / "last.ckpt")
    assert [callback.algorithm.step for callback in resumed] == [6, 6]
    assert [int(n.weight_mask.sum()) for n in (module.first, module.second)] == [36, 72]


def test_an_average_obeys_the_masks_of_the_model(tmp_path):
    from lightning.pytorch.callbacks import EMAWeightAveraging

    callback = SparsityCallback(RIGL)
    _, module = fit(tmp_path, callback, EMAWeightAveraging(decay=0.9))
    saved = torch.load(tmp_path / "step=8.ckpt", weights_only=False)["state_dict"]
    assert_enforced(callback.algorithm)
    for sparse in callback.algorithm.sparse_params.values():
        assert int(sparse.mask.sum()) == round(0.25 * sparse.mask.numel())
        assert torch.equal(saved[f"{sparse.name}_mask"], sparse.mask)
        assert not saved[sparse.name][~sparse.mask].any()
    with pytest.raises(ValueError, match="must come before EMAWeightAveraging in callbacks"):
        fit(tmp_path, EMAWeightAveraging(decay=0.9), SparsityCallback(RIGL))
