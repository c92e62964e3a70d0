"""Every mistake in a study's or a run's file is one sentence that names the key."""

import copy
import re

import pytest
import yaml

from experiments.cli.inspect import check_runs
from experiments.specs import code as closure
from experiments.specs import read, schema
from experiments.specs.expand import all_runs, load_single, study_runs
from experiments.specs.read import load_study
from experiments.specs.run import Run
from experiments.specs.schema import SpecError
from tests.experiments.specs.edit import edited, error_of, two_phases, with_transform


def grid(study):
    return study["scales"]["smoke"][0]


def recipe(study):
    return grid(study)["recipe"]


def rigl(study):
    return study["methods"]["rigl"]["sparsity"]


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
        (lambda s: s.update(sede=1), ["unknown key sede"]),
        (lambda s: recipe(s).update(learning_rat=1), ["unknown key", "learning_rat"]),
        (lambda s: rigl(s).update(algorithm="rigll"), ["'rigll'", "did you mean 'rigl'"]),
        (lambda s: s["methods"]["rigl"].update(final_sparsity=1.2), ["final_sparsity", "1.2"]),
        (lambda s: s["methods"]["rigl"].update(label="$x"), ["methods.rigl.label", "'$x'"]),
        (
            lambda s: s["methods"].update({n: s["methods"]["rigl"] | {"label": "X"} for n in "ab"}),
            ["methods.b.label is 'X'", "methods.a"],
        ),
        (lambda s: s["methods"]["rigl"].update(recipe="half"), ["'half'", "half-batch"]),
        (lambda s: recipe(s).update(learning_rate=-1), ["learning_rate", "-1", "greater than 0"]),
        (lambda s: grid(s)["model"].update(name="lama"), ["'lama'", "'llama'"]),
        (lambda s: grid(s)["model"].update(num_heads=5), ["multiple"]),
        (lambda s: grid(s).update(task="visoin"), ["task", "'visoin'", "'vision'"]),
        (lambda s: grid(s).update(suite="smok"), ["'smok'", "'smoke'"]),
        (lambda s: recipe(s).update(tokens=10), ["tokens"]),
        (lambda s: s["scales"]["smoke"].append(grid(s)), ["occurs twice"]),
        (
            lambda s: s["scales"]["smoke"].extend([{**grid(s), "label": "x"}] * 2),
            ["'x', as another"],
        ),
        (
            edit("answer", {"small": {"text": "{set} {x}", "when": {"set": "same"}}}),
            ["'x'", "when"],
        ),
        (lambda s: grid(s).update(variant="half"), ["variant", "'half'"]),
        (lambda s: grid(s).update(variant=["half"]), ["variant", "'half'"]),
        (lambda s: grid(s).update(variant=[]), ["variant is []"]),
        (edit("scales.smoke.0.variant", ["half-batch"]), ["variant is ['half-batch']", "label"]),
        (lambda s: grid(s).update(learning_rate_scale={"stat": 2}), ["'stat'", "mean 'static'"]),
        (lambda s: grid(s)["methods"].update(static=[-1]), ["static", "-1"]),
        (lambda s: grid(s)["methods"].update(static=2.5), ["methods.static: 2.5 is no number of"]),
        (lambda s: rigl(s)["update"].update(stop="most%"), ["stop", "'most%'", "75%"]),
        *[
            (lambda s, share=share: rigl(s)["update"].update(stop=share), [f"stop is '{share}'"])
            for share in ("inf%", "nan%", "-5%")
        ],
        (lambda s: rigl(s).update(sparsity="80%"), ["sparsity is '80%'", "write 0.8"]),
        (lambda s: rigl(s).update(drop_fraction="30%"), ["drop_fraction is '30%'", "write 0.3"]),
        (lambda s: recipe(s).update(learning_rate=float("nan")), ["finite"]),
        (lambda s: recipe(s).update(steps=5), ["the plan sets it"]),
        (lambda s: s.update(name="other"), ["'other'", "sparsity_library"]),
        (lambda s: grid(s)["model"].update(num_head=2), ["num_head", "known are", "'num_heads'"]),
        (lambda s: s["figures"].append("churn_itopp"), ["figures", "did you mean 'churn_itop'"]),
        (lambda s: s["tables"].append("run"), ["tables", "did you mean 'runs'"]),
        (edit("methods.finetuned.starts_from.method", "sett"), ["'sett'", "did you mean 'set'"]),
        (edit("scales.smoke.1.pretrained", "pile"), ["pretrained", "'pile'", "pretraining"]),
        (edit("scales.smoke.1.pretrained", None), ["finetuned", "no key pretrained"]),
        (edit("scales.smoke.1.methods.finetuned", 2), ["needs seed 1 of set", "has the seeds [0]"]),
        (edit("scales.smoke.1.model.num_heads", 4), ["model differs", "'pretraining'"]),
        (edit("methods.set.starts_from", {"method": "rigl"}), ["may not itself start"]),
        (edit("methods.finetuned.starts_from.densify", False), ["densify is false", "sparsity"]),
        (edit("methods.wide.transform.family", "wider", with_transform), ["family", "'wider'"]),
        (edit("methods.wide.transform.sparsity", 0.9, with_transform), ["final_sparsity is 0.5"]),
        (edit("methods.wide.sparsity", None, with_transform), ["needs methods.wide.sparsity"]),
        (edit("computations", ["flopps"]), ["computations is 'flopps'"]),
    ],
)
def test_a_mistake_is_one_sentence(write, change, words):
    message = error_of(write(change))
    for word in words:
        assert word in message


