"""Every mistake in a study's file is one sentence that names the key."""

import pytest

from experiments.specs import read
from tests.experiments.specs.edit import error_of, two_phases, with_transform


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
        (lambda s: s["methods"]["rigl"].update(recipe="half"), ["'half'", "half-batch"]),
        (lambda s: recipe(s).update(learning_rate=-1), ["learning_rate", "-1", "greater than 0"]),
        (lambda s: grid(s)["model"].update(name="lama"), ["'lama'", "'llama'"]),
        (lambda s: grid(s)["model"].update(num_heads=5), ["multiple"]),
        (lambda s: grid(s).update(task="visoin"), ["task", "'visoin'", "'vision'"]),
        (lambda s: grid(s).update(suite="smok"), ["'smok'", "'smoke'"]),
        (lambda s: recipe(s).update(tokens=10), ["tokens"]),
        (lambda s: s["scales"]["smoke"].append(grid(s)), ["occurs twice"]),
        (lambda s: grid(s).update(variant="half"), ["variant", "'half'"]),
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


def test_a_vocabulary_that_no_tokenizer_can_be_trained_to_is_one_sentence(write):
    def ask(size):
        def change(study):
            study["scales"]["smoke"][0]["data"] |= {"name": "wikipedia-start", "vocab_size": size}

        return write(change)

    assert error_of(ask(256)) == (
        "sparsity_library.yaml: scales.smoke.0.data.vocab_size is 256, but must be from 257 to "
        "65536, since a tokenizer is trained on wikipedia-start"
    )
    for size in (257, 65536):
        folder = ask(size)
        assert read.load_study("sparsity_library", folder=folder).scales["smoke"][0].data
