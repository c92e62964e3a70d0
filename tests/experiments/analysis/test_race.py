"""Ratios of times against entries whose curves are known."""

import math

import pandas as pd
import pytest

from experiments.analysis import race, style
from experiments.analysis.figures import race as drawn
from experiments.specs.lookup import planned_study
from experiments.specs.planned import NO_STUDY
from experiments.specs.read import load_study
from tests.experiments.analysis import synthetic


def entry(
    method,
    offset,
    slope=0.1,
    seeds=(0, 1, 2),
    budgets=(30, 60),
    machine="abcd",
    noise=0.0,
    cpu=None,
):
    """Ends of an entry whose loss is offset - slope * log seconds."""
    return pd.DataFrame(
        {
            "run": f"{method}-{seconds}-{seed}",
            "model": "m",
            "dataset": "text",
            "method": method,
            "algorithm": "dense" if method.startswith("dense") else "static",
            "sparsity": 0.0 if method.startswith("dense") else 0.9,
            "recipe": f"b{seconds}",
            "seed": seed,
            "machine": machine,
            "seconds": float(seconds),
            "cpu_seconds": float(seconds) if cpu is None else cpu(method, float(seconds)),
            "loss": offset - slope * math.log(seconds) + noise * (-1) ** seed,
        }
        for seconds in budgets
        for seed in seeds
    )


@pytest.fixture(autouse=True)
def known_machines(monkeypatch):
    monkeypatch.setattr("experiments.store.tidy.is_known", lambda key: key != "none")


def test_the_ratio_is_that_of_the_laws_that_made_the_losses():
    """At loss c the times are exp((offset - c) / slope), so 0.05 of offset is a factor e^0.5."""
    dense, sparse = entry("dense", 2.0), entry("sparse", 2.05)
    found = race.ratio(dense, sparse)
    assert found.value == pytest.approx(math.exp(-0.5))
    assert found.inside and found.num_seeds == 3
    assert found.target == pytest.approx(2.05 - 0.1 * math.log(60))
    other = race.ratio(sparse, dense)
    assert other.value == pytest.approx(math.exp(0.5))


def test_beyond_its_budgets_a_time_is_extrapolated_and_says_so():
    found = race.ratio(entry("dense", 2.0), entry("sparse", 2.2))
    assert found.value == pytest.approx(math.exp(-2)) and not found.inside


def test_the_interval_is_of_the_seeds_logarithms():
    """Noise of one side by seed: log ratios are -0.5 +- 0.1, a t interval of four values."""
    dense = entry("dense", 2.0, seeds=range(4))
    found = race.ratio(dense, entry("sparse", 2.05, seeds=range(4), noise=0.01))
    half = 3.182446 * 0.2 / math.sqrt(3) / 2  # t quantile, spread of +-0.1, root of 4 seeds
    assert math.log(found.low) == pytest.approx(-0.5 - half, abs=1e-5)
    assert math.log(found.high) == pytest.approx(-0.5 + half, abs=1e-5)


def test_processor_seconds_are_compared_too():
    """One side had half of its core: its processor seconds are half of the clock's."""
    found = race.ratio(entry("dense", 2.0), entry("sparse", 2.0, cpu=lambda _, s: s / 2))
    assert found.value == pytest.approx(1.0) and found.cpu == pytest.approx(2.0)


def test_only_seeds_that_both_ran_at_two_budgets_count():
    assert race.ratio(entry("dense", 2.0, budgets=(60,)), entry("sparse", 2.0)) is None
    found = race.ratio(entry("dense", 2.0, seeds=(1, 2, 7)), entry("sparse", 2.0))
    assert found.num_seeds == 2


