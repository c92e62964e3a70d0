"""Suites: the files that their scores depend on."""

import shutil
import subprocess
import sys

import pytest

from experiments.evaluation import suite as suites


def names(suite) -> list[str]:
    return [path.name for path in suites.task_files(suite)]


def test_a_suite_depends_on_the_task_files_that_it_names():
    assert names("quick") == ["_pairs_template", "grammar_pairs.yaml", "prose_pairs.yaml"]
    assert names("data_to_text") == ["data_to_text.py", "data_to_text.yaml"]
    assert names("leaderboard") == names("perplexity") == names("vision") == []
    assert names(suites.load_suite("facts")) == names("facts")


def test_an_unused_task_file_changes_no_suite(tmp_path, monkeypatch):
    before = {path.stem: names(path.stem) for path in suites.FOLDER.glob("*.yaml")}
    copy = tmp_path / "tasks"
    shutil.copytree(suites.OWN_TASKS, copy)
    (copy / "riddles.yaml").write_text("task: riddles\ninclude: _pairs_template\n")
    monkeypatch.setattr(suites, "OWN_TASKS", copy)
    assert {path.stem: names(path.stem) for path in suites.FOLDER.glob("*.yaml")} == before
    own = tmp_path / "own.yaml"
    own.write_text("tasks: [{task: riddles}]\n")
    assert names(str(own)) == ["_pairs_template", "riddles.yaml"]


@pytest.mark.parametrize("content", ["7", "tasks: [7]", "tasks: [{folder: x}]"])
def test_files_of_a_wrong_suite_are_none_or_one_sentence(tmp_path, content):
    path = tmp_path / "own.yaml"
    path.write_text(content)
    if content == "7":
        with pytest.raises(ValueError, match="own.yaml must be a mapping"):
            suites.task_files(str(path))
    else:
        assert suites.task_files(str(path)) == []


def test_asking_for_the_files_imports_nothing_heavy():
    code = (
        "import sys; from experiments.evaluation import suite\n"
        "suite.task_files('small')\n"
        "print(*{m.split('.')[0] for m in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"torch", "lm_eval", "transformers", "datasets", "numpy"}
