"""Suites: the files that their scores depend on."""

import shutil

from experiments.evaluation import suite as suites


def names(suite: str) -> list[str]:
    files = suites.suite_files(suites.load_suite(suite))
    return [path.name for path in files if path.parent == suites.OWN_TASKS]


def test_a_suite_depends_on_the_task_files_that_it_names_alone(tmp_path, monkeypatch):
    bleu, prose = ["data_to_text.py", "data_to_text.yaml"], ["prose_pairs.py", "prose_pairs.yaml"]
    assert names("quick") == ["_pairs_template", *bleu, "documents.py", *prose]
    assert names("data_to_text") == [*bleu, "documents.py"]
    assert names("perplexity") == names("vision") == []
    metrics = [path.stem for path in suites.suite_files(suites.load_suite("perplexity"))]
    assert sorted(metrics) == sorted(suites.Perplexity().metrics)
    before = {path.stem: names(path.stem) for path in suites.FOLDER.glob("*.yaml")}
    copy = tmp_path / "tasks"
    shutil.copytree(suites.OWN_TASKS, copy)
    (copy / "riddles.yaml").write_text("task: riddles\ninclude: _pairs_template\n")
    monkeypatch.setattr(suites, "OWN_TASKS", copy)
    assert {path.stem: names(path.stem) for path in suites.FOLDER.glob("*.yaml")} == before
    own = tmp_path / "own.yaml"
    own.write_text("tasks: [{task: riddles}]\n")
    assert names(str(own)) == ["_pairs_template", "documents.py", "riddles.yaml"]
