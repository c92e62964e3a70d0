"""How often the claims ledger would speak falsely, by its own code on runs without effects."""

from __future__ import annotations

import pandas as pd

from experiments.analysis.claims import ledger, policy, simulation
from experiments.specs.read import claim_tests, load_study, study_names

REPLICATES = {"smoke": 500, "quick": 2000}
MOST = 20_000


def compute(scale: str) -> dict[str, pd.DataFrame]:
    """The table ``rates``: one row per family, case and boundary."""
    studies = [load_study(name) for name in study_names()]
    family = ledger.families(studies)
    members = {claim for role in family for claim in ledger.members(family[role])}
    tests = {claim: test for claim, test in claim_tests().items() if claim in members}
    seeds = {
        claim: len(ledger.registered_seeds(claim) or range(policy.MIN_SEEDS)) for claim in tests
    }
    rates = simulation.false_verdicts(
        tests, seeds, family["primary"], replicates=REPLICATES.get(scale, MOST)
    )
    return {"rates": rates}
