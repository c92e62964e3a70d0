"""Transforms of studies are checked before anything trains."""

import pytest

from experiments.cli import inspect
from experiments.specs.expand import all_runs
from experiments.specs.run import Run
from tests.experiments.specs.edit import edited


def test_a_budget_that_a_model_cannot_meet_is_one_sentence():
    run = next(
        run
        for run in all_runs("small").values()
        if run.spec.model.label == "llama-0.2m"
        and run.spec.transform is not None
        and run.spec.transform.budget == "dense"
    )
    inspect.check_transform(run, set())
    # At ten times the width the head alone costs what the dense model does.
    spec = edited(run.spec, lambda value: value["transform"].update(sparsity=0.99))
    with pytest.raises(ValueError, match="methods.wide50-iso.transform") as e:
        inspect.check_transform(Run(spec, studies=run.studies), set())
    assert "cannot be met" in str(e.value) and "llama-0.2m" in str(e.value)


def test_the_budget_of_an_image_classifier_is_checked_before_its_data_are_prepared():
    run = next(
        run
        for run in all_runs("small").values()
        if run.spec.model.label == "resnet-2mf" and run.spec.method == "wide90-rigl"
    )
    inspect.check_transform(run, set())
    # At a hundred times the width stem and head alone cost more than the dense network.
    spec = edited(run.spec, lambda value: value["transform"].update(sparsity=0.9999))
    with pytest.raises(
        ValueError, match="wide90-rigl.transform of the model resnet-2mf: .* cannot be met"
    ):
        inspect.check_transform(Run(spec, studies=run.studies), set())


@pytest.mark.parametrize("size", [2 * 10**9, 2**64])
def test_a_model_too_large_for_torch_is_one_sentence(size):
    run = next(run for run in all_runs("smoke").values() if run.spec.transform is not None)

    def larger(value):
        value["model"] |= {"hidden_size": size, "num_heads": 1}

    with pytest.raises(ValueError, match="no model of these sizes can be built") as caught:
        inspect.check_transform(Run(edited(run.spec, larger), studies=run.studies), set())
    assert "\n" not in str(caught.value)


def test_a_model_of_countless_layers_is_left_to_its_training():
    run = next(run for run in all_runs("smoke").values() if run.spec.transform is not None)
    spec = edited(run.spec, lambda value: value["model"].update(num_layers=10**12))
    inspect.check_transform(Run(spec, studies=run.studies), set())
