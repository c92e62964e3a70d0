"""What is wrong with a claim's runs before any is trained."""

import pytest

from experiments.analysis.claims.comparison import compare, foreseen
from experiments.specs.lookup import planned_study
from experiments.specs.read import claim_tests, load_study, study_names
from experiments.specs.schema import Variant
from experiments.store.collect import records_table

TESTS = claim_tests()


def compared(study):
    """The claims of a study that compare runs."""
    for claim in (*study.claims.primary, *study.claims.exploratory):
        test = TESTS.get(claim)
        if test is not None and not (test.not_tested or test.exact or test.measured):
            yield claim, test


def test_no_registered_claim_waits_for_runs_that_could_decide_nothing():
    found = {}
    for study in map(load_study, study_names()):
        if study.scales.get("small"):
            planned = planned_study(study, "small")
            found |= {claim: foreseen(test, planned) for claim, test in compared(planned)}
    assert not {claim: words for claim, words in found.items() if words}
    assert len(found) > 30


@pytest.fixture
def slow():
    """A study, one of whose methods has the least rate that trials tried."""
    study = load_study("update_schedule")
    half = Variant(batch_scale=0.5, learning_rate_scale=0.5)
    return planned_study(
        study.model_copy(update={"recipes": {**study.recipes, "half-batch": half}}), "small"
    )


def test_a_rate_at_the_end_of_the_trials_is_foreseen_and_told(slow):
    problem = "learning rates at the end of what was tried: rigl-itop at 0.2 (tried 0.2 to 1.6)"
    assert foreseen(TESTS["C060"], slow) == problem
    assert foreseen(TESTS["C047"], slow) == ""
    reason = compare(TESTS["C060"], records_table([], slow), slow).reason
    named = problem.replace("rigl-itop", "RigL-ITOP 90%")
    assert reason.endswith(f"; even with them no verdict: {named}"), reason
