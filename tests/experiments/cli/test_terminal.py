import io
import logging

from experiments.progress import Progress, duration
from rich.console import Console

from experiments.cli import terminal
from experiments.store.record import Record
from tests.experiments.analysis import kept


def printed(table) -> str:
    console = Console(width=240, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


def test_runs_stand_side_by_side():
    made = kept.make(seeds=1)
    named = [(record["run"], Record.model_validate(record)) for record in made[:2]]
    text = printed(terminal.compare(named))
    for record in made[:2]:
        assert record["run"] in text
    assert "validation perplexity" in text and "sparsity" in text


def test_scores_of_classes_are_one_row_per_split():
    common = {"metric": "class_accuracy", "chance": 0.01, "num_items": 100}
    scores = [{"task": "images", "metric": "accuracy", "split": "test", "value": 0.31}]
    for split, low in (("validation", 0.2), ("test", 0.1)):
        for at in range(3):
            own = {"task": f"class:{at}", "split": split, "value": low + 0.2 * at}
            scores.append({**common, **own})
    lines = printed(terminal.scores({"scores": scores}, "scores")).splitlines()
    shown = [line.split("│") for line in lines if "classes" in line]
    assert [[cell.strip() for cell in row[1:-1]] for row in shown] == [
        ["3 classes", "class_accuracy", "validation", "0.2 to 0.6", "", "0.01", "300"],
        ["3 classes", "class_accuracy", "test", "0.1 to 0.5", "", "0.01", "300"],
    ]
    assert any("images" in line and "0.31" in line for line in lines)


# Lines on finished jobs: counts, the share done by cost, and no noise of the scheduler


def record(message="", **facts):
    made = logging.LogRecord("snakemake", logging.INFO, "", 0, message, (), None)
    vars(made).update(facts)
    return made


def test_one_line_per_job_with_the_time_left_or_the_end_of_its_log(tmp_path):
    progress = Progress()
    progress.plan([(7, "train a", 90.0), (8, "train b", 10.0)])
    assert not progress.filter(record("Select jobs to execute..."))
    assert not progress.filter(record("Execute 2 jobs..."))
    assert not progress.filter(record(event="progress", done=1, total=2))
    assert progress.filter(record("Nothing to be done"))
    done = record("Finished jobid: 7", event="job_finished", job_id=7)
    assert progress.filter(done) and not hasattr(done, "event")
    assert done.msg.split() == ["1", "of", "2", "90%", "2", "s", "left", "train", "a"]
    assert not progress.filter(record(event="job_finished", job_id=0))  # the target rule
    progress = Progress()
    progress.plan([(7, "prepare", 2.0), (8, "train a", 898.0)], cores=2)
    done = record(event="job_finished", job_id=7)
    assert progress.filter(done)
    assert done.msg.split()[4:] == ["7.4", "min", "left", "prepare"]  # and not hours or seconds
    assert [duration(s) for s in (4, 80, 210, 7200)] == ["4 s", "80 s", "3.5 min", "2.0 h"]
    progress = Progress()
    progress.plan([(7, "train a", 90.0)])
    (log := tmp_path / "a.log").write_text("step 1\nError: x is 1\n\n")
    facts = {"event": "job_error", "jobid": 7, "rule_name": "train", "log": [str(log)]}
    failed = record("Error in rule train, jobid: 7", **facts)
    assert progress.filter(failed) and not hasattr(failed, "event")
    assert failed.msg == f"failed: train a: Error: x is 1 ({log})"
    assert not progress.filter(record("RuleException:\nCalledProcessError in file ..."))
    other = record(**{**facts, "jobid": 9, "log": []})
    assert progress.filter(other) and other.msg == "failed: train: no log"
