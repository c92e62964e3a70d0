"""No command writes outside of its folder, and what a user can cause ends in one sentence."""

import copy
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from experiments.cli.app import main
from experiments.errors import UserError
from experiments.evaluation import model
from experiments.specs import read
from experiments.specs.code import ROOT
from experiments.specs.expand import BUDGET_CORE_S, all_runs, computation_costs
from experiments.specs.read import load_study
from experiments.store import paths, reference
from experiments.training import loop as training
from tests.experiments.specs.edit import BASE

STUDY, SCALE = "spdf", "small"
IDS = sorted(run.id for run in all_runs(SCALE).values() if STUDY in run.studies)
RECORDS = list(reference.find_all(IDS).values())
RUN = next(iter(all_runs(SCALE)))


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A folder to work in, beside one that nothing may touch."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "precious").write_text("x")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def written(folder: Path, *records: dict) -> list[Path]:
    """The files of records, as runs write them."""
    files = [folder / record["run"] / "record.json" for record in records]
    for file, record in zip(files, records, strict=True):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(record))
    return files


COLLECT = ("collect", "--study", STUDY, "--scale", SCALE)
FIGURE = ("figure", "loss_curves", "--study", STUDY, "--scale", SCALE)


def test_collect_deletes_nothing_before_it_has_read_everything(place, call):
    files = written(place.parent / "made", *RECORDS[:3])
    code, text = call(*COLLECT, *files)
    assert code == 0 and "trained by other code than is here" in text
    before = contents(place)
    assert "results/small/spdf/records.csv" in before
    assert "--committed" in call(*COLLECT)[1]
    broken = place.parent / "record.json"
    broken.write_text(json.dumps(RECORDS[1])[:200])
    other = next(name for name in reference.entries() if name.startswith("small__resnet"))
    [foreign] = written(place.parent / "foreign", reference.find(other))
    for bad in (place / "nothing.json", broken, foreign):
        code, text = call(*COLLECT, files[0], bad)
        assert code not in (0, None) and str(bad) in text
        assert contents(place) == before


def test_collect_says_which_records_are_committed(place, call):
    import pandas as pd

    [own] = written(place / "results" / SCALE / "runs", RECORDS[1])
    assert call(*COLLECT, "--committed", own)[0] == 0
    table = pd.read_csv("results/small/spdf/records.csv")
    by_run = table.groupby("run")["committed"].unique().map(list).to_dict()
    assert by_run == {record["run"]: [record is not RECORDS[1]] for record in RECORDS}
    assert call(*COLLECT, own)[0] == 0
    table = pd.read_csv("results/small/spdf/records.csv")
    assert set(table["run"]) == {RECORDS[1]["run"]} and not table["committed"].any()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "--run", "RUN", "--execution", "x"], ["execution is 'x'", "skip"]),
        (["check", "--device", "cuda:77"], ["device is 'cuda:77'", "sees"]),
        (["train", "--run", "RUN", "--threads", "0"], ["threads"]),
        (["train", "--run", "smoke__nothing"], ["run is 'smoke__nothing'"]),
        (["verify", "--scale", "quick", "--json", "/dev/null/x"], ["/dev/null"]),  # trains nothing
        (["compute", "flop"], ["computation is 'flop'", "did you mean 'flops'"]),
        (["index", "--scale", "paper"], ["no pages yet"]),
        (["publish", "--scale", "paper"], ["scale is 'paper', but must be one of small"]),
        (["report", "--study", STUDY, "--scale", "paper"], ["has nothing at scale 'paper'"]),
        (["prepare", "--data", "wikipedia-start"], ["data is 'wikipedia-start'"]),
        (["prepare", "--data", "wikitext-2-v1024", "--mirror", "no"], ["mirror is 'no'"]),
        (["evaluate"], ["--run", "--model"]),
        (["evaluate", "--run", "x", "--model", "."], ["--run", "--model"]),
        (["evaluate", "--model", "."], ["suite is missing"]),
        (["evaluate", "--model", ".", "--suite", "smoke"], ["holds no config.json"]),
        (["evaluate", "--run", "RUN"], ["no folder with an exported model"]),
        (["compare", "nothing"], ["run is 'nothing'"]),
        ([*FIGURE, "--format", "eps"], ["format is 'eps', but must be one of csv, pdf, png, svg"]),
        ([*FIGURE, "--format", "svg", "--out", "fig.pdf"], ["its ending is not the format 'svg'"]),
        ([*FIGURE, "--out", "fig.gif"], ["format is 'gif', but must be one of"]),
        ([*FIGURE, "--style", "no.mplstyle"], ["style is 'no.mplstyle', but there is no"]),
        ([*FIGURE, "schedules", "--out", "fig.pdf"], ["there are several figures or formats"]),
        ([*FIGURE, "los_curves"], ["did you mean 'loss_curves'?"]),
        ([*FIGURE, "--study", "spdv"], ["study is 'spdv', but must be one of"]),
        ([*FIGURE, "--scale", "huge"], ["scale is 'huge', but must be one of"]),
        ([*FIGURE, "--scale", "smoke"], ["'spdf' has no results at scale 'smoke' yet"]),
    ],
)
def test_a_mistake_is_one_sentence(place, call, arguments, words):
    run = next(iter(all_runs("smoke")))
    code, text = call(*(run if word == "RUN" else word for word in arguments))
    assert code not in (0, None) and "Traceback" not in text and not contents(place)
    assert all(word in text for word in words), text


