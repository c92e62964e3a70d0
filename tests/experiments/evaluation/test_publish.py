"""`export`: a folder that transformers loads offline, which scores the same, and its card."""

import json
import shutil

import pytest
import torch
import yaml
from rocrate.rocrate import ROCrate
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiments.cli import app as commands
from experiments.data.files import seal
from experiments.errors import UserError
from experiments.evaluation.model import evaluate_model
from experiments.training import single
from tests.experiments.evaluation.conftest import write_corpus


@pytest.fixture(scope="module")
def trained(documents, tokenizer, tmp_path_factory):
    """The folder of a short sparse training on the tests' sentences, with its evaluation."""
    folder = tmp_path_factory.mktemp("trained")
    data = folder / "resources/data/wikipedia-start-v320"
    write_corpus(data, documents, tokenizer)
    tokenizer.save_pretrained(data / "tokenizer")
    meta = {"name": "wikipedia-start", "hash": "0123", "vocab_size": len(tokenizer), "eos_id": 0}
    seal(data, meta, [path for path in data.rglob("*.*") if path.is_file()])
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_layers": 1, "num_heads": 2}
    file = {
        "model": {"name": "llama", "label": "tiny", **sizes},
        "data": {"name": "wikipedia-start", "vocab_size": 320, "context": 32},
        "recipe": {"tokens": 1280, "batch_size": 4, "learning_rate": 0.01, "validations": 1},
        "sparsity": {"algorithm": "set", "sparsity": 0.75, "update": 3},
    }
    (folder / "my run.yaml").write_text(yaml.safe_dump(file))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        single.run("train", folder / "my run.yaml", folder / "out")
    evaluate_model(folder / "out/model", "smoke", data_dir=data, out=folder / "out/eval.json")
    return folder


def call(*arguments) -> None:
    commands.app(["export", *map(str, arguments)], standalone_mode=False)


@pytest.fixture(scope="module")
def out(trained):
    """The folder that is exported of it."""
    call("--model", trained / "out", "--out", trained / "cards" / "mine")
    return trained / "cards" / "mine"


def rows_of(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines]


def test_the_export_loads_in_transformers_and_scores_the_same(trained, out, tmp_path, monkeypatch):
    assert [path.name for path in out.parent.iterdir()] == ["mine"]  # nothing half made is left
    model = AutoModelForCausalLM.from_pretrained(out)
    for name, mask in load_file(out / "masks.safetensors").items():
        assert not model.get_parameter(name)[~mask].any()
    assert len(AutoTokenizer.from_pretrained(out)) == 320
    monkeypatch.chdir(trained)
    again = tmp_path / "eval.json"
    options = ["--model", str(out), "--suite", "smoke", "--out", str(again)]
    commands.app(["evaluate", *options], standalone_mode=False)
    again = json.loads(again.read_text())
    before = json.loads((trained / "out/eval.json").read_text())
    assert again["scores"] == before["scores"]

    # To the last digit: what the card says is what the evaluation was.
    text = (out / "README.md").read_text()
    shown = {tuple(row[:3]): row[3] for row in rows_of(text) if len(row) == 6}
    for score in before["scores"]:
        key = (score["task"], score["metric"], score.get("split") or "")
        assert float(shown[key]) == score["value"]


def test_the_card_says_what_the_weights_are(trained, out):
    text = (out / "README.md").read_text()
    _, head, body = text.split("---\n", 2)
    facts = yaml.safe_load(head)
    assert facts["library_name"] == "transformers" and facts["pipeline_tag"] == "text-generation"
    assert "set" in facts["tags"]
    assert facts["license"] == "apache-2.0" and facts["datasets"] == ["wikipedia-start"]
    assert "| licence of the data | CC BY-SA 3.0 and GFDL |" in body
    values = [result["metrics"][0]["value"] for result in facts["model-index"][0]["results"]]
    assert values and all(isinstance(value, float) for value in values)

    weights = load_file(out / "model.safetensors")
    table = {row[0]: row[1:] for row in rows_of(body) if len(row) == 5}
    name = "model.layers.0.mlp.up_proj.weight"
    nonzero = int(weights[name].count_nonzero())
    assert table[name] == ["64 x 32", "2,048", f"{nonzero}", f"{1 - nonzero / 2048:.4%}"]
    assert table["all"][1] == f"{sum(w.numel() for w in weights.values()):,}"
    assert "model.embed_tokens.weight" not in table

    train = json.loads((trained / "out/train.json").read_text())
    assert train["data"]["hash"] in body and train["spec_hash"] in body
    assert "--params 'my run.yaml' --model_dir out" in body
    assert yaml.safe_load((out / "run.yaml").read_text()) == train["spec"]

    # The folder is a crate that names data, command and each file.
    crate = ROCrate(out)
    names = {path.name for path in out.iterdir()} - {"ro-crate-metadata.json"}
    assert {file.id for file in crate.get_by_type("File")} == names
    (training,) = crate.get_by_type("CreateAction")
    assert [part.id for part in training["object"]] == ["#wikipedia-start", "run.yaml"]
    assert {part.id for part in training["result"]} == names - {"run.yaml"}
    assert "--params 'my run.yaml'" in training["name"]


def test_what_cannot_be_exported_is_one_sentence(trained, tmp_path):
    new = ("--out", tmp_path / "a")
    for words, message in (
        (new, "--run or the folder of one by --model, and not both"),
        (("--model", tmp_path, *new), "holds no train.json and model/"),
        (("--model", trained / "out", "--out", trained), "which exists; name a new folder"),
    ):
        with pytest.raises(UserError, match=message):
            call(*words)
    copy = shutil.copytree(trained / "out", tmp_path / "copy")
    weights = load_file(copy / "model/model.safetensors")
    weights["model.norm.weight"] += 1
    save_file(weights, copy / "model/model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="scored other weights"):
        call("--model", copy, "--out", tmp_path / "a")
    (copy / "eval.json").unlink()
    call("--model", copy, "--out", tmp_path / "a")
    assert "No suite scored these weights" in (tmp_path / "a/README.md").read_text()
    assert torch.equal(load_file(tmp_path / "a/model.safetensors")["model.norm.weight"],
                       weights["model.norm.weight"])  # fmt: skip
