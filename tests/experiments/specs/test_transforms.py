"""Transformations of studies are checked before anything trains."""

import pytest

from experiments.cli.inspect import check_runs
from experiments.specs.expand import all_runs
from experiments.specs.run import Run
from tests.experiments.specs.edit import edited


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