@pytest.mark.parametrize(
    ("method", "change", "words"),
    [
        ("rigl", {"update": {"freq": "200%", "stop": "75%"}}, "RigL changes no mask in 160 steps"),
        ("gmp", {"update": {"freq": "10%", "stop": "30%"}}, "GMP is at a sparsity of 0.63 after"),
        ("rigl", {}, None),
    ],
)
def test_masks_that_do_not_change_or_arrive_within_a_run_are_refused(
    call, monkeypatch, tmp_path, method, change, words
):
    study = copy.deepcopy(BASE)
    study["methods"][method]["sparsity"] |= change
    (tmp_path / "sparsity_library.yaml").write_text(yaml.safe_dump(study))
    monkeypatch.setattr(read, "STUDIES", tmp_path)
    code, text = call("check", "--scale", "smoke")
    if words is None:
        assert code in (0, None) and not text
        return
    place = f"sparsity_library.yaml: methods.{method}.sparsity.update: at scale smoke, {words}"
    assert code not in (0, None) and place in text and "Traceback" not in text


def test_a_broken_study_does_not_keep_another_from_being_planned(call, monkeypatch, tmp_path):
    (tmp_path / "sparsity_library.yaml").write_text(yaml.safe_dump(BASE))
    (tmp_path / "broken.yaml").write_text("name: broken\n")
    monkeypatch.setattr(read, "STUDIES", tmp_path)
    code, text = call("plan", "--scale", "smoke", "--study", "sparsity_library")
    assert code in (0, None) and "of all studies" in text
    for others in ((), ("--study", "broken")):
        code, text = call("plan", "--scale", "smoke", *others)
        assert code not in (0, None) and "broken.yaml" in text


def test_data_that_are_missing_name_the_command_that_fetches_them(call, place, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(place))
    monkeypatch.delenv("SPARSE_MIRROR", raising=False)
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    for data in ("cifar100", "enwiki-slice"):
        run = next(name for name in reference.entries() if f"__{data}" in name)
        code, text = call("verify", "--run", run)
        assert code not in (0, None)
        assert f"`python -m experiments prepare --data {data}` fetches it" in text


def test_a_bug_still_shows_its_traceback(place, monkeypatch):
    def fail(*_args, **_options):
        raise ValueError("direction is 3: it must be less, greater")

    for where, words in (
        ("experiments.cli.train.check_device", f"train --run {RUN}"),
        ("experiments.evaluation.model.evaluate_model", "evaluate --model . --suite x"),
    ):
        monkeypatch.setattr(where, fail)
        monkeypatch.setattr(sys, "argv", ["experiments", *words.split()])
        with pytest.raises(ValueError) as caught:
            main()
        assert not isinstance(caught.value, UserError)


