"""Studies become runs; every mistake is one sentence that names the key."""

import copy
import json

import pytest
import yaml

from experiments.specs import code as closure
from experiments.specs import plan, read, schema
from experiments.store import paths
from tests.experiments.specs.edit import edited

BASE = yaml.safe_load((plan.STUDIES / "sparsity_library.yaml").read_text())
# One section per method, as its levels stand for them.
BASE["methods"] = plan.load_study("sparsity_library").model_dump(exclude_unset=True)["methods"]


@pytest.fixture
def write(tmp_path):
    """Write an edited study and return its folder."""

    def edit(change, name="sparsity_library"):
        study = copy.deepcopy(BASE)
        change(study)
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(study))
        return tmp_path

    return edit


def error_of(folder) -> str:
    with pytest.raises(plan.SpecError) as caught:
        for scale in plan.SCALES:
            plan.all_runs(scale, folder=folder)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.update(sede=1), ["unknown key sede"]),
        (
            lambda s: s["scales"]["smoke"][0]["recipe"].update(learning_rat=1),
            ["unknown key", "learning_rat"],
        ),
        (
            lambda s: s["methods"]["rigl"]["sparsity"].update(algorithm="rigll"),
            ["'rigll'", "did you mean 'rigl'"],
        ),
        (lambda s: s["methods"]["rigl"].update(final_sparsity=1.2), ["final_sparsity", "1.2"]),
        (lambda s: s["methods"]["rigl"].update(recipe="half"), ["'half'", "half-batch"]),
        (
            lambda s: s["scales"]["smoke"][0]["recipe"].update(learning_rate=-1),
            ["learning_rate", "-1", "greater than 0"],
        ),
        (lambda s: s["scales"]["smoke"][0]["model"].update(name="lama"), ["'lama'", "'llama'"]),
        (lambda s: s["scales"]["smoke"][0]["model"].update(num_heads=5), ["multiple"]),
        (lambda s: s["scales"]["smoke"][0].update(suite="smok"), ["'smok'", "'smoke'"]),
        (lambda s: s["scales"]["smoke"][0]["recipe"].update(tokens=10), ["tokens"]),
        (lambda s: s["scales"]["smoke"].append(s["scales"]["smoke"][0]), ["occurs twice"]),
        (lambda s: s["scales"]["smoke"][0].update(variant="half"), ["variant", "'half'"]),
        (
            lambda s: s["scales"]["smoke"][0].update(learning_rate_scale={"stat": 2}),
            ["learning_rate_scale", "'stat'", "did you mean 'static'"],
        ),
        (lambda s: s["scales"]["smoke"][0]["methods"].update(static=[-1]), ["static", "-1"]),
        (
            lambda s: s["methods"]["rigl"]["sparsity"]["update"].update(stop="most%"),
            ["stop", "'most%'", "75%"],
        ),
        (lambda s: s.update(name="other"), ["'other'", "sparsity_library"]),
        (
            lambda s: s.update(figurs=s.pop("figures")),
            ["unknown key figurs", "did you mean 'figures'"],
        ),
        (
            lambda s: s["scales"]["smoke"][0]["model"].update(num_head=2),
            ["num_head", "known are", "did you mean 'num_heads'"],
        ),
        (lambda s: s["figures"].append("churn_itopp"), ["figures", "did you mean 'churn_itop'"]),
        (lambda s: s["tables"].append("run"), ["tables", "did you mean 'runs'"]),
        (lambda s: s["claims"]["primary"].append("C901"), ["claims.primary", "'C901'"]),
    ],
)
def test_a_mistake_is_one_sentence(write, change, words):
    message = error_of(write(change))
    for word in words:
        assert word in message


def test_one_id_with_two_specs_is_refused(write):
    write(lambda s: None)
    folder = write(
        lambda s: (
            s.update(name="twin", claims={}),
            s["scales"]["smoke"][0]["recipe"].update(tokens=81920),
        ),
        name="twin",
    )
    message = error_of(folder)
    assert "one spec in sparsity_library.yaml and another in twin.yaml" in message


def test_two_studies_share_a_run(write):
    write(lambda s: None)
    folder = write(lambda s: s.update(name="twin", claims={}), name="twin")
    runs = plan.all_runs("smoke", folder=folder)
    assert {run.studies for run in runs.values()} == {("sparsity_library", "twin")}


