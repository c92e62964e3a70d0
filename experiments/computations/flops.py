"""Every published FLOP count beside ours; ours are counted on models, not taken from formulas.

``published``: one row per published number; ``counted as published`` repeats our count under the
source's own convention where it differs from ours, and ``explanation`` says what that is. A row is
``met`` if either is within 1% of the published value, or prints the same digits.
``schedule``: RigL's mean cost per step by stepping through a schedule, beside its formula.
``ledger``: what the device's ledger counts in a real step, beside the closed forms.
"""

from collections.abc import Iterator

import pandas as pd
import torch
from torch import nn

from experiments.computations._language_flops import gpt, gpt3_rows, spdf_rows
from experiments.computations._published_flops import COLUMNS, Row
from experiments.computations._vision_flops import ResNet50, ift_rows, readme_rows, rigl_rows
from experiments.models import gpt2, llama
from sparse_lib.algorithms.static import Static
from sparse_lib.core.group import Group
from sparse_lib.execution.backend import backend, compile
from sparse_lib.flops.ledger import Ledger
from sparse_lib.flops.model import count, gpt_training_step, rigl_mean_step
from sparse_lib.schedules import make_update_schedule


def compute(scale: str) -> dict[str, pd.DataFrame]:
    """All tables; they are the same at every scale."""
    rows = [*spdf_rows(), *rigl_rows(), *readme_rows(), *ift_rows(), *gpt3_rows()]
    return {
        "published": pd.DataFrame(rows, columns=COLUMNS),
        "schedule": pd.DataFrame(schedule_rows()),
        "ledger": pd.DataFrame(ledger_rows()),
    }


def schedule_rows() -> list[Row]:
    """Mean cost of RigL's steps over whole rounds of a schedule, beside the closed form."""
    network = ResNet50()
    sparse = network.forward(network.sparsities(0.9, "erk", first=None))
    dense = network.forward()
    rows = []
    for interval in (1, 10, 100):
        schedule = make_update_schedule({"freq": interval + 1})
        steps = range(1, 20 * (interval + 1) + 1)
        costs = [
            2 * sparse + (dense if schedule.is_update_step(step) else sparse) for step in steps
        ]
        mean = sum(costs) / len(costs)
        formula = rigl_mean_step(sparse, dense, interval)
        rows.append(
            {
                "steps between updates": interval,
                "steps taken": len(costs),
                "mean FLOPs": mean,
                "formula": formula,
                "difference": mean / formula - 1,
            }
        )
    return rows


def ledger_rows() -> list[Row]:
    """One real, skipping training step of small models, beside the closed forms."""
    rows = []
    tokens = torch.arange(64).reshape(2, 32)
    for name, model in _small_models():
        for sparsity in (0.0, 0.75):
            flops = count(model, batch_size=2, sequence_length=32)
            levels = flops.uniform(sparsity)
            if sparsity:
                with torch.random.fork_rng():
                    Group([(list(levels), Static(sparsity, seed=0))]).apply(model)
            run = compile(model, backend("skip", crossover=0))
            with Ledger() as ledger:
                run(input_ids=tokens, labels=tokens).loss.backward()
            counted = ledger.executed_flops
            closed = flops.training_step(levels)
            rows.append(_ledger_row(f"{name}, sparsity {sparsity:.0%}", counted, closed))
    layers, width, vocabulary, length = 2, 64, 256, 32
    flops = count(
        gpt(layers, width, 4, vocabulary, length), batch_size=1, sequence_length=length
    ).training_step()
    formula = gpt_training_step(
        num_layers=layers, hidden_size=width, vocab_size=vocabulary, sequence_length=length
    )
    rows.append(_ledger_row("GPT-2, by the formula of SPDF", flops, int(formula)))
    return rows


def _ledger_row(model: str, counted: int, closed: int) -> Row:
    return {
        "model": model,
        "counted": counted,
        "closed form": closed,
        "difference": counted - closed,
    }


def _small_models() -> Iterator[tuple[str, nn.Module]]:
    sizes = {"hidden_size": 64, "num_layers": 2, "num_heads": 4}
    inputs = {"vocab_size": 256, "context": 32, "eos_id": 0}
    yield "GPT-2", gpt2.build(gpt2.Config(**sizes), **inputs)
    yield "Llama", llama.build(llama.Config(**sizes, intermediate_size=172), **inputs)
