"""Runs and data by name."""

import pytest

from experiments.specs.expand import all_runs
from experiments.specs.lookup import find_data, find_runs, rerun_command
from experiments.specs.schema import SpecError


def test_data_of_a_folder_is_found_and_a_wrong_folder_is_one_sentence():
    task, data = find_data("wikipedia-start-v512")
    assert (task, data.name, data.label) == ("lm", "wikipedia-start", "wikipedia-start-v512")
    with pytest.raises(SpecError, match="data is 'wikipedia-strat-v512'.*did you mean"):
        find_data("wikipedia-strat-v512")


def test_one_command_repeats_several_runs():
    runs = [run for run in all_runs("quick").values() if "sparsity_library" in run.studies]
    command = rerun_command(run.id for run in runs)
    assert [run.id for run in find_runs(command.rpartition("=")[2])] == [r.id for r in runs]
    by_seed = sorted(run.id for run in runs if "__rigl90-s0.90__wikipedia-start" in run.id)
    assert len(by_seed) == 3
    assert rerun_command(by_seed) == f"snakemake rerun --config run={by_seed[0]},1,2"


def test_runs_of_one_command_are_of_one_scale_and_its_seeds_have_twins():
    ids = [next(iter(all_runs(scale))) for scale in ("smoke", "quick")]
    with pytest.raises(SpecError, match="one scale"):
        find_runs(",".join(ids))
    with pytest.raises(SpecError, match="has no twin of seed 77"):
        find_runs(f"{ids[1]},77")
