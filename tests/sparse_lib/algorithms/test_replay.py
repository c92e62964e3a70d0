"""RigL and SET written once more with plain tensors: the same weights and masks, bit for bit.

What is replayed is the order of events: backward, masked gradient, optimizer, masked weights and
momentum, drop by magnitude, growth by the dense gradient of the same step or at random, masking.
"""

import hashlib
import math

import pytest
import torch
from torch import nn

import sparse_lib as sl
from tests.cases import driven

LR, MOMENTUM, DECAY = 0.1, 0.9, 0.01
FREQ, STOP, NUM_STEPS = 3, 17, 21
SEED = 11


def batch(step):
    return torch.randn(8, 12, generator=torch.Generator().manual_seed(step))


def loss_of(output):
    return output.sin().pow(2).mean()


def count(sparsity, numel):
    return max(1, math.floor((1 - sparsity) * numel + 0.5))


def stream(name, index):
    """The documented one: SHA-256 of seed, name and number of the update."""
    digest = hashlib.sha256(f"{SEED}\0{name}\0{index}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def at_random(among, num, source):
    """``num`` of some positions: draws until enough differ, or where they are few, a shuffle."""
    candidates = [i for i, candidate in enumerate(among) if candidate]
    chosen = [False] * len(among)
    if num > len(candidates) / 2 or len(candidates) < len(among) / 4:
        for i in torch.randperm(len(candidates), generator=source).tolist()[:num]:
            chosen[candidates[i]] = True
        return chosen
    while sum(chosen) < num:
        for i in torch.randint(len(among), (num - sum(chosen),), generator=source).tolist():
            chosen[i] = among[i]
    return chosen


def best(scores, among, num):
    """The ``num`` highest scores among some positions; equal ones by position."""
    order = sorted((i for i in range(len(scores)) if among[i]), key=lambda i: (-scores[i], i))
    chosen = [False] * len(scores)
    for i in order[:num]:
        chosen[i] = True
    return chosen


def drop_fraction(step):
    return 0.4 * (1 + math.cos(math.pi * step / STOP)) / 2 if step < STOP else 0.0


SPARSITIES = {"constant": lambda step: 0.75, "rising": lambda step: 0.3 + 0.03 * step}
SPECS = {"constant": 0.75, "rising": {"type": "linear", "init": 0.3, "slope": 0.03}}


def replay(by_gradient, sparsity):
    torch.manual_seed(0)
    first, second = nn.Linear(12, 16), nn.Linear(16, 6, bias=False)
    named = {"0.weight": first.weight, "0.bias": first.bias, "2.weight": second.weight}
    weights = {name: param.detach() for name, param in named.items()}
    masks, momenta, trail = {}, {}, []
    for name, weight in weights.items():
        score = torch.rand(weight.numel(), generator=stream(name, 0)).tolist()
        kept = best(score, [True] * len(score), count(sparsity(0), len(score)))
        masks[name] = torch.tensor(kept).view_as(weight)
        weight[~masks[name]] = 0
    num_updates = 0
    for step in range(1, NUM_STEPS + 1):
        leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
        hidden = nn.functional.linear(batch(step), leaves["0.weight"], leaves["0.bias"]).tanh()
        output = nn.functional.linear(hidden, leaves["2.weight"])
        dense = dict(zip(leaves, torch.autograd.grad(loss_of(output), list(leaves.values()))))
        for name, weight in weights.items():
            gradient = dense[name].where(masks[name], torch.zeros(()))
            gradient = gradient.add(weight, alpha=DECAY)
            if name in momenta:
                momenta[name].mul_(MOMENTUM).add_(gradient)
            else:
                momenta[name] = gradient.clone()
            weight.add_(momenta[name], alpha=-LR)
            for tensor in (weight, momenta[name]):
                tensor[~masks[name]] = 0
        if step % FREQ == 0 and step < STOP:
            num_updates += 1
            for name, weight in weights.items():
                mask, size = masks[name].flatten().tolist(), weight.numel()
                target = count(sparsity(step), size)
                keep = min(count(drop_fraction(step), sum(mask)), target)
                kept = best(weight.abs().flatten().tolist(), mask, keep)
                absent, missing = [not present for present in kept], target - sum(kept)
                if by_gradient:
                    grown = best(dense[name].abs().flatten().tolist(), absent, missing)
                else:
                    grown = at_random(absent, missing, stream(name, num_updates))
                new = [a or b for a, b in zip(kept, grown)]
                masks[name] = torch.tensor(new).view_as(weight)
                for tensor in (weight, momenta[name]):
                    tensor[~masks[name]] = 0
        trail.append({n: (weights[n].clone(), masks[n].clone(), momenta[n].clone()) for n in masks})
    return trail


@pytest.mark.parametrize("sparsity", SPARSITIES)
@pytest.mark.parametrize("cls", [sl.RigL, sl.SET])
@pytest.mark.parametrize("foreach", [False, True])
def test_library_equals_plain_tensors(cls, sparsity, foreach):
    model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 6, bias=False))
    cosine = {"type": "cosine", "init": 0.4, "half_period": STOP}
    options = {"update": {"freq": FREQ, "stop": STOP}, "drop_fraction": cosine, "seed": SEED}
    algorithm = cls(SPECS[sparsity], **options)
    options = {"momentum": MOMENTUM, "weight_decay": DECAY, "foreach": foreach}
    optimizer = driven(algorithm, model, lr=LR, **options)
    trail = replay(cls is sl.RigL, SPARSITIES[sparsity])
    moved = 0
    for step in range(1, NUM_STEPS + 1):
        optimizer.zero_grad()
        loss_of(model(batch(step))).backward()
        before = model[0].weight_mask.clone()
        optimizer.step()
        moved += not torch.equal(before, model[0].weight_mask)
        for name, sparse in algorithm.sparse_params.items():
            weight, mask, momentum = trail[step - 1][name]
            assert torch.equal(sparse.mask, mask), (step, name)
            assert torch.equal(sparse.param, weight), (step, name)
            state = optimizer.state[sparse.param]["momentum_buffer"]
            assert torch.equal(state, momentum), (step, name)
    assert moved == 5  # steps 3, 6, ..., 15
