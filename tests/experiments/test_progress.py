"""Lines on finished jobs: counts, the share done by cost, and no noise of the scheduler."""

import logging

from experiments.progress import Progress, duration


def record(message="", **facts):
    made = logging.LogRecord("snakemake", logging.INFO, "", 0, message, (), None)
    vars(made).update(facts)
    return made


def test_one_line_per_job_and_no_noise():
    progress = Progress()
    progress.plan([(7, "train a", 90.0), (8, "train b", 10.0)])
    assert not progress.filter(record("Select jobs to execute..."))
    assert not progress.filter(record("Execute 2 jobs..."))
    assert not progress.filter(record(event="progress", done=1, total=2))
    assert progress.filter(record("Nothing to be done"))
    done = record("Finished jobid: 7", event="job_finished", job_id=7)
    assert progress.filter(done) and not hasattr(done, "event")
    assert done.msg.split() == ["1", "of", "2", "90%", "0", "s", "left", "train", "a"]
    assert not progress.filter(record(event="job_finished", job_id=0))  # the target rule


def test_durations_are_short():
    assert [duration(s) for s in (4, 80, 210, 7200)] == ["4 s", "80 s", "3.5 min", "2.0 h"]
