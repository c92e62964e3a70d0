"""Runs that continue another one's state end as runs by themselves do."""

import pytest
import torch
import yaml

from experiments.specs.expand import study_runs
from experiments.specs.read import load_study
from experiments.specs.run import FirstPhase
from experiments.specs.schema import SpecError
from experiments.tasks import warmup_stable_decay
from tests.experiments.specs.edit import edited
from tests.experiments.training.short import dying, run_training, short_spec, weights

STEPS, DECAY = 24, 0.25  # the rate decays from step 18 on


def stable_spec(method: str, steps: int, decay: float, keep=(), **changes):
    """A short run at a constant rate, with a decay over the last share of its steps.

    Masks are updated at steps 2, 6, 10 ... and last where the decay begins, 18 or the end.
    """

    def change(spec):
        spec["recipe"]["stable"] = {"warmup_steps": 4, "decay": decay, "keep": list(keep)}
        if spec["sparsity"] and "update" in spec["sparsity"]:
            stop = 19 if decay else steps
            spec["sparsity"]["update"] = {"freq": 4, "start": 2, "stop": stop}

    return edited(short_spec(method, steps, **changes), change)


def continued(spec, trunk, step: int):
    start = FirstPhase(run=trunk.id, spec_hash=trunk.hash, densify=False, step=step)
    return spec.model_copy(update={"starts_from": start})


@pytest.mark.parametrize("method", ["dense", "rigl"])
def test_a_run_that_continues_ends_as_one_by_itself(method, corpus, tmp_path):
    whole = stable_spec(method, STEPS, DECAY)
    trunk = stable_spec(method, 22, 0.0, keep=(10, 18), id="trunk")
    alone = run_training(whole, corpus, tmp_path / "alone")
    run_training(trunk, corpus, tmp_path / "trunk")
    first = tmp_path / "trunk" / "out" / "model"
    branch = continued(whole, trunk, 18)
    result = run_training(branch, corpus, tmp_path / "branch", first=first)
    assert weights(tmp_path / "branch") == weights(tmp_path / "alone")
    for key in ("layers", "num_nonzero", "flops"):
        assert result[key] == alone[key]
    assert result["final"]["validation_loss"] == alone["final"]["validation_loss"]
    assert 0 < result["borrowed_s"] <= result["wall_s"]
    assert "borrowed_s" not in alone


def test_kept_states_survive_an_interruption_and_others_are_missed(corpus, tmp_path, monkeypatch):
    trunk = stable_spec("rigl", 22, 0.0, keep=(10, 18), id="trunk")
    run_training(trunk, corpus, tmp_path / "whole")
    with dying(monkeypatch, 12), pytest.raises(KeyboardInterrupt):
        run_training(trunk, corpus, tmp_path / "parts")
    run_training(trunk, corpus, tmp_path / "parts")
    for kept in (10, 18):
        name = f"out/model/states/{kept}.pt"
        one, other = (
            torch.load(tmp_path / folder / name, weights_only=True) for folder in ("whole", "parts")
        )
        for key, value in one["model"].items():
            assert torch.equal(value, other["model"][key])
    trunk = stable_spec("dense", 22, 0.0, keep=(10,), id="trunk")
    run_training(trunk, corpus, tmp_path / "trunk")
    spec = continued(stable_spec("dense", STEPS, DECAY), trunk, 18)
    with pytest.raises(ValueError, match="trunk kept no state of step 18"):
        run_training(spec, corpus, tmp_path / "b", first=tmp_path / "trunk" / "out" / "model")


