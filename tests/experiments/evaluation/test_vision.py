"""Scores of image classifiers against values worked out by hand."""

import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from experiments import data
from experiments.data.files import seal
from experiments.evaluation import metrics
from experiments.evaluation import vision as accuracy
from experiments.evaluation.outputs import Images
from experiments.evaluation.suite import ImageSuite

CLASSES = ["a", "b", "c"]


def by_name(rows):
    return {(row["task"], row["metric"]): row for row in rows}


def scores(logits, labels, classes):
    chosen = ImageSuite(name="all").metrics
    return metrics.rows(Images(logits, labels, classes), chosen, task="images")


def test_scores_by_hand():
    probabilities = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.5, 0.4, 0.1], [0.2, 0.2, 0.6]])
    labels = np.array([0, 1, 1, 0])
    rows = by_name(scores(np.log(probabilities) + 3.0, labels, CLASSES))
    top1 = rows["images", "accuracy"]
    assert (top1["value"], top1["num_items"], top1["chance"]) == (0.5, 4, pytest.approx(1 / 3))
    # Two of four: variance 1/3 over the sample, so the error of the mean is sqrt(1/12).
    assert top1["stderr"] == pytest.approx(math.sqrt(1 / 12))
    loss = rows["images", "loss"]
    assert loss["value"] == pytest.approx(-np.log([0.7, 0.6, 0.4, 0.2]).mean())
    assert loss["chance"] == pytest.approx(math.log(3))


def test_of_equal_logits_the_first_class_is_the_answer():
    flat = by_name(scores(np.zeros((10, 10)), np.arange(10), [str(i) for i in range(10)]))
    assert flat["images", "accuracy"]["value"] == 0.1
    assert flat["images", "loss"]["value"] == pytest.approx(math.log(10))


@pytest.fixture(scope="module")
def classifier(tmp_path_factory, glyphs):
    from experiments.models import resnet

    torch.manual_seed(0)
    config = resnet.Config(depths=[1, 1], hidden_sizes=[4, 8], embedding_size=4)
    classes = data.load(glyphs).meta["classes"]
    folder = tmp_path_factory.mktemp("run") / "model"
    resnet.build(config, classes=classes, num_channels=1, image_size=32).save_pretrained(folder)
    return folder


def test_evaluate_writes_each_split_and_keeps_what_is_scored(classifier, glyphs, tmp_path):
    arguments = (classifier, glyphs, "vision")
    result = accuracy.evaluate(*arguments, out=tmp_path / "eval.json", cache=tmp_path / "cache")
    assert json.loads((tmp_path / "eval.json").read_text()) == result
    assert result["run"] == classifier.parent.name
    splits = {row["split"] for row in result["scores"]}
    assert splits == {"validation", "test"}
    assert {row["data_hash"] for row in result["scores"]} == {data.load(glyphs).meta["hash"]}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accuracy, "_scores", lambda *_: pytest.fail("scored twice"))
        out = tmp_path / "other.json"
        assert accuracy.evaluate(*arguments, out=out, cache=tmp_path / "cache") == result
        with pytest.raises(pytest.fail.Exception, match="scored twice"):
            accuracy.evaluate(*arguments, out=out, cache=tmp_path / "empty")


def test_a_model_of_other_classes_or_without_all_weights_is_refused(classifier, glyphs, tmp_path):
    meta = data.prepare("glyphs", out=tmp_path / "data", num_images=47)
    meta["classes"] = [*meta["classes"], "one more"]
    seal(tmp_path / "data", meta, (tmp_path / "data").glob("*.npy"))
    with pytest.raises(ValueError, match="tells 47 classes apart, but .* has 48"):
        accuracy.evaluate(classifier, tmp_path / "data", "vision", out=tmp_path)
    weights = load_file(classifier / "model.safetensors")
    del weights[next(name for name in weights if name.endswith("weight"))]
    (tmp_path / "config.json").write_bytes((classifier / "config.json").read_bytes())
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="the file lacks 1 weights, "):
        accuracy.evaluate(tmp_path, glyphs, "vision", out=tmp_path)


def test_a_suite_says_how_the_model_runs(classifier, glyphs, tmp_path, monkeypatch):
    executions, path = [], tmp_path / "own.yaml"
    monkeypatch.setattr(accuracy, "skipping", lambda model, how: executions.append(how) or model)
    path.write_text("kind: images\nexecution: dense\nsplits: [test]\n")
    result = accuracy.evaluate(classifier, glyphs, str(path), out=tmp_path)
    assert executions == ["dense"]
    row = next(row for row in result["scores"] if row["metric"] == "accuracy")
    assert row["limit"] is None and row["execution"] == "dense"


def test_metrics_of_other_outputs_are_left_out():
    for name in metrics.names():
        assert metrics.get(name).__doc__ and metrics.read([name])
    outputs = Images(np.zeros((1, 2)), np.array([0]), ["a", "b"])
    rows = metrics.rows(outputs, ["perplexity", "loss"], task="x")
    assert [row["metric"] for row in rows] == ["loss"]
