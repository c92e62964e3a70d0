"""Transforms of studies are checked before anything trains."""

import pytest

from experiments.cli import inspect
from experiments.specs.expand import all_runs
from experiments.specs.run import Run
from tests.experiments.specs.edit import edited


@pytest.mark.parametrize(
    ("label", "method", "sparsity"),
    [("llama-0.2m", "wide50-iso", 0.99), ("resnet-2mf", "wide90-rigl", 0.9999)],
)
def test_a_budget_that_a_model_cannot_meet_is_one_sentence(label, method, sparsity):
    """At ten or a hundred times the width, stem and head alone cost what the dense model does.

    That of an image classifier is known before its data are prepared.
    """
    small = [run for run in all_runs("small").values() if run.spec.model.label == label]
    run = next(run for run in small if run.spec.method == method)
    inspect.check_transform(run, set())
    spec = edited(run.spec, lambda value: value["transform"].update(sparsity=sparsity))
    with pytest.raises(ValueError, match=rf"{method}.transform of the model {label}: .* be met"):
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