def test_the_rate_warms_up_stays_and_decays():
    recipe = stable_spec("dense", 100, 0.2).recipe.model_copy(
        update={"learning_rate": 1.0, "min_learning_rate": 0.0}
    )
    rates = [warmup_stable_decay(step, recipe) for step in range(100)]
    assert rates[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert set(rates[4:80]) == {1.0}
    assert rates[80] == pytest.approx(20 / 21)
    assert rates[99] == pytest.approx(1 / 21)


SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_layers": 1, "num_heads": 1}
GRID = {
    "model": {"name": "llama", "label": "tiny", **SIZES},
    "data": {"name": "wikipedia-start", "vocab_size": 257, "context": 16},
    "recipe": {"tokens": 6400, "batch_size": 4, "learning_rate": 0.01},
    "suite": "smoke",
    "methods": {"dense": 1, "set": 1},
    "core_seconds": 1,
}


def study(tmp_path, *, keep=(40, 80), masks=None, **changes):
    stable = {"warmup_steps": 5, "decay": 0.2}
    trunk = {**GRID, "label": "trunk", "variant": "trunk"}
    trunk["recipe"] = {**GRID["recipe"], "stable": {**stable, "decay": 0, "keep": list(keep)}}
    branch = {**GRID, "continues": "trunk", "recipe": {**GRID["recipe"], "stable": stable}}
    branch |= {"variant": "half", **changes}
    sparsity = {"algorithm": "set", "sparsity": 0.5, "update": {"freq": 7, "stop": "decay"}}
    own = {"recipe": "whole", "final_sparsity": 0.5, "sparsity": {**sparsity, **(masks or {})}}
    value = {
        **dict.fromkeys(("title", "source", "description"), "t"),
        **dict.fromkeys(("tables", "figures"), []),
        "name": "laws",
        "recipes": {"whole": {}, "half": {"budget_scale": 0.5}, "trunk": {"budget_scale": 0.8}},
        "methods": {"dense": {"recipe": "whole"}, "set": own},
        "scales": {"smoke": [trunk, branch, {**branch, "variant": "whole"}]},
    }
    (tmp_path / "laws.yaml").write_text(yaml.safe_dump(value))
    return load_study("laws", folder=tmp_path)


def test_a_grid_continues_another_where_its_rate_decays_after_an_update_of_that_step(tmp_path):
    specs = [run.spec for run in study_runs(study(tmp_path), "smoke")]
    runs = {spec.recipe.name: spec for spec in specs if spec.method == "set"}
    assert runs["trunk"].starts_from is None
    for name, step in (("half", 40), ("whole", 80)):
        start = {"run": runs["trunk"].id, "spec_hash": runs["trunk"].hash, "densify": False}
        assert runs[name].to_json()["starts_from"] == start | {"step": step}
        assert step == runs[name].sparsity["update"]["stop"]
    masks = {"update": {"freq": 8, "start": 16, "stop": "decay"}}
    specs = [run.spec for run in study_runs(study(tmp_path, masks=masks), "smoke")]
    stops = {spec.recipe.name: spec.sparsity["update"]["stop"] for spec in specs if spec.sparsity}
    # 40 and 80 are steps of an update, and of a state that is kept after it; `stop` is exclusive.
    assert stops == {"half": 41, "whole": 81, "trunk": 81}


COSINE = {"type": "cosine", "init": 0.3, "half_period": "75%"}
PART = "cannot continue the grid 'trunk': "


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (  # masks would part before the decay
            {"masks": {"drop_fraction": COSINE}},
            f"{PART}sparsity.drop_fraction is .*_period': 38.* in one and .*'half_period': 60",
        ),
        ({"masks": {"update": {"freq": 4, "start": 2, "stop": "30%"}}}, f"{PART}only .* step 18,"),
        ({"masks": {"update": {"freq": "10%"}}}, f"{PART}only one of them .* its masks at step 5,"),
        ({"keep": (80,)}, "decays from step 40 on, but the grid 'trunk' keeps the steps \\[80\\]"),
        ({"methods": {"dense": [3]}}, "has no run of dense with seed 3"),
        ({"continues": "trnk"}, "continues is 'trnk'"),
        ({"learning_rate_scale": {"set": 2.0}}, "recipe.learning_rate differs"),
        ({"model": {**GRID["model"], "hidden_size": 32}}, "model differs"),
    ],
)
def test_what_cannot_be_continued_is_one_sentence(tmp_path, changes, sentence):
    with pytest.raises(SpecError, match=sentence):
        study_runs(study(tmp_path, **changes), "smoke")
