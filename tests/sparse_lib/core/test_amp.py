"""Loss scaling and autocast: a skipped step updates nothing, a scale changes nothing."""

import copy

import pytest
import torch
from torch import nn

from sparse_lib.algorithms.rigl import RigL
from sparse_lib.algorithms.srste import SRSTE
from sparse_lib.masks.makers import make_mask_topk_sparsity
from tests.cases import (
    ALGORITHMS,
    assert_enforced,
    assert_equal,
    driven,
    loss_of,
    make,
    make_model,
    same,
    snapshot,
)

OPTIMIZERS = {"AdamW": {}, "SGD": {"momentum": 0.9}}


def start(algorithm, optimizer, **options):
    model, kind = make_model(), getattr(torch.optim, optimizer)
    return model, driven(algorithm, model, kind, 0.02, **OPTIMIZERS[optimizer], **options)


def scaled_step(model, optim, scaler, step, spoil=None):
    optim.zero_grad()
    scaler.scale(loss_of(model, step)).backward()
    if spoil is not None:
        spoil()
    scaler.step(optim)
    scaler.update()


def everything(algorithm, model, optim):
    return copy.deepcopy([model.state_dict(), optim.state_dict(), algorithm.state_dict()])


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_skipped_step_updates_nothing(name, optimizer, fused):
    runs = []
    for overflows in (False, True):
        algorithm = make(name)
        model, optim = start(algorithm, optimizer, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for step in range(6):  # masks are due at steps 2, 4 and 6
            # Torch's fused SGD leaves garbage as momentum if its very first step is skipped.
            if overflows and step in ((1, 3) if fused else (0, 1, 3)):
                before = everything(algorithm, model, optim)

                def spoil(sparse=algorithm.sparse_params["0.weight"]):
                    sparse.param.grad[sparse.mask] = float("inf")

                scaled_step(model, optim, scaler, 99, spoil)
                after = everything(algorithm, model, optim)
                assert same(before, after)
            scaled_step(model, optim, scaler, step)
            assert_enforced(algorithm, optim)
        assert algorithm.step == 6
        runs.append(everything(algorithm, model, optim))
    assert same(*runs)  # the overflows left no trace, in dense gradients either


class Mixed(RigL):
    """A user's: drops and grows by magnitude plus a share of the dense gradient's."""

    def drop_score(self, p):
        self.seen = [*getattr(self, "seen", []), self.dense_gradient(p).clone()]
        return p.abs() + 0.5 * self.dense_gradient(p).abs()

    def grow_score(self, p):
        return super().grow_score(p) + p.abs().mean(0, keepdim=True)


class MixedTopK(SRSTE):
    """The same among masked values; it changes gradients itself."""

    uses_dense_gradient = True

    def update_mask(self, p, mask, sparsity):
        self.seen = [*getattr(self, "seen", []), self.dense_gradient(p).clone()]
        return make_mask_topk_sparsity(p.abs() + 0.5 * self.dense_gradient(p).abs(), sparsity)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    "made",
    [
        lambda: Mixed(0.6, update=2, seed=1),
        lambda: Mixed(0.6, update=2, seed=1, skip_update_on_mask_steps=True),
        lambda: Mixed(0.6, update=2, seed=1, grown_init="gradient", grown_init_scale=0.1),
        lambda: RigL(0.6, update=2, seed=1, skip_update_on_mask_steps=True, grown_init="gradient"),
        lambda: MixedTopK(0.6, update=2, decay=0.5),
    ],
    ids=["mixed", "mixed, skipping", "mixed, grown", "rigl, skipping and grown", "hidden"],
)
def test_what_a_class_of_ones_own_reads_has_no_loss_scale(made, fused):
    results = []
    for scale in (None, 2.0**16):
        algorithm = made()
        model, optim = start(algorithm, "SGD", fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
        for step in range(6):
            scaled_step(model, optim, scaler, step)
        results.append((snapshot(model), getattr(algorithm, "seen", [])))
    (plain, seen), (scaled, seen_scaled) = results
    assert_equal(plain, scaled)
    assert len(seen) == len(seen_scaled) and all(map(torch.equal, seen, seen_scaled))


@pytest.mark.parametrize("scale", [1.0, 2.0**16, 1000.0])
@pytest.mark.parametrize("bound", [None, 1e-3])
@pytest.mark.parametrize("cls", [Mixed, MixedTopK])
def test_the_dense_gradient_is_that_of_the_loss_and_clipped_as_it_was(cls, bound, scale):
    algorithm = cls(0.5, update=1)
    torch.manual_seed(0)
    model = nn.Linear(12, 8, bias=False)
    optim = driven(algorithm, model)
    data = torch.randn(5, 12)
    expected = 2 * (data @ model.weight.detach().T).T @ data
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    scaler.scale(model(data).square().sum()).backward()
    scaler.unscale_(optim)
    if bound is not None:
        norm = model.weight.grad.norm()
        nn.utils.clip_grad_norm_(model.parameters(), bound)
        expected *= bound / norm
    scaler.step(optim)
    torch.testing.assert_close(algorithm.seen[0], expected)
    assert algorithm.seen[0][~model.weight_mask].any()
