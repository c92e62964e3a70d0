"""Studies become runs."""

import pytest

from experiments import tasks
from experiments.specs.expand import BUDGET_CORE_S, all_runs, computation_costs, study_runs
from experiments.specs.read import load_study, study_names
from experiments.specs.schema import SCALES
from tests.experiments.specs.edit import BASE, edited, error_of, two_phases, with_transform


def test_two_studies_share_a_run_and_one_id_with_two_specs_is_refused(write):
    write(lambda s: None)
    folder = write(lambda s: s.update(name="twin"), name="twin")
    runs = all_runs("smoke", folder=folder)
    assert {run.studies for run in runs.values()} == {("sparsity_library", "twin")}

    def change(study):
        study["name"] = "twin"
        study["scales"]["smoke"][0]["recipe"].update(tokens=81920)

    message = error_of(write(change, name="twin"))
    assert "one spec in sparsity_library.yaml and another in twin.yaml" in message


def test_sparse_runs_halve_the_batch_and_double_the_steps_and_shares_become_steps():
    study = load_study("sparsity_library")
    smoke = {run.spec.method: run.spec for run in study_runs(study, "smoke")}
    rigl = next(run.spec for run in study_runs(study, "quick") if run.spec.method == "rigl90")
    static, dense = smoke["static"], smoke["dense"]
    assert static.recipe.batch_size * 2 == dense.recipe.batch_size
    assert static.recipe.steps == 2 * dense.recipe.steps
    assert rigl.sparsity["update"]["stop"] == round(0.75 * rigl.recipe.steps)
    assert rigl.sparsity["seed"] == rigl.seed


def test_a_grid_may_name_its_seeds_and_its_recipe_variant(write):
    def change(study):
        scales = {"batch_scale": 0.5, "learning_rate_scale": 4.0, "budget_scale": 3.0}
        study["recipes"]["long"] = scales
        rates = {"learning_rate_scale": {"static": 0.5, "rigl": 3.0}, "variant": "long"}
        study["scales"]["smoke"][0] |= {"methods": {"static": [7, 9]}, **rates}

    runs = [*all_runs("smoke", folder=write(change)).values()]
    base = BASE["scales"]["smoke"][0]["recipe"]
    assert [run.spec.seed for run in runs] == [7, 9]
    recipe = runs[0].spec.recipe
    assert recipe.name == "long" and "__long__" in runs[0].id
    assert recipe.learning_rate == 4.0 * 0.5 * base["learning_rate"]
    assert recipe.tokens == 3 * base["tokens"]
    assert recipe.steps == 3 * base["tokens"] // (8 * 32)


def test_seeds_that_chose_settings_are_no_evidence():
    studies = [load_study(name) for name in study_names()]
    for scale in SCALES:
        seeds = {True: set(), False: set()}
        for study in studies:
            seeds[bool(study.trials)] |= {run.spec.seed for run in study_runs(study, scale)}
        assert not seeds[True] & seeds[False]
    for study in studies:  # trials name the studies that they are for
        assert bool(study.trials_for) == bool(study.trials), study.name
        assert not any(load_study(name).trials for name in study.trials_for), study.name


def test_a_grid_may_name_another_task_than_its_models_own(write):
    images = {
        "model": {"name": "gpt2", "label": "m", "hidden_size": 8, "num_layers": 1, "num_heads": 1},
        "data": {"name": "glyphs", "num_images": 100},
        "recipe": {"epochs": 1, "batch_size": 8, "learning_rate": 0.1},
        "task": "vision",
    }
    folder = write(lambda s: s["scales"]["smoke"][0].update(images))
    specs = [run.spec for run in all_runs("smoke", folder=folder).values()]
    assert {spec.task for spec in specs} == {"vision"}
    assert {type(spec.recipe) for spec in specs} == {tasks.get("vision").Recipe}


@pytest.mark.parametrize("scale", BUDGET_CORE_S)
def test_the_planned_cost_stays_in_the_budget(scale):
    runs = sum(run.core_seconds for run in all_runs(scale).values())
    computations = sum(computation_costs(scale).values())
    assert runs + computations <= BUDGET_CORE_S[scale]


def test_spec_hash_ignores_the_suite():
    spec = next(iter(all_runs("smoke").values())).spec
    other = edited(spec, lambda spec: spec.update(suite="quick"))
    assert other.hash == spec.hash
    assert edited(spec, lambda spec: spec.update(seed=9)).hash != spec.hash


def test_a_second_phase_names_its_first(write):
    runs = all_runs("smoke", folder=write(two_phases))
    second = next(run for run in runs.values() if run.spec.method == "finetuned")
    first = runs[second.first]
    assert first.spec.method == "set" and first.spec.seed == second.spec.seed
    assert second.spec.starts_from.spec_hash == first.spec_hash
    assert first.first is None

    def other_first(study):
        two_phases(study)
        study["methods"]["set"]["sparsity"]["seed"] = 7

    other = all_runs("smoke", folder=write(other_first))[second.id]
    assert other.spec_hash != second.spec_hash


def test_a_transformation_is_part_of_the_spec(write):
    runs = all_runs("smoke", folder=write(with_transform))
    run = next(run for run in runs.values() if run.spec.method == "wide")
    assert run.spec.to_json()["transform"] == {"family": "wide", "sparsity": 0.5}
    assert "wide-s0.50" in run.id
    assert all(r.spec.transform is None for r in runs.values() if r is not run)
