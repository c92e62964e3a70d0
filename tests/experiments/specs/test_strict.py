"""A run's YAML: types as they are written, values within their ranges, one sentence otherwise."""

import copy

import pytest
import yaml

from experiments.specs.expand import load_single
from experiments.specs.schema import SpecError

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
