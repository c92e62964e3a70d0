"""A suite applied to any exported model, of a run or plain transformers."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import ViTConfig, ViTForImageClassification

from experiments import data, models
from experiments.errors import UserError, sentence
from experiments.evaluation.lm.evaluate import evaluate as evaluate_text
from experiments.evaluation.model import evaluate_model, task_of


def plain_vit(channels: int = 1):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 16, "image_size": 32, "patch_size": 8, "num_labels": 47}
    return ViTForImageClassification(ViTConfig(**sizes, num_channels=channels))


def test_a_language_model_is_scored_as_its_run_would_be(model_dir, data_dir, tmp_path):
    result = evaluate_model(model_dir, "smoke", data_dir=data_dir, out=tmp_path / "a.json")
    expected = evaluate_text(model_dir, data_dir, "smoke", out=tmp_path / "b")
    assert json.loads((tmp_path / "a.json").read_text())["scores"] == expected["scores"]
    assert result["suite"] == "smoke"


def test_a_plain_classifier_of_transformers(glyphs, tmp_path):
    vit = plain_vit().eval()
    vit.save_pretrained(tmp_path / "vit")
    result = evaluate_model(tmp_path / "vit", "vision", data_dir=glyphs, out=tmp_path)
    rows = {(r["metric"], r["split"]): r["value"] for r in result["scores"]}
    split, meta = data.load(glyphs).split("test"), data.load(glyphs).meta
    inputs = (torch.from_numpy(np.array(split.pixels)) / 255 - meta["mean"][0]) / meta["std"][0]
    with torch.no_grad():
        logits = vit(pixel_values=inputs).logits
    loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(split.labels)).item()
    assert rows["loss", "test"] == pytest.approx(loss, rel=1e-5)
    right = (logits.argmax(1).numpy() == split.labels).mean()
    assert rows["accuracy", "test"] == pytest.approx(right)


def test_our_classifiers_are_known_by_their_config(tmp_path):
    module = models.get("resnet")
    for stem in ("cifar", "imagenet"):
        config = module.Config(depths=[1], hidden_sizes=[4], embedding_size=4, stem=stem)
        model = module.build(config, classes=["a", "b"], num_channels=1, image_size=32)
        model.save_pretrained(tmp_path / stem)
        assert task_of(tmp_path / stem) == "vision"


def test_what_cannot_be_scored_is_one_sentence(model_dir, data_dir, glyphs, tmp_path):
    out, bert, vit = (tmp_path / name for name in ("out.json", "bert", "vit"))
    bert.mkdir()
    (bert / "config.json").write_text('{"model_type": "bert", "architectures": ["BertModel"]}')
    plain_vit(channels=3).save_pretrained(vit)
    for model, suite, prepared, words in (
        (tmp_path, "smoke", data_dir, "holds no config.json"),
        (bert, "smoke", data_dir, "holds BertModel; only causal language models "),
        (model_dir, "vision", data_dir, "vision.yaml: kind is 'images', but the model"),
        (model_dir, "smoke", None, "suite smoke scores text of prepared data; name their folder"),
        (model_dir, "smoke", glyphs, "holds images, so .* cannot read it"),
        (vit, "vision", glyphs, "takes images of 32 pixels and 3 channels, but those of"),
        (vit, "vision", data_dir, "holds no images, so .* cannot classify"),
    ):
        with pytest.raises(ValueError, match=words):
            evaluate_model(model, suite, data_dir=prepared, out=out)
    (vit / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(ValueError, match="the model of .*vit cannot be read: ."):
        evaluate_model(vit, "vision", data_dir=glyphs, out=out)
    assert not out.exists()


def change_config(**values):
    def change(folder):
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return change


def shorten(name, length):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:length])


def write(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def foreign_code(folder):
    """A model of other code, which must not run."""
    change_config(auto_map={"AutoModelForCausalLM": "own.Own"}, model_type="own")(folder)
    (folder / "own.py").write_text("raise SystemExit('this code ran')")


def spoil(folder):
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, path, metadata={"format": "pt"})


DAMAGES = {
    "fewer layers than weights": change_config(num_hidden_layers=1),
    "another width": change_config(intermediate_size=7),
    "no context": change_config(max_position_embeddings=0),
    "an unknown quantization": change_config(quantization_config={"quant_method": "none"}),
    "a weight that is NaN": spoil,
    "a size that is text": change_config(hidden_size="wide"),
    "an unknown kind": change_config(model_type="nothing"),
    "code of its own": foreign_code,
    "a config that is a list": write("config.json", b"[]"),
    "a config cut short": shorten("config.json", 40),
    "weights cut short": shorten("model.safetensors", 100),
    "a tokenizer cut short": shorten("tokenizer.json", 100),
    "no tokenizer": lambda folder: [path.unlink() for path in folder.glob("tokenizer*")],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_or_foreign_folder_is_one_sentence(
    model_dir, data_dir, tmp_path, damage, monkeypatch
):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked on the terminal"))
    folder = tmp_path / "damaged"
    shutil.copytree(model_dir, folder)
    DAMAGES[damage](folder)
    with pytest.raises(UserError) as caught:
        evaluate_model(folder, "smoke", data_dir=data_dir, out=tmp_path, task="lm")
    assert "\n" not in sentence(caught.value) and str(folder) in sentence(caught.value)
    assert not (tmp_path / "eval.json").exists()