def test_a_claim_belongs_to_one_study(write):
    write(lambda s: None)
    folder = write(lambda s: s.update(name="twin", claims={"primary": ["C002"]}), name="twin")
    message = error_of(folder)
    assert "twin.yaml" in message and "C002" in message and "sparsity_library.yaml" in message


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ({"a": {}, "b": {}, "direction": "less"}, "key metric is missing"),
        ({"metric": "loss", "a": {}, "b": {}}, "key direction is missing"),
        ({"metric": "loss", "a": {}, "b": {}, "direction": "lower"}, "direction is 'lower'"),
        ({"metric": "loss", "dirction": "less"}, "did you mean 'direction'"),
        ({"metric": "loss", "a": {"methd": "set"}, "b": {}, "direction": "less"}, "methd"),
        ({"exact": "cubic_schedule"}, "key tested_as is missing"),
        ({"metric": "loss", "order": [], "not_tested": "why"}, "one of"),
        ({"metric": "loss", "every": [{"a": {}, "b": {}}]}, "key direction is missing"),
    ],
)
def test_a_mistake_in_a_claims_test_is_one_sentence(tmp_path, monkeypatch, test, words):
    monkeypatch.setattr(read, "PUBLISHED", tmp_path)
    (tmp_path / "claims.csv").write_text("claim_id\nC001\n")
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump({"C001": test}))
    for cached in (plan.claim_ids, plan.claim_tests):
        monkeypatch.setattr(read, cached.__name__, cached.__wrapped__)
    with pytest.raises(plan.SpecError, match=words) as caught:
        read.claim_tests()
    assert str(caught.value).startswith("tests.yaml: ") and "C001" in str(caught.value)


def test_an_algorithms_file_has_the_name_of_its_class(tmp_path, monkeypatch):
    folder = tmp_path / "sparse_lib" / "algorithms"
    folder.mkdir(parents=True)
    (folder / "row_fair.py").write_text("class RowFair:\n    pass\n")
    (folder / "broken.py").write_text("class Broken(\n")
    monkeypatch.setattr(schema, "ROOT", tmp_path)
    monkeypatch.setattr(closure, "ROOT", tmp_path)
    for name, words in (
        ("row_fair", "row_fair.py defines RowFair"),
        ("broken", "broken.py, line 1: not valid Python"),
    ):
        with pytest.raises(ValueError, match=words):
            schema.Method(recipe="r", sparsity={"algorithm": name})


def test_sparse_runs_halve_the_batch_and_double_the_steps():
    study = plan.load_study("sparsity_library")
    runs = {run.spec.method: run.spec.recipe for run in plan.study_runs(study, "smoke")}
    assert runs["static"].batch_size * 2 == runs["dense"].batch_size
    assert runs["static"].steps == 2 * runs["dense"].steps


def test_a_grid_may_name_its_seeds_and_its_recipe_variant(write):
    def change(study):
        study["recipes"]["long"] = {
            "batch_scale": 0.5,
            "learning_rate_scale": 4.0,
            "budget_scale": 3.0,
        }
        study["scales"]["smoke"][0] |= {
            "methods": {"static": [7, 9]},
            "variant": "long",
            "learning_rate_scale": {"static": 0.5, "rigl": 3.0},
        }

    folder = write(change)
    runs = plan.study_runs(plan.load_study("sparsity_library", folder=folder), "smoke")
    base = BASE["scales"]["smoke"][0]["recipe"]
    assert [run.spec.seed for run in runs] == [7, 9]
    recipe = runs[0].spec.recipe
    assert recipe.name == "long" and "__long__" in runs[0].id
    assert recipe.learning_rate == 4.0 * 0.5 * base["learning_rate"]
    assert recipe.tokens == 3 * base["tokens"]
    assert recipe.steps == 3 * base["tokens"] // (8 * 32)


def test_seeds_that_chose_settings_are_no_evidence():
    for scale in plan.SCALES:
        studies = [plan.load_study(name) for name in plan.study_names()]
        seeds = {
            trials: {
                run.spec.seed
                for study in studies
                if study.trials is trials
                for run in plan.study_runs(study, scale)
            }
            for trials in (True, False)
        }
        assert not seeds[True] & seeds[False]


def test_shares_of_the_run_become_steps():
    study = plan.load_study("sparsity_library")
    run = next(r for r in plan.study_runs(study, "quick") if r.spec.method == "rigl")
    steps = run.spec.recipe.steps
    assert run.spec.sparsity["update"]["stop"] == round(0.75 * steps)
    assert run.spec.sparsity["seed"] == run.spec.seed


@pytest.mark.parametrize("scale", plan.BUDGET_CORE_S)
def test_the_planned_cost_stays_in_the_budget(scale):
    runs = sum(run.core_seconds for run in plan.all_runs(scale).values())
    computations = sum(plan.computation_costs(scale).values())
    assert runs + computations <= plan.BUDGET_CORE_S[scale]


def test_quick_stays_in_this_studys_share():
    runs = plan.study_runs(plan.load_study("sparsity_library"), "quick")
    assert sum(run.core_seconds for run in runs) <= 600