def test_a_list_of_variants_is_a_grid_with_each(write):
    names = sorted(read.load_study("sparsity_library", folder=write(lambda s: None)).recipes)
    folder = write(lambda study: grid(study).update(variant=names))
    runs = study_runs(read.load_study("sparsity_library", folder=folder), "smoke")
    variants = [run.id.split("__")[-2] for run in runs]
    assert len(names) > 1
    assert {name: variants.count(name) for name in names} == dict.fromkeys(
        names, len(runs) // len(names)
    )


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


def test_a_vocabulary_that_no_tokenizer_can_be_trained_to_is_one_sentence(write):
    def ask(size):
        def change(study):
            study["scales"]["smoke"][0]["data"] |= {"name": "wikipedia-start", "vocab_size": size}

        return write(change)

    assert error_of(ask(256)) == (
        "sparsity_library.yaml: scales.smoke.0.data.vocab_size is 256: input should be greater "
        "than or equal to 257"
    )
    for size in (257, 65536):
        folder = ask(size)
        assert read.load_study("sparsity_library", folder=folder).scales["smoke"][0].data


RUN = """
model: {name: llama, label: x, hidden_size: 32, intermediate_size: 88, num_layers: 2, num_heads: 2}
data: {name: wikipedia-start, vocab_size: 512, context: 32}
recipe: {tokens: 40960, batch_size: 16, learning_rate: 0.01}
"""
NONSENSE = {
    "recipe.learning_rate": [True, "0.1"],
    "recipe.batch_size": [True, "16"],
    "recipe.betas": [[1.5, 0.9], [0.9, -1], ["0.9", 0.95]],
    "recipe.min_learning_rate": [0.5],
    "recipe.stable": [
        {"warmup_steps": 2, "decay": 0.2, "keep": [81]},
        {"warmup_steps": 65, "decay": 0.2},
    ],
    "recipe.compile": ["false", 1],
    "model.hidden_size": ["32"],
    "data.context": ["32"],
    "transform": [{"family": "wide", "sparsity": "0.5"}],
    "seed": [10**23, True],
    "recipe.tokens": [10**400],
    "recipe.validations": [10**23],
    "model.num_layers": [10**23],
}


def single(tmp_path, path: str, value: object):
    run = copy.deepcopy(yaml.safe_load(RUN))
    section = run
    *above, key = path.split(".")
    for name in above:
        section = section[name]
    section[key] = value
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(run), encoding="utf-8")
    return load_single(file, run_id="run")


@pytest.mark.parametrize("path,value", [(k, v) for k, vs in NONSENSE.items() for v in vs])
def test_nonsense_is_one_sentence_with_the_key(tmp_path, path, value):
    with pytest.raises(SpecError, match=path.split(".")[-1]) as caught:
        single(tmp_path, path, value)
    assert "\n" not in str(caught.value)


def test_what_is_within_the_ranges_stays_as_it_is(tmp_path):
    stable = {"warmup_steps": 2, "decay": 0.2, "keep": [80]}
    assert single(tmp_path, "recipe.stable", stable).recipe.stable.keep == (80,)
    assert single(tmp_path, "recipe.betas", [0, 0.999]).recipe.betas == (0.0, 0.999)
    assert single(tmp_path, "recipe.learning_rate", 1).recipe.learning_rate == 1.0


