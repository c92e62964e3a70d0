"""Methods that a study takes from another one."""

import re

import pytest

from experiments.specs.read import load_study
from tests.experiments.specs.edit import error_of


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