def test_spec_hash_ignores_the_suite():
    spec = next(iter(plan.all_runs("smoke").values())).spec
    other = edited(spec, lambda spec: spec.update(suite="quick"))
    assert other.hash == spec.hash
    assert edited(spec, lambda spec: spec.update(seed=9)).hash != spec.hash


def forget() -> None:
    """Drop what was read of files that a test rewrites."""
    plan.code_hash.cache_clear()
    closure._syntax.cache_clear()


def test_code_hash_ignores_comments_and_docstrings(tmp_path):
    texts = {
        "a": '"""Doc."""\nX = 1\n',
        "b": '"""Other."""\n\n# why\nX = 1\n',
        "c": "X = 2\n",
    }
    hashes = {}
    for name, text in texts.items():
        path = plan.ROOT / "tests" / "experiments" / "_code_hash_probe.py"
        path.write_text(text)
        try:
            forget()
            hashes[name] = plan.code_hash(path)
        finally:
            path.unlink()
    forget()
    assert hashes["a"] == hashes["b"] != hashes["c"]


def algorithm_files(name: str) -> set[str]:
    """Algorithm files that a run of this algorithm depends on."""
    entries = [
        plan.ROOT / "experiments/training/loop.py",
        plan.ROOT / f"sparse_lib/algorithms/{name}.py",
    ]
    files = closure.imported_files(*entries)
    return {p.stem for p in files if p.parent.name == "algorithms"} - {"__init__"}


def test_a_run_depends_on_its_own_algorithm_only():
    assert algorithm_files("static") == {"static"}
    assert "rigl" not in algorithm_files("set")
    assert "rigl" in algorithm_files("granet")
    assert "granet" not in algorithm_files("rigl")


def test_a_reference_record_is_reused_only_if_spec_and_data_agree(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "REFERENCE_RUNS", tmp_path / "reference")
    run = next(iter(plan.all_runs("smoke").values()))
    data = tmp_path / "data"
    assert not plan.reusable(run, data_folder=data)
    run.reference.parent.mkdir()
    record = {"spec_hash": run.spec_hash, "spec": run.spec.to_json(), "data": {"hash": "h"}}
    run.reference.write_text(json.dumps(record))
    assert plan.reusable(run, data_folder=data)
    meta = data / run.data_label / "meta.json"
    meta.parent.mkdir(parents=True)
    meta.write_text('{"hash": "h"}')
    assert plan.reusable(run, data_folder=data)
    meta.write_text('{"hash": "other"}')
    assert not plan.reusable(run, data_folder=data)
    run.reference.write_text(json.dumps({**record, "spec_hash": "old"}))
    meta.unlink()
    assert not plan.reusable(run, data_folder=data)


def test_committed_records_answer_for_todays_runs(tmp_path):
    """A new key of the spec must not change the hash of runs that do not use it."""
    committed = {path.stem for path in plan.REFERENCE.glob("*.json")}
    assert committed
    planned = {k: run for scale in plan.SCALES for k, run in plan.all_runs(scale).items()}
    for run_id in committed:
        assert plan.reusable(planned[run_id], data_folder=tmp_path)


def test_data_of_a_folder_is_found_and_a_wrong_folder_is_one_sentence():
    task, data = plan.find_data("grammar-v256")
    assert (task, data.name, data.label) == ("lm", "grammar", "grammar-v256")
    with pytest.raises(plan.SpecError, match="data is 'gramar-v256'.*did you mean"):
        plan.find_data("gramar-v256")


def two_phases(study: dict) -> None:
    """Add sparse pre-training and dense fine-tuning to the smoke scale."""
    study["methods"]["finetuned"] = {
        "recipe": "full-batch",
        "starts_from": {"method": "set", "densify": True},
    }
    pretraining = study["scales"]["smoke"][0]
    pretraining["label"] = "pretraining"
    second = copy.deepcopy(pretraining)
    second.update(label=None, pretrained="pretraining", methods={"finetuned": 1})
    second["recipe"]["tokens"] = 8192
    study["scales"]["smoke"].append(second)


def test_a_second_phase_names_its_first(write):
    runs = plan.all_runs("smoke", folder=write(two_phases))
    second = next(run for run in runs.values() if run.spec.method == "finetuned")
    first = runs[second.first]
    assert first.spec.method == "set" and first.spec.seed == second.spec.seed
    assert second.spec.starts_from.spec_hash == first.spec_hash
    assert first.first is None

    def other_first(study):
        two_phases(study)
        study["methods"]["set"]["sparsity"]["seed"] = 7

    other = plan.all_runs("smoke", folder=write(other_first))[second.id]
    assert other.spec_hash != second.spec_hash


def with_transform(study: dict, **changes) -> None:
    study["methods"]["wide"] = {
        "recipe": "full-batch",
        "final_sparsity": 0.5,
        "transform": {"family": "wide", "sparsity": 0.5},
        "sparsity": {"algorithm": "rigl", "update": {"freq": "2%"}},
        **changes,
    }
    study["scales"]["smoke"][0]["methods"]["wide"] = 1