def test_the_best_dense_entry_stands_for_dense_and_machines_stay_apart():
    table = race.verdicts(
        pd.concat(
            [
                entry("dense-slow", 2.1),
                entry("dense-fast", 2.0),
                entry("dense-lucky", 1.5, seeds=(0,)),
                entry("sparse", 2.0),
                entry("sparse", 1.0, machine="ef01"),
                entry("sparse", 1.0, machine="none"),
            ]
        )
    )
    assert table[["machine", "dense", "sparse"]].values.tolist() == [
        ["abcd", "dense-fast", "sparse"]
    ]
    assert table["value"].iloc[0] == pytest.approx(1.0)


def said(monkeypatch, *entries):
    monkeypatch.setattr(race, "ends", lambda records: pd.concat(entries))
    nothing = pd.DataFrame()
    return drawn.caption(nothing, nothing, NO_STUDY)


def test_the_caption_says_in_a_sentence_who_is_first_and_by_how_much(monkeypatch):
    dense = entry("dense", 2.0, noise=1e-4)
    text = said(monkeypatch, dense, entry("sparse", 2.05))
    assert "takes 0.61 [0.60, 0.61] of the time of sparse 90%" in text
    assert text.endswith("(3 seeds, 95% interval, machine abcd): dense is first.")
    assert said(monkeypatch, dense, entry("sparse", 1.95)).endswith("sparse is first.")
    noisy = entry("sparse", 2.0, noise=0.05)
    assert said(monkeypatch, dense, noisy).endswith("neither is first.")
    assert said(monkeypatch, dense) == ""


@pytest.mark.parametrize(
    ("data", "unit"),
    [
        ({"name": "enwiki-slice", "vocab_size": 257}, "nats per byte"),  # and the end of text
        ({"name": "grammar", "vocab_size": 257, "tokenizer": "enwiki-slice"}, "nats per byte"),
        ({"name": "enwiki-slice", "vocab_size": 258}, "nats per token"),
        ({"name": "grammar", "vocab_size": 256}, "nats per token"),  # words
        ({"name": "grammar", "vocab_size": 257}, "nats per token"),
        ({"name": "enwiki-slice", "vocab_size": 257, "tokenizer": "a/b"}, "nats per token"),
    ],
)
def test_losses_of_bytes_are_per_byte(data, unit):
    spec = synthetic.spec("dense", 0)
    study = synthetic.planned([{**spec, "data": {**data, "context": 64}}], name="s", scale="quick")
    rows = pd.DataFrame({"run": [spec["id"]], "tokens": [1.0], "images": [None]})
    assert style.loss_unit(rows, study) == unit
    images = rows.assign(tokens=None, images=1.0)
    assert style.loss_unit(images, study) == "nats per image"


def test_the_race_is_measured_in_nats_per_byte(monkeypatch):
    """Its axis, its caption and its rules: the text of the registered race is bytes."""
    study = planned_study(load_study("race"), "small")
    runs = [run for run in study.runs if run.spec.method == "dense-window"]
    records = pd.DataFrame(
        {"run": run.id, "method": "dense-window", "algorithm": "dense", "sparsity": 0.0,
         "seed": run.spec.seed, "machine": "abcd"}
        for run in runs
    )  # fmt: skip
    curves = pd.DataFrame(
        {"run": run.id, "kind": "validation", "metric": metric, "step": step, "tokens": step,
         "images": None, "value": value}
        for run in runs
        for step in (1, 2)
        for metric, value in (("loss", 2.0 / step), (race.CLOCK, 10.0 * step))
    )  # fmt: skip
    (panel,) = drawn.draw(records, curves, study).axes
    assert panel.get_ylabel() == "nats per byte"
    dense, sparse = entry("dense-window", 2.0), entry("rigl-window", 2.05)
    named = dense.assign(run=runs[0].id)
    monkeypatch.setattr(race, "ends", lambda records: pd.concat([named, sparse]))
    assert "held-out loss of 1.641 nats per byte" in drawn.caption(records, curves, study)
    monkeypatch.setattr(race, "ends", lambda records: pd.concat([dense, sparse]))
    assert "held-out loss of 1.641 nats per token" in drawn.caption(records, curves, NO_STUDY)
