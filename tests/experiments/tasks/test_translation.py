"""Translation: pairs of lines, their batches and loss, and a run from training to BLEU."""

import itertools
import json

import numpy as np
import pytest
import torch

from experiments import data
from experiments.data.base import Dataset
from experiments.data.data_to_text import documents
from experiments.data.tokenizer import load as load_tokenizer
from experiments.evaluation.model import evaluate_model, task_of
from experiments.specs.run import RunSpec
from experiments.tasks import translation
from experiments.training import loop

WORDS = {"one": "eins", "two": "zwei", "dog": "Hund", "cat": "Katze"}
PAIRS = [
    (f"{a} {b} {c} .", f"{WORDS[c]} {WORDS[b]} {WORDS[a]} .")
    for a, b, c in itertools.permutations(WORDS, 3)
]


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """A prepared dataset of tiny sentences and their reversed translations."""
    splits = dict.fromkeys(("train", "validation", "test"), PAIRS)
    entry = Dataset("toy", "none", "here", "alike", lambda source: documents(splits))
    monkeypatch.setattr(data, "_datasets", lambda: {"toy": entry})
    data.prepare("toy", out=tmp_path / "data", vocab_size=300)
    return tmp_path / "data"


def spec(**changes):
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_layers": 1, "num_heads": 2}
    recipe = {"sentences": 2400, "batch_size": 8, "learning_rate": 0.005, "validations": 2}
    value = {
        "id": "toy", "task": "translation", "seed": 0, "sparsity": None,
        "model": {"name": "marian", "label": "toy", "dropout": 0.0, **sizes},
        "data": {"name": "toy", "vocab_size": 300, "context": 160},
        "recipe": {**recipe, "label_smoothing": 0.0, "steps": 300, "name": "toy"},
    }  # fmt: skip
    return RunSpec.model_validate({**value, **changes})


def test_a_batch_is_pairs_of_lines_padded_apart(corpus):
    task = translation.Task(spec(), corpus)
    words = load_tokenizer(corpus / "tokenizer")
    reads, writes = task.batch(0)
    assert len(reads) == len(writes) == 8
    seen = set()
    for read, written in zip(reads, writes, strict=True):
        read, written = (line[line != translation.ABSENT].tolist() for line in (read, written))
        assert written[-1] == words.token_to_id("<|endoftext|>")
        seen.add((words.decode(read), words.decode(written[:-1])))
    assert seen <= {(f"{a}\n", b) for a, b in PAIRS} and len(seen) == 8
    again = translation.Task(spec(), corpus).batch(0)
    assert torch.equal(again[0], reads) and torch.equal(again[1], writes)


def test_the_loss_is_that_of_each_pair_alone(corpus):
    """Padding is neither read nor predicted, and no token sees itself."""
    task = translation.Task(spec(), corpus)
    model = task.build_model().eval()
    reads, writes = task.batch(1)
    with torch.no_grad():
        whole = float(task.loss(model, (reads, writes)))
        total, count = 0.0, 0
        for read, written in zip(reads, writes, strict=True):
            read, written = (line[line != translation.ABSENT] for line in (read, written))
            before = torch.cat([torch.tensor([model.config.decoder_start_token_id]), written[:-1]])
            logits = model(input_ids=read[None], decoder_input_ids=before[None]).logits[0]
            total -= float(logits.log_softmax(-1).gather(1, written[:, None]).sum())
            count += len(written)
    assert whole == pytest.approx(total / count, rel=1e-5)


def test_smoothing_is_for_training_alone(corpus):
    smooth = spec(recipe={**spec().to_json()["recipe"], "label_smoothing": 0.3})
    task, plain = translation.Task(smooth, corpus), translation.Task(spec(), corpus)
    model = plain.build_model().eval()
    with torch.no_grad():
        assert task.validate(model, full=True) == plain.validate(model, full=True)
        assert float(task.loss(model, task.batch(0))) != float(plain.loss(model, plain.batch(0)))


def test_a_document_that_is_no_pair_is_named(corpus):
    words = load_tokenizer(corpus / "tokenizer")
    tokens = [*words.encode("one line alone").ids, words.token_to_id("<|endoftext|>")]
    np.array(4 * tokens, "<u2").tofile(corpus / "train.bin")
    with pytest.raises(ValueError, match="a document of its train split has 1 lines"):
        translation.Task(spec(), corpus)


@pytest.mark.parametrize("method", ["dense", "rigl"])
def test_a_run_learns_to_translate(method, corpus, tmp_path):
    sparsity = {
        "algorithm": "rigl",
        "sparsity": 0.5,
        "seed": 0,
        "update": {"freq": 20, "stop": 200},
    }
    chosen = spec() if method == "dense" else spec(sparsity=sparsity, final_sparsity=0.5)
    loop.train(
        chosen, code_hash="1" * 64, command="test", data_dir=corpus, out=tmp_path / "out",
        state_dir=tmp_path / "state",
    )  # fmt: skip
    train = json.loads((tmp_path / "out/train.json").read_text())
    assert train["final"]["validation_loss"] < 0.5
    assert train["flops"]["executed"] > 0
    if method == "rigl":
        assert train["flops"]["executed"] < train["flops"]["dense_equivalent"]
        names = {layer["name"] for layer in train["layers"]}
        assert any("encoder_attn" in name for name in names)
        assert not any("embed" in name for name in names)
    folder = tmp_path / "out/model"
    assert task_of(folder) == "translation"
    result = evaluate_model(folder, "translation", data_dir=corpus, out=tmp_path / "eval.json")
    (score,) = result["scores"]
    assert score["metric"] == "bleu" and score["num_items"] == len(PAIRS)
    assert score["value"] > 60
    right = dict(PAIRS)
    assert sum(right[o["input"]] == o["output"] for o in score["outputs"]) >= 6
