"""The spec of a run: the JSON and the hash of committed runs, ids that nothing reads."""

import pytest
from pydantic import ValidationError

from experiments import tasks
from experiments.specs.expand import BUDGET_CORE_S, all_runs, computation_costs, study_runs
from experiments.specs.lookup import find_data, find_runs, rerun_command
from experiments.specs.read import load_study, study_names
from experiments.specs.run import RunSpec
from experiments.specs.schema import SCALES, SpecError
from experiments.store import reference
from tests.experiments.specs.edit import BASE, edited, error_of, two_phases, with_transform


def test_committed_specs_keep_their_json_and_their_hash():
    committed = reference.find_all(reference.entries())
    assert committed
    for name, record in committed.items():
        spec = RunSpec.model_validate(record["spec"])
        assert spec.to_json() == record["spec"], name
        assert spec.hash == record["spec_hash"], name


def test_a_spec_is_frozen_and_typed_and_its_hash_ignores_the_suite():
    spec = next(iter(all_runs("smoke").values())).spec
    for section, key in ((spec, "seed"), (spec.recipe, "steps"), (spec.data, "name")):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(section, key, 1)
    with pytest.raises(ValidationError, match="extra"):
        edited(spec, lambda value: value.update(note=1))
    spec = next(iter(all_runs("smoke").values())).spec
    other = edited(spec, lambda spec: spec.update(suite="small"))
    assert other.hash == spec.hash
    assert edited(spec, lambda spec: spec.update(seed=9)).hash != spec.hash


def test_an_id_has_all_digits_of_its_sparsity(write):
    def change(study):
        study["methods"]["static"] |= {
            "final_sparsity": 0.875,
            "sparsity": {"algorithm": "static", "sparsity": 0.875},
        }
        study["scales"]["smoke"][0]["model"]["label"] = "gpt-s2"

    runs = all_runs("smoke", folder=write(change))
    by_method = {run.spec.method: run for run in runs.values()}
    assert "__static-s0.875__" in by_method["static"].id
    assert "__set-s0.80__" in by_method["set"].id
    assert by_method["dense"].spec.final_sparsity == 0.0


def test_levels_stand_for_methods_at_each_sparsity(write):
    explicit = all_runs("small", folder=write(lambda study: None))

    def change(study):
        for name in ("gmp", "rigl"):
            methods, one = study["methods"], study["methods"][name]
            levels = {k: methods.pop(k)["final_sparsity"] for k in list(methods)
                      if k.rstrip("0123456789") == name}  # fmt: skip
            del one["final_sparsity"]
            schedule = one["sparsity"]["sparsity"]
            if isinstance(schedule, dict):
                schedule["end_sparsity"] = "level"
            else:
                one["sparsity"]["sparsity"] = "level"
            methods[f"any-{name}"] = {"levels": levels, **one}

    made = all_runs("small", folder=write(change))
    assert made == explicit
    assert {run.spec.final_sparsity for run in made.values()} == {0.0, 0.8, 0.9, 0.95}


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"levels": [0.5]}, "m.levels is"),
        ({"levels": {"rigl": 0.5}}, "'rigl' is defined twice"),
        ({"levels": {"m50": 0.5}, "final_sparsity": 0.5}, "exclude each other"),
        ({"levels": {"m50": 1.5}}, "methods.m50.final_sparsity is 1.5"),
    ],
)
def test_wrong_levels_are_one_sentence(write, section, words):
    message = error_of(write(lambda s: s["methods"].update(m={"recipe": "full-batch", **section})))
    assert words in message


NAMES = ["a/b", "../up", ".hidden", "-dash", "a__b", "<b>", "{x}", "a b", "a$(touch x)b", "", "é",
         "line\n", "x" * 65]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_have_one_grammar(write, name):
    def rename(table, old):
        table[name] = table.pop(old)

    for change in (
        lambda s: s["scales"]["smoke"][0]["model"].update(label=name),
        lambda s: s["scales"]["smoke"][0].update(label=name),
        lambda s: rename(s["methods"], "static95"),
        lambda s: s["methods"].update(m={"recipe": "full-batch", "levels": {name: 0.5}}),
        lambda s: s["recipes"].update({name: {}}),
        lambda s: s.update(name=name),
    ):
        assert "is no name: up to 64 letters" in error_of(write(change))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: a\nname: b", "line 2: the key name occurs twice in one mapping"),
        ("name: a\nmethods:\n  1: {}\n  b: {}", "line 3: the key 1 is of type int"),
        ("name: a\nmethods: {on: {}}", "the key on is of type bool"),
        ("name: [", "not valid YAML"),
        ("", "the file"),
    ],
)
def test_wrong_keys_of_yaml_are_one_sentence(tmp_path, text, words):
    (tmp_path / "a.yaml").write_text(text)
    assert words in error_of(tmp_path)


def test_data_of_a_folder_is_found_and_a_wrong_folder_is_one_sentence():
    task, data = find_data("wikipedia-start-v512")
    assert (task, data.name, data.label) == ("lm", "wikipedia-start", "wikipedia-start-v512")
    with pytest.raises(SpecError, match="data is 'wikipedia-strat-v512'.*did you mean"):
        find_data("wikipedia-strat-v512")


def test_one_command_repeats_several_runs_of_one_scale():
    runs = [run for run in all_runs("quick").values() if "sparsity_library" in run.studies]
    command = rerun_command(run.id for run in runs)
    assert [run.id for run in find_runs(command.rpartition("=")[2])] == [r.id for r in runs]
    by_seed = sorted(run.id for run in runs if "__rigl90-s0.90__wikipedia-start" in run.id)
    assert len(by_seed) == 3
    assert rerun_command(by_seed) == f"snakemake rerun --config run={by_seed[0]},1,2"
    other = next(iter(all_runs("smoke")))
    for wrong, words in ((other, "one scale"), ("77", "has no twin of seed 77")):
        with pytest.raises(SpecError, match=words):
            find_runs(f"{by_seed[0]},{wrong}")


# Studies become runs


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


def test_a_second_phase_names_its_first(write):
    runs = all_runs("smoke", folder=write(two_phases))
    second = next(run for run in runs.values() if run.spec.method == "finetuned")
    first = runs[second.first]
    assert first.spec.method == "set" and first.spec.seed == second.spec.seed
    assert second.spec.starts_from.spec_hash == first.spec.hash
    assert first.first is None

    def other_first(study):
        two_phases(study)
        study["methods"]["set"]["sparsity"]["seed"] = 7

    other = all_runs("smoke", folder=write(other_first))[second.id]
    assert other.spec.hash != second.spec.hash


def test_a_transformation_is_part_of_the_spec(write):
    runs = all_runs("smoke", folder=write(with_transform))
    run = next(run for run in runs.values() if run.spec.method == "wide")
    assert run.spec.to_json()["transform"] == {"family": "wide", "sparsity": 0.5}
    assert "wide-s0.50" in run.id
    assert all(r.spec.transform is None for r in runs.values() if r is not run)
