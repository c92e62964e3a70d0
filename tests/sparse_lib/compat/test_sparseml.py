"""Recipes of SparseML: names, epochs, interpolation and shapes as they are defined there."""

import pytest
import torch
from torch import nn

import sparse_lib as sl
from sparse_lib.compat.sparseml import from_recipe

OLD = """---
training_modifiers:
  - !EpochRangeModifier {start_epoch: 0, end_epoch: 10}
pruning_modifiers:
  - !GMPruningModifier
    params: ["re:.*first.weight", "second.weight"]
    init_sparsity: 0.2
    final_sparsity: 0.8
    start_epoch: 1
    end_epoch: 3
    update_frequency: 0.5
    inter_func: linear
  - !GMPruningModifier
    params: [third.weight]
    init_sparsity: 0.0
    final_sparsity: 0.5
    start_epoch: 0
    end_epoch: 2
    mask_type: "2:4"
---
# what it is for
"""


def train(model, optimizer, num_steps):
    """Counts of non-zero weights of each layer, after each step."""
    counts = []
    for _ in range(num_steps):
        optimizer.zero_grad()
        hidden = torch.ones(2, 8)
        for layer in model.values():
            hidden = layer(hidden).tanh()
        hidden.sum().backward()
        optimizer.step()
        counts.append([int(layer.weight.count_nonzero()) for layer in model.values()])
    return counts


def make_model():
    torch.manual_seed(0)
    return nn.ModuleDict({name: nn.Linear(8, 8) for name in ("first", "second", "third", "fourth")})


def test_the_older_form():
    with pytest.warns(UserWarning, match="not taken from the recipe: EpochRangeModifier"):
        group = from_recipe(OLD, steps_per_epoch=2)
    model = make_model()
    group.apply(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    group.apply(optimizer)
    assert not sl.is_sparse(model["fourth"])
    counts = train(model, optimizer, 8)
    # Steps 2 to 6 are epochs 1 to 3: 0.2, 0.35, 0.5, 0.65, 0.8 of 64 weights.
    sparsity = [0.0, 0.2, 0.35, 0.5, 0.65, 0.8, 0.8, 0.8]
    expected = [sl.num_nonzero(value, 64) for value in sparsity]
    assert [row[0] for row in counts] == [row[1] for row in counts] == expected
    third = model["third"].weight.detach()
    assert (third.view(-1, 4).count_nonzero(1) == 2).all()
    assert [row[3] for row in counts] == [64] * 8


def test_the_newer_form_and_fine_tuning():
    recipe = {
        "test_stage": {
            "pruning_modifiers": {
                "MagnitudePruningModifier": {
                    "init_sparsity": 0.0,
                    "final_sparsity": 0.5,
                    "start": 0.0,
                    "end": 2,
                    "update_frequency": 1,
                    "targets": "__ALL_PRUNABLE__",
                }
            }
        }
    }
    group = from_recipe(recipe, steps_per_epoch=2)
    model = make_model()
    group.apply(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    group.apply(optimizer)
    counts = train(model, optimizer, 4)
    # Cubic by default: 0.5 (1 - (1 - 1/4)^3) at step 1, the next update after an epoch.
    at = [sl.num_nonzero(0.5 * (1 - (1 - step / 4) ** 3), 64) for step in (1, 3, 4)]
    assert [row[0] for row in counts] == [at[0], at[0], at[1], at[2]]
    sl.finalize(model)
    kept = from_recipe({"stage": [{"ConstantPruningModifier": {"targets": ["Linear"]}}]}, 2)
    kept.apply(model)
    assert len(kept.sparse_params) == 4
    assert int(model["first"].weight_mask.sum()) == 32


def test_a_constant_stage_after_a_gradual_one_changes_nothing(recwarn):
    gradual_stage = {
        "GMPruningModifier": {"final_sparsity": 0.5, "start_epoch": -1, "end_epoch": 2}
    }
    stages = {"prune": [gradual_stage], "tune": [{"ConstantPruningModifier": {}}]}
    model = make_model()
    group = from_recipe(stages, 2)
    group.apply(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    group.apply(optimizer)
    counts = train(model, optimizer, 6)
    assert counts[3][0] == counts[5][0] == 32 and not recwarn.list


def gradual(**settings):
    whole = {"init_sparsity": 0.0, "final_sparsity": 0.5, "start_epoch": 0, "end_epoch": 2}
    return {"modifiers": [{"GMPruningModifier": whole | settings}]}


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"a": {"SparseGPTModifier": {}}}, "SparseGPTModifier is not read"),
        ({"a": {}}, "the recipe has no modifier; those that prune are GMPruningModifier, "),
        ("# nothing\n", "the recipe is empty"),
        ("zoo:bert/pruned90", "must be YAML, or the path of a file .*, not 'zoo:bert/pruned90'"),
        ("a: [1\nb: 2", "the recipe is not valid YAML, line 2: expected"),
        (None, "recipe must be text, a path or a dict, not None"),
        (gradual(start_epoch=5, end_epoch=2), "must be at least start_epoch, which is 5, not 2"),
        (gradual(start_epoch=-1, end_epoch=-1), "must be at least start_epoch, which is -1"),
        (gradual(params=["re:(["]), r"has 're:\(\[', which is no regular expression: unterminated"),
        ({"a": {"GMPrunningModifier": {}}}, "did you mean 'GMPruningModifier'"),
        (gradual(start_epoch="x"), "start_epoch of GMPruningModifier must be a number, not 'x'"),
        (
            gradual(final_sparsity=1.5),
            "final_sparsity of GMPruningModifier must be between 0 and 1",
        ),
        (gradual(init_sparsity="__FROM_PARAM__"), "init_sparsity of GMPruningModifier must be"),
        (gradual(update_freqency=1), "did you mean 'update_frequency'"),
        (gradual(phased=True), "phased of GMPruningModifier is read with False only, not True"),
        (gradual(final_sparsity=[0.5]), "final_sparsity of GMPruningModifier must be a number"),
        (gradual(inter_func=["cubic"]), "inter_func of GMPruningModifier must be one of"),
        (gradual(inter_func="sine"), "inter_func of GMPruningModifier must be one of"),
        (gradual(params=[3]), "params of a pruning modifier must be names"),
        ({"a": {"GMPruningModifier": {"start_epoch": 0, "end_epoch": 1}}}, "needs final_sparsity"),
        (gradual(end_epoch="eval(unknown)"), "'eval.unknown.' of the recipe is no sum"),
        (gradual(end_epoch="eval(1 / 0)"), "has no value"),
        (gradual(end_epoch="eval(__import__('os'))"), "is no sum"),
        ("no_such.yaml", "'no_such.yaml' cannot be read"),
    ],
)
def test_what_is_not_understood_is_said(recipe, message):
    with pytest.raises((ValueError, TypeError), match=message):
        from_recipe(recipe, 2)