@pytest.mark.parametrize("text", ["1e-3", "1.0e-3", "1.e-3", "10E-4"])
def test_numbers_may_be_written_as_in_yaml_1_2(tmp_path, text):
    file = tmp_path / "run.yaml"
    file.write_text(RUN.replace("0.01}", f"{text}}}"), encoding="utf-8")
    assert load_single(file, run_id="run").recipe.learning_rate == pytest.approx(1e-3)


@pytest.mark.parametrize(
    ("label", "method", "change", "said"),
    [
        ("llama-0.2m", "wide50-iso", ("transform", {"sparsity": 0.99}), "be met"),
        ("resnet-2mf", "wide90-rigl", ("transform", {"sparsity": 0.9999}), "be met"),
        ("llama-0.2m", "wide50-iso", ("model", {"hidden_size": 2**62}), "cannot be built"),
    ],
)
def test_a_model_that_cannot_be_transformed_is_one_sentence(label, method, change, said):
    """At ten or a hundred times the width, stem and head alone cost what the dense model does.

    That of an image classifier is known before its data are prepared.
    """
    small = [run for run in all_runs("small").values() if run.spec.model.label == label]
    run = next(run for run in small if run.spec.method == method)
    check_runs([run])
    spec = edited(run.spec, lambda value: value[change[0]].update(change[1]))
    with pytest.raises(ValueError, match=rf"^\w+.yaml: methods.{method}.transform: .*{said}"):
        check_runs([Run(spec, studies=run.studies)])


def test_a_model_of_countless_layers_is_left_to_its_training():
    run = next(run for run in all_runs("smoke").values() if run.spec.transform is not None)
    spec = edited(run.spec, lambda value: value["model"].update(num_layers=10**12))
    check_runs([Run(spec, studies=run.studies)])


@pytest.fixture
def like(write):
    """Write `sparsity_library`, and a study `other` whose methods are given; returns the folder."""

    def ask(methods, **sections):
        def change(study):
            study["name"] = "other"
            study["methods"] = methods
            study["scales"] = {}
            study.update(sections)

        write(lambda study: None)
        return write(change, "other")

    return ask


def methods(folder, name="other"):
    return load_study(name, folder=folder).methods


def test_keys_and_levels_replace_those_of_the_other_study(like):
    own = {"like": "sparsity_library.set", "recipe": "full-batch", "label": "Mine"}
    folder = like({"mine": own})
    mine, theirs = methods(folder)["mine"], methods(folder, "sparsity_library")["set"]
    assert (mine.recipe, mine.label) == ("full-batch", "Mine")
    assert mine.sparsity == theirs.sparsity
    assert mine.final_sparsity == theirs.final_sparsity == 0.8
    level = {"recipe": "full-batch", "sparsity": {"algorithm": "static", "sparsity": "level"}}
    static = {"algorithm": "static", "sparsity": 0.7}
    folder = like(
        {
            "first": {**level, "levels": {"some": 0.5, "more": 0.9}},
            "second": {"like": "other.first", "levels": {"most": 0.95}},
            "third": {"like": "other.first", "final_sparsity": 0.7, "sparsity": static},
            "one": {"recipe": "full-batch", "final_sparsity": 0.7, "sparsity": static},
            "fourth": {"like": "other.one", **level, "levels": {"least": 0.3}},
        }
    )
    found = {name: method.sparsity["sparsity"] for name, method in methods(folder).items()}
    assert found == {"some": 0.5, "more": 0.9, "most": 0.95, "third": 0.7, "one": 0.7, "least": 0.3}
    assert {name: method.final_sparsity for name, method in methods(folder).items()} == found


def test_what_is_no_method_is_one_sentence(like):
    for likeness, words in (
        ("sparsity_library", "methods.set.like is 'sparsity_library', .*<study>.<method>"),
        (3, "methods.set.like is 3, .*<study>.<method>"),
        ("sparsity_librari.set", "like is 'sparsity_librari', .*did you mean"),
        ("sparsity_library.sett", "methods.set.like is 'sett', .*did you mean 'set'"),
        ("other.set", "methods.set.like is 'other.set', .*no settings of its own"),
        ("other.two", "no settings of its own"),
    ):
        message = error_of(like({"set": {"like": likeness}, "two": {"like": "other.set"}}))
        assert re.search(f"^other.yaml: .*{words}", message), message
    message = error_of(like({"set": {"like": "sparsity_library.set"}}, recipes={"plain": {}}))
    assert "methods.set.recipe is 'half-batch'" in message
    folder = like({"set": {"like": "broken.set"}})
    (folder / "broken.yaml").write_text("methods: [")
    message = error_of(folder)
    assert "broken.yaml: not valid YAML" in message