def test_a_transformation_is_part_of_the_spec(write):
    runs = plan.all_runs("smoke", folder=write(with_transform))
    run = next(run for run in runs.values() if run.spec.method == "wide")
    assert run.spec.to_json()["transform"] == {"family": "wide", "sparsity": 0.5}
    assert "wide-s0.50" in run.id
    assert all(r.spec.transform is None for r in runs.values() if r is not run)
    untransformed = edited(run.spec, lambda spec: spec.pop("transform"))
    assert plan.training_code_hash(run.spec) != plan.training_code_hash(untransformed)


def edit(key: str, value, phases=two_phases):
    """A change that adds a method and then spoils one of its keys."""

    def change(study):
        phases(study)
        *path, last = key.split(".")
        place = study
        for part in path:
            place = place[int(part) if part.isdigit() else part]
        place[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (edit("methods.finetuned.starts_from.method", "sett"), ["'sett'", "did you mean 'set'"]),
        (edit("scales.smoke.1.pretrained", "pile"), ["pretrained", "'pile'", "pretraining"]),
        (edit("scales.smoke.1.pretrained", None), ["finetuned", "no key pretrained"]),
        (edit("scales.smoke.1.methods.finetuned", 2), ["needs seed 1 of set", "has the seeds [0]"]),
        (edit("scales.smoke.1.model.num_heads", 4), ["model differs", "'pretraining'"]),
        (edit("methods.set.starts_from", {"method": "rigl"}), ["may not itself start"]),
        (edit("methods.finetuned.starts_from.densify", False), ["densify is false", "sparsity"]),
        (
            edit("methods.wide.transform.family", "wider", with_transform),
            ["methods.wide.transform.family", "'wider'", "'factorized'"],
        ),
        (
            edit("methods.wide.transform.sparsity", 0.9, with_transform),
            ["methods.wide.final_sparsity is 0.5", "0.9"],
        ),
        (edit("methods.wide.sparsity", None, with_transform), ["needs methods.wide.sparsity"]),
        (edit("computations", ["flopps"]), ["computations is 'flopps'"]),
    ],
)
def test_a_mistake_in_phases_or_transformations_is_one_sentence(write, change, words):
    message = error_of(write(change))
    for word in words:
        assert word in message


@pytest.fixture
def computation():
    """A computation on disk for the length of a test."""
    path = plan.ROOT / "experiments/computations/probe_of_a_test.py"
    path.write_text(
        '"""Probe."""\nimport pandas as pd\n\n\n'
        'def compute(scale):\n    return {"words": pd.DataFrame({"word": [scale]})}\n'
    )
    yield path.stem
    path.unlink()


def test_a_study_may_have_computations_only(tmp_path, monkeypatch, computation):
    study = {
        "name": "alone",
        "title": "t",
        "source": "s",
        "description": "d",
        "tables": [],
        "figures": [],
        "computations": [{"name": computation, "core_seconds": {"smoke": 3}}],
    }
    (tmp_path / "alone.yaml").write_text(yaml.safe_dump(study))
    loaded = plan.load_study("alone", folder=tmp_path)
    assert loaded.shows("smoke") and plan.all_runs("smoke", folder=tmp_path) == {}
    assert plan.computation_costs("smoke", folder=tmp_path) == {computation: 3}

    from experiments import computations
    from experiments.store import tidy
    from experiments.store.collect import write_tables

    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "results" / "smoke" / "computations" / computation
    computations.write(computation, "smoke", folder)
    assert list(tidy.computed("smoke", computation, "words")["word"]) == ["smoke"]
    with pytest.raises(ValueError, match="experiments compute"):
        tidy.computed("smoke", computation, "word")
    write_tables([], plan.study_as_dict(loaded, "smoke"), tmp_path / "records.csv")
    assert tidy.read_records(tmp_path / "records.csv").empty


def test_one_command_repeats_several_runs():
    runs = [run for run in plan.all_runs("quick").values() if "sparsity_library" in run.studies]
    command = plan.rerun_command(run.id for run in runs)
    assert [run.id for run in plan.find_runs(command.rpartition("=")[2])] == [r.id for r in runs]
    by_seed = sorted(run.id for run in runs if "__rigl-s0.80__docs-prose" in run.id)
    assert len(by_seed) == 3
    assert plan.rerun_command(by_seed) == f"snakemake rerun --config run={by_seed[0]},1,2"


def test_runs_of_one_command_are_of_one_scale():
    ids = [next(iter(plan.all_runs(scale))) for scale in ("smoke", "quick")]
    with pytest.raises(plan.SpecError, match="one scale"):
        plan.find_runs(",".join(ids))