@pytest.mark.parametrize("steps", [0, "10", 1.5])
def test_steps_of_an_epoch_are_a_count(steps):
    with pytest.raises((ValueError, TypeError), match="steps_per_epoch must be"):
        from_recipe(gradual(), steps)


VARIABLES = """
num_epochs: 8
pruning_end: eval(num_epochs * 0.5)
targets: [first.weight]
stage:
  level: 0.75
  pruning_modifiers:
    - !GMPruningModifier
      params: eval(targets)
      init_sparsity: 0.0
      final_sparsity: eval(level)
      start_epoch: eval(-1 + 1)
      end_epoch: eval(pruning_end)
      update_frequency: 1.0
"""


def test_variables_are_put_in_and_a_recipe_may_be_a_file(tmp_path):
    (tmp_path / "recipe.yaml").write_text(VARIABLES)
    for recipe in (VARIABLES, tmp_path / "recipe.yaml", str(tmp_path / "recipe.yaml")):
        model = make_model()
        group = from_recipe(recipe, steps_per_epoch=1)
        group.apply(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        group.apply(optimizer)
        counts = train(model, optimizer, 4)
        assert counts[2][0] > counts[3][0] == 16 and counts[3][1:] == [64, 64, 64]


def test_zeros_are_kept_where_there_are_any():
    model = make_model()
    constant = {"modifiers": [{"ConstantPruningModifier": {"params": ["re:.*weight"]}}]}
    with pytest.warns(UserWarning, match="no parameter matches"):
        from_recipe(constant, 1).apply(model)
    with torch.no_grad():
        model["first"].weight[0] = 0
    group = from_recipe(constant, 1)
    group.apply(model)
    assert list(group.sparse_params) == ["first.weight"]


def test_a_global_level_is_over_all_weights():
    model = make_model()
    with torch.no_grad():
        model["first"].weight *= 100
    recipe = gradual(params=["first.weight", "second.weight"], apply_globally=True)
    recipe["modifiers"][0]["GMPruningModifier"] |= {"end_epoch": 1}
    group = from_recipe(recipe, 1)
    group.apply(model)
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    group.apply(optimizer)
    first, second = train(model, optimizer, 1)[0][:2]
    assert (first, second) == (63, 1)  # no tensor is emptied
