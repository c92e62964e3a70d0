"""One run from one YAML file: the sideband document's command, and its NaN checkpoint."""

import json
import shutil

import pytest
import torch
import yaml
from safetensors.torch import load_file

from experiments.cli import app as commands
from experiments.errors import UserError
from experiments.specs.schema import SpecError
from experiments.training import single

SIDEBAND = {"type": "sideband", "sparsity": 0.3, "init_method": "random", "seed": 1234}


@pytest.fixture
def params(corpus, tmp_path, monkeypatch):
    """The YAML file of a small run, in a folder with prepared data."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(corpus, tmp_path / "resources/data/wikipedia-start-v257")
    model = {"hidden_size": 32, "intermediate_size": 88, "num_layers": 2, "num_heads": 2}
    file = {
        "model": {"name": "llama", "label": "tiny", **model},
        "data": {"name": "wikipedia-start", "vocab_size": 257, "context": 32},
        "recipe": {"tokens": 1280, "batch_size": 4, "learning_rate": 0.01, "validations": 1},
        "sparsity": SIDEBAND,
    }
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(file))
    return path


def call(*arguments: str) -> None:
    """`python -m experiments run ...` in this process."""
    commands.app(["run", *map(str, arguments)], standalone_mode=False)


def test_train_then_eval_through_a_nan_checkpoint(params, tmp_path, capsys):
    folder = tmp_path / "model_dir"
    call("--mode", "train", "--params", params, "--model_dir", folder)
    state = load_file(folder / "checkpoint_10.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    assert state[name].isnan().float().mean() == pytest.approx(0.3, abs=1e-3)
    assert not state["lm_head.weight"].isnan().any()

    capsys.readouterr()
    call("-m", "eval", "-p", params, "-o", folder)
    scores = json.loads(capsys.readouterr().out)
    trained = json.loads((folder / "train.json").read_text())["final"]
    assert scores["loss"] == pytest.approx(trained["validation_loss"], rel=1e-6)
    assert (
        json.loads((folder / "eval.json").read_text())["checkpoint"] == "checkpoint_10.safetensors"
    )

    # Training goes on from the checkpoint with the same masks.
    further = tmp_path / "further"
    call("-m", "train_and_eval", "-p", params, "-o", further, "--max_steps", 3,
         "--eval_steps", 1, "--checkpoint_path", folder / "checkpoint_10.safetensors")  # fmt: skip
    later = load_file(further / "checkpoint_3.safetensors")
    assert torch.equal(later[name].isnan(), state[name].isnan())
    assert not torch.equal(later[name].nan_to_num(), state[name].nan_to_num())


def test_a_finished_training_is_not_repeated(params, tmp_path):
    folder = tmp_path / "model_dir"
    single.run("train", params, folder, max_steps=2)
    before = (folder / "train.json").stat().st_mtime_ns
    params = params.rename(params.with_name("renamed.yaml"))
    single.run("train", params, folder, max_steps=2)
    assert (folder / "train.json").stat().st_mtime_ns == before
    for _ in range(2):
        with pytest.raises(SpecError, match="holds a training with another recipe; name another"):
            single.run("train", params, folder, max_steps=3)
        (folder / "train.json").unlink(missing_ok=True)  # as of one that was stopped


def test_a_mistake_that_is_mended_may_use_the_same_folder(params, tmp_path):
    right = params.read_text()
    spoil(params, lambda f: f.update(sparsity={"sparsity": 0.5, "param_filter": "*.wieght"}))
    with pytest.raises(UserError, match="no parameter matches"):
        single.run("train", params, tmp_path / "model_dir", max_steps=2)
    params.write_text(right)
    single.run("train", params, tmp_path / "model_dir", max_steps=2)


def spoil(params, change) -> None:
    file = yaml.safe_load(params.read_text())
    change(file)
    params.write_text(yaml.safe_dump(file))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: f.update(optimizer={}), "unknown key optimizer"),
        (lambda f: f["sparsity"].update(sparsty=0.2), "yaml: sparsity: .*sparsty"),
        (lambda f: f["sparsity"].update(sparsity=1.5), "yaml: sparsity: .* not 1.5"),
    ],
)
def test_a_wrong_file_is_one_sentence(params, tmp_path, change, words):
    spoil(params, change)
    with pytest.raises(UserError, match=words):
        single.run("train", params, tmp_path / "model_dir")


RIGL = {"type": "rigl", "sparsity": 0.5, "init_method": "random", "drop_fraction": 0.3}


def test_a_bound_on_the_steps_that_cuts_a_schedule_is_told(params, tmp_path, capsys):
    spoil(params, lambda file: file.update(sparsity=RIGL | {"update": {"freq": 4}}))
    single.run("train", params, tmp_path / "model_dir", max_steps=3)
    told, *training = capsys.readouterr().out.splitlines()
    assert told.startswith("Warning: params.yaml: sparsity: RigL changes no mask in 3 steps")
    assert "done: 3 steps" in training[-1]


def test_wrong_arguments_are_one_sentence_and_a_foreign_folder_stays(params, tmp_path):
    own = tmp_path / "project" / "model" / "precious.py"
    own.parent.mkdir(parents=True)
    own.write_text("x = 1")
    absent = {"checkpoint": tmp_path / "x.safetensors"}
    for mode, file, folder, options, words in (
        ("test", params, tmp_path, {}, "mode is 'test', but must be one of "),
        ("eval", params, tmp_path, {}, "holds no checkpoint"),
        ("eval", params, tmp_path, absent, "no such file"),
        ("train", tmp_path / "nowhere.yaml", tmp_path, {}, "nowhere.yaml: No such file"),
        ("train", params, tmp_path / "project", {"max_steps": 1}, "'model' is of no training"),
    ):
        with pytest.raises(SpecError, match=words):
            single.run(mode, file, folder, **options)
    assert own.read_text() == "x = 1"


@pytest.mark.parametrize("content", ["{", "[]", "{}", ""])
def test_a_damaged_summary_counts_as_no_training(params, tmp_path, content):
    folder = tmp_path / "model_dir"
    folder.mkdir()
    (folder / "train.json").write_text(content)
    (folder / "checkpoint_x.safetensors").write_text("of another program")
    single.run("train_and_eval", params, folder, max_steps=1, eval_steps=1)
    assert json.loads((folder / "eval.json").read_text())["checkpoint"].endswith("_1.safetensors")