def test_a_page_is_drawn_again_as_it_was(place, call):
    assert call(*COLLECT, "--committed")[0] == 0
    arguments = ("report", "--study", STUDY, "--scale", SCALE)
    assert call(*arguments)[0] == 0
    page = place / "reports" / SCALE / STUDY
    first = contents(page)
    assert {f"figures/{name}.png" for name in load_study(STUDY).figures} < {*first}
    (page / "figures" / f"{load_study(STUDY).figures[0]}.png").write_text("damaged")
    assert call(*arguments)[0] == 0 and contents(page) == first
    assert call("report", "--study", "flops", "--scale", SCALE)[0] == 0  # of computations alone


def test_a_figure_is_drawn_for_a_paper_from_committed_records(place, call):
    (place / "my.mplstyle").write_text("font.size: 7\n")
    code, said = call(*FIGURE, "--style", "my.mplstyle", "--width", "3.3", "--out", "fig.pdf")
    assert (code, said) == (0, "fig.pdf\n")
    width = re.search(rb"/MediaBox \[ 0 0 ([\d.]+)", Path("fig.pdf").read_bytes())[1]
    assert float(width) == pytest.approx(3.3 * 72, abs=0.5)
    said = call(*FIGURE, "--width", "1", "--out", "narrow.pdf")[1]
    assert said == "Error: the figure does not fit in a width of 1 inches"
    code, said = call(*FIGURE, "--format", "svg", "--format", "csv")
    folder = f"reports/{SCALE}/{STUDY}/figures/loss_curves"
    assert said == f"{folder}.svg\n{folder}.csv\n"
    assert all(Path(name).is_file() for name in said.split())


def test_a_process_says_its_sentence_and_exits_with_one(place):
    done = subprocess.run(
        [sys.executable, "-m", "experiments", "index", "--scale", "../../etc"],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("Error: scale is '../../etc'") and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "shows"),
    [(UserError("suite is wrong"), False), (OSError(28, "No space left"), False),
     (OSError("f cannot be written: no room"), False),
     (ZeroDivisionError("a bug"), True), (ValueError("a bug"), True)],
)  # fmt: skip
def test_a_bug_in_scoring_shows_and_costs_no_trained_model(place, call, monkeypatch, error, shows):
    """States go last, since Snakemake deletes what a killed job has made."""
    run = next(iter(all_runs("smoke").values()))
    state = paths.state(run.id, run.spec.hash)

    def train(*_, **options):
        assert options["keep_states"]
        state.mkdir(parents=True)

    def evaluate(*_, **__):
        assert state.is_dir()
        raise error

    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr(model, "evaluate_model", evaluate)
    code, said = call("train", "--run", run.id, "--score")
    assert code == 0 and "not scored yet" in said and ("Traceback" in said) is shows
    assert not state.exists()


def test_where_names_the_committed_report_until_one_is_written(place, call):
    code, text = call("where", "--", "--config", "scale=smoke")
    assert code == 0 and text.count("\n") == 1
    assert "reports/smoke/index.html does not exist" in text
    assert "reports/README.md" in text and "`python -m experiments show RUN`" in text
    folder = place / "reports/smoke"
    folder.mkdir(parents=True)
    (folder / "index.html").touch()
    arguments = ("--cores", "2", "-n", "--config", "scale=smoke", "compile=true", "offline=True")
    code, text = call("where", "--", *arguments, "--set-threads", "train=2")
    assert code == 0 and re.match(r"0 of \d+ runs of scale smoke have a record: 0 made", text)
    assert "The page is reports/smoke/index.html" in text


def test_a_plan_says_what_all_leave_of_the_budget_and_what_is_missing(call, monkeypatch, place):
    costs = [run.core_seconds for run in all_runs("smoke").values()]
    everything = sum(costs) + sum(computation_costs("smoke").values())
    monkeypatch.setitem(BUDGET_CORE_S, "smoke", everything - 7)
    text = call("plan", "--scale", "smoke", "--study", "spdf")[1]
    assert text.endswith(
        f"{everything:8.0f}  of all studies, whose budget is {everything - 7:,}, over it by 7\n"
    )

    def planned(*options, study="sparse_ift_vision"):
        code, text = call("plan", "--scale", SCALE, "--study", study, *options)
        assert code in (0, None)
        return {*re.findall(r"computation \w+|\w+__\S+", text)}

    missing = planned("--missing")
    assert missing.isdisjoint(reference.entries()) and planned() - missing <= {*reference.entries()}
    assert planned() - missing
    assert planned(study="flops")
    assert not planned("--missing", study="flops")
