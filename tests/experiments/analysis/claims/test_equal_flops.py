"""What claims hold equal against what the committed records say."""

from statistics import mean

from experiments.analysis import select as selection
from experiments.analysis.claims.links import links_of, selections_of, sided
from experiments.analysis.methods import Methods
from experiments.specs.lookup import planned_study
from experiments.specs.read import claim_tests, load_study, study_names
from experiments.store import reference, tidy

#: Whole-model FLOPs are equal up to so many times the least.
EQUAL = 1.05


def executed(runs):
    """Mean training FLOPs of the committed records among these runs; None without any."""
    found = [record["flops"]["executed"] for record in reference.find_all(runs).values()]
    return mean(found) if found else None


def costlier(claim, study):
    """The sides of a claim that cost more than its cheapest one, with how many times as much."""
    looks, plan = Methods(study), selection.headline(selection.planned(study), study)
    sides = [side for link in links_of(claim_tests()[claim]) for side in selections_of(link)]
    found = {}
    for workload in tidy.workloads(plan):
        runs = [sided(plan, workload, side)["run"] for side in sides]
        if any(own.empty for own in runs):
            continue
        costs = [executed(own) for own in runs]
        least = min((cost for cost in costs if cost is not None), default=0.0)
        for side, cost in zip(sides, costs, strict=True):
            if cost is not None and cost > EQUAL * least:
                words = [side.get("model", ""), looks[side["method"]].name.split()[-1]]
                found[" ".join(words).strip().lower()] = cost / least
    return found


def test_sides_of_equal_flops_have_them_in_the_records_or_the_test_names_those_that_have_not():
    seen = {}
    for study in map(load_study, study_names()):
        for claim in [] if study.trials else [*study.claims.primary, *study.claims.exploratory]:
            test = claim_tests()[claim]
            if "whole-model FLOPs" not in test.held_equal:
                continue
            seen[claim] = costlier(claim, planned_study(study, "small"))
            said = (test.not_equal or "").lower()
            unsaid = {name: cost for name, cost in seen[claim].items() if name not in said}
            assert not unsaid, (claim, unsaid)
            assert "flops" in said or not seen[claim], claim
    assert {"C015", "C016", "C017", "C022", "C023", "C024", "C045", "C090"} == set(seen)
    assert "larger dense" in seen["C023"] and 1.8 < seen["C016"]["snip"] < 2.1
