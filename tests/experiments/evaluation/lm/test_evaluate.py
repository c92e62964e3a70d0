"""Suites and their files, and language models scored by them."""

import json
import os
import shutil
import socket
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
import torch

from experiments.data.base import MissingData
from experiments.errors import UserError
from experiments.evaluation import suite as suites
from experiments.evaluation.files import hub_digest, weights_hash
from experiments.evaluation.lm.evaluate import evaluate
from experiments.evaluation.lm.model import CausalLM
from experiments.evaluation.lm.tasks.prose_pairs import prose_pairs, sentences, swap
from experiments.evaluation.suite import FOLDER, load_suite
from tests.experiments.data.mirrors import write_mirror
from tests.experiments.evaluation.conftest import reseal

FIELDS = set(
    "task metric value stderr num_items chance num_fewshot limit batch_size dtype "
    "execution truncated_fraction split data_hash".split()
)


@pytest.fixture
def suite(tmp_path):
    """Writes a suite file and returns its path."""

    def write(*tasks: str, perplexity: str = "{max_tokens: 200}", name: str = "own") -> str:
        path = tmp_path / f"{name}.yaml"
        lines = "".join(f"  - {task}\n" for task in tasks)
        path.write_text(f"batch_size: 8\nperplexity: {perplexity}\ntasks:\n{lines or '  []'}\n")
        return str(path)

    return write


@pytest.fixture
def no_network(monkeypatch):
    """Any attempt to open a connection or to look up a name fails the test."""
    attempts = []

    def refuse(*args, **kwargs):
        attempts.append(args)
        raise OSError("the network is switched off in this test")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    yield
    assert not attempts


PROSE = "{task: prose_pairs, limit: 20}"


def by_metric(result) -> dict:
    return {(s["task"], s["metric"], s["split"]): s for s in result["scores"]}


def test_smoke_suite_without_network(model_dir, data_dir, tmp_path, no_network):
    result = evaluate(model_dir, data_dir, "smoke", out=tmp_path / "eval.json")
    assert json.loads((tmp_path / "eval.json").read_text()) == result
    assert all(set(score) >= FIELDS for score in result["scores"])
    assert {score["data_hash"] for score in result["scores"]} == {"0123"}
    assert result["suite"] == "smoke" and result["run"] == model_dir.parent.name
    scores = by_metric(result)
    for split in ("validation", "test"):
        for metric in ("loss", "perplexity", "bits_per_byte"):
            assert scores["perplexity", metric, split]["value"] > 0
    accuracy = scores["prose_pairs", "acc", "test"]
    assert accuracy["chance"] == 0.5 and 0 <= accuracy["value"] <= 1
    assert os.environ["HF_HUB_OFFLINE"] == "1"


def test_pair_accuracy_equals_a_direct_count(
    model_dir, model, tokenizer, data_dir, suite, tmp_path
):
    result = evaluate(model_dir, data_dir, suite(PROSE), out=tmp_path)
    rows = (data_dir / "text" / "test.jsonl").read_text().splitlines()
    pairs = prose_pairs([json.loads(row)["text"] for row in rows])[:20]

    def nats(sentence: str) -> float:
        tokens = [0, *tokenizer.encode(sentence, add_special_tokens=False)][:33]
        with torch.no_grad():
            logits = model(torch.tensor([tokens[:-1]])).logits[0].double()
        return float(torch.log_softmax(logits, -1)[range(len(tokens) - 1), tokens[1:]].sum())

    right = [nats(pair["good"]) > nats(pair["bad"]) for pair in pairs]
    score = by_metric(result)["prose_pairs", "acc", "test"]
    assert score["value"] == pytest.approx(sum(right) / len(right))
    assert score["num_items"] == len(pairs) == 20
    share = score["value"]
    assert score["stderr"] == pytest.approx((share * (1 - share) / 19) ** 0.5)


def test_a_fallback_without_rows_is_left_out_and_any_other_task_refused(
    model_dir, data_dir, suite, tmp_path
):
    sums = shutil.copytree(data_dir, tmp_path / "sums")
    (sums / "text" / "test.jsonl").write_text('{"text": "1 + 2 = 3."}\n')
    reseal(sums)
    with pytest.raises(UserError, match="^task prose_pairs: .*test.jsonl has no row for it; name"):
        evaluate(model_dir, sums, suite(PROSE), out=tmp_path / "refused")
    fallback = suite("{task: prose_pairs, fallback: true}")
    scores = by_metric(evaluate(model_dir, sums, fallback, out=tmp_path / "scored"))
    assert {task for task, *_ in scores} == {"perplexity"}


@pytest.fixture
def calls(monkeypatch):
    """Counts the models that were loaded since it was last cleared."""
    counted: list[int] = []
    load = CausalLM.load
    monkeypatch.setattr(
        CausalLM, "load", lambda *args, **options: counted.append(1) or load(*args, **options)
    )
    return counted


def test_changed_data_and_models_are_scored_again(model_dir, data_dir, suite, tmp_path):
    first = evaluate(model_dir, data_dir, suite(), out=tmp_path)
    path = data_dir / "text" / "test.jsonl"
    path.write_text("\n".join(path.read_text().splitlines()[:5]) + "\n")
    with pytest.raises(ValueError, match=r"test.jsonl has \d+ bytes instead of"):
        evaluate(model_dir, data_dir, suite(), out=tmp_path)
    reseal(data_dir)
    second = evaluate(model_dir, data_dir, suite(), out=tmp_path)
    assert first["files_hash"] != second["files_hash"]
    assert first["scores"] != second["scores"]
    copy = shutil.copytree(model_dir, tmp_path / "model")
    hashes = {weights_hash(copy), weights_hash(model_dir)}
    for name in ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"):
        (copy / name).write_bytes((copy / name).read_bytes() + b" ")
        hashes.add(weights_hash(copy))
    assert len(hashes) == 5


def test_a_result_in_the_cache_needs_neither_torch_nor_lm_eval(
    model_dir, data_dir, suite, tmp_path
):
    """Training scores its model in its own process; the job after it only looks the result up."""
    cache, name = tmp_path / "cache", str(suite(PROSE))
    first = evaluate(model_dir, data_dir, name, out=tmp_path / "first.json", cache=cache)
    program = (
        "import sys; from pathlib import Path\n"
        "sys.modules.update(dict.fromkeys(('torch', 'lm_eval', 'transformers')))\n"
        "from experiments.evaluation.model import evaluate_model\n"
        "model, data, suite, out, cache = sys.argv[1:]\n"
        "evaluate_model(Path(model), suite, data_dir=Path(data), out=Path(out), cache=Path(cache),"
        " task='lm')\n"
    )
    arguments = [model_dir, data_dir, name, tmp_path / "again.json", cache]
    subprocess.run([sys.executable, "-c", program, *map(str, arguments)], check=True)
    assert json.loads((tmp_path / "again.json").read_text()) == first


@pytest.mark.parametrize("tokens", [[], [5, 320]])
def test_tokens_that_the_model_does_not_know_are_refused(
    model_dir, data_dir, suite, tmp_path, tokens
):
    np.array(tokens, dtype=np.uint16).tofile(data_dir / "test.bin")
    reseal(data_dir)
    with pytest.raises(ValueError, match=f"test.bin holds {len(tokens)} tokens, the largest"):
        evaluate(model_dir, data_dir, suite(), out=tmp_path)


@pytest.mark.parametrize("mirror", [None, "mirror"])
def test_missing_dataset_is_one_sentence_before_any_work(
    model_dir, data_dir, suite, tmp_path, calls, mirror
):
    options = {"out": tmp_path, "mirror": mirror and tmp_path / mirror}
    with pytest.raises(MissingData, match="task blimp: .*/<hub id>, or set"):
        evaluate(model_dir, data_dir, suite("{task: blimp, folder: blimp}"), **options)
    assert not calls


def test_all_suites_on_disk_load_and_another_setting_is_another_suite(tmp_path):
    names = {path.stem for path in FOLDER.glob("*.yaml")}
    assert names >= {"smoke", "small"}
    shots = {entry.task: entry.num_fewshot for entry in load_suite("small").tasks}
    leaderboard = {"arc_challenge": 25, "hellaswag": 10, "mmlu": 5, "winogrande": 5}
    assert shots == shots | leaderboard | {"truthfulqa_mc2": 0}
    assert len({load_suite(name).hash for name in names}) == len(names)
    hashes = set()
    for change in ("", "dtype: bfloat16", "execution: dense", "batch_size: 4"):
        (tmp_path / "own.yaml").write_text(f"perplexity: null\n{change}\n")
        hashes.add(load_suite(str(tmp_path / "own.yaml")).hash)
    assert len(hashes) == 4


@pytest.mark.parametrize(
    "content,message",
    [
        ("batchsize: 3\n", "batchsize is 3: Extra inputs are not permitted"),
        ("tasks: [{task: x, limit: -1}]\n", "tasks.0.limit is -1"),
        ("perplexity: {metrics: [los]}\n", "metric is 'los', .*; did you mean 'loss'"),
        ("perplexity: {splits: [train]}\n", "splits.0 is 'train'.*'validation' or 'test'"),
        ("kind: image\n", "kind is 'image'; it must be text or images"),
        ("kind: images\nsplits: [tset]\n", "splits.0 is 'tset'.*'validation' or 'test'"),
        ("- task: x\n", "own.yaml must be a mapping of settings by name"),
        ("tasks: [\n", "own.yaml is not valid YAML"),
    ],
)
def test_wrong_suite_names_key_and_value(tmp_path, content, message):
    path = tmp_path / "own.yaml"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        load_suite(str(path))


def test_unknown_names_and_a_damaged_mirror_are_said(model_dir, data_dir, suite, tmp_path, piqa):
    for name, words in (
        ("smok", "suite is 'smok', .*smoke.*or the path of a YAML"),
        (suite("{task: nope}", name="a"), "task is 'nope'"),
        (suite("{task: a, folder: nope}", name="b"), "folder is 'nope'"),
    ):
        with pytest.raises(ValueError, match=words):
            evaluate(model_dir, data_dir, name, out=tmp_path)
    options, task = piqa("train", "validation"), suite("{task: piqa, folder: piqa}")
    path = options["mirror"] / "baber/piqa/default/validation.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(MissingData, match=f"{UNREADABLE}.") as caught:
        evaluate(model_dir, data_dir, task, **options)
    assert "\n" not in str(caught.value)


UNREADABLE = "task piqa: its dataset cannot be read: "
PIQA = {"goal": ["Drop it", "Keep it"], "sol1": ["now", "a"], "sol2": ["b", "c"], "label": [0, 1]}


@pytest.fixture
def piqa(tmp_path):
    """Writes a mirror with two items of the hub's piqa in each split; returns options for it."""

    def write(*splits):
        shutil.rmtree(tmp_path / "mirror", ignore_errors=True)
        write_mirror(tmp_path / "mirror", "baber/piqa", dict.fromkeys(splits, pa.table(PIQA)))
        return {"out": tmp_path, "mirror": tmp_path / "mirror"}

    return write


@pytest.mark.parametrize("shots", [0, 1])
def test_a_hub_task_is_read_from_a_mirror_with_examples_and_counts_cut_prompts(
    model_dir, data_dir, suite, piqa, no_network, monkeypatch, shots
):
    """The official piqa task on a mirrored folder of two items; 32 tokens hold no example."""
    options = piqa("train", "validation")
    prompts, scored = [], CausalLM.loglikelihood

    def seen(self, requests, **options):
        prompts.extend(request.args[0] for request in requests)
        return scored(self, requests)

    monkeypatch.setattr(CausalLM, "loglikelihood", seen)
    task = f"{{task: piqa, folder: piqa, num_fewshot: {shots}}}"
    result = evaluate(model_dir, data_dir, suite(task, perplexity="null"), **options)
    scores = by_metric(result)
    assert all(prompt.count("Question:") == 1 + shots for prompt in prompts)
    assert {metric for _, metric, _ in scores} == {"acc", "acc_norm"}
    digest = hub_digest("baber/piqa", options["mirror"])
    for score in scores.values():
        assert (score["num_items"], score["chance"]) == (2, 0.5)
        assert (score["num_fewshot"], score["data_hash"]) == (shots, digest)
        assert score["truncated_fraction"] == shots


def test_a_published_task_needs_no_prepared_dataset_but_its_own(
    model_dir, data_dir, suite, piqa, calls
):
    """A split that its dataset lacks is refused before anything is scored."""
    options = piqa("train", "validation")
    task = suite("{task: piqa, folder: piqa}", perplexity="null")
    result = evaluate(model_dir, data_dir, task, **options)
    assert evaluate(model_dir, None, task, **options)["scores"] == result["scores"]
    calls.clear()
    options, task = piqa("train", "dev"), suite("{task: piqa, folder: piqa}")
    with pytest.raises(MissingData, match=f"{UNREADABLE}there is no 'validation'"):
        evaluate(model_dir, data_dir, task, **options)
    assert not calls


def test_a_model_with_another_tokenizer_reads_the_documents_in_its_own_tokens(
    model_dir, data_dir, suite, tmp_path
):
    own = evaluate(model_dir, data_dir, suite(perplexity="{}"), out=tmp_path)
    (data_dir / "tokenizer").mkdir()
    (data_dir / "tokenizer" / "tokenizer.json").write_text("{}")
    np.zeros(9, np.uint16).tofile(data_dir / "test.bin")
    reseal(data_dir)
    again = evaluate(model_dir, data_dir, suite(perplexity="{}"), out=tmp_path)
    before, after = ([score["value"] for score in made["scores"]] for made in (own, again))
    assert after == pytest.approx(before)


def own_files(suite: str) -> list[str]:
    files = suites.suite_files(suites.load_suite(suite))
    return [path.name for path in files if path.parent == suites.OWN_TASKS]


def test_a_suite_depends_on_the_task_files_that_it_names_alone(tmp_path, monkeypatch):
    bleu, prose = ["data_to_text.py", "data_to_text.yaml"], ["prose_pairs.py", "prose_pairs.yaml"]
    assert own_files("smoke") == ["_pairs_template", *bleu, "documents.py", *prose]
    assert own_files("data_to_text") == [*bleu, "documents.py"]
    assert own_files("perplexity") == own_files("vision") == []
    metrics = [path.stem for path in suites.suite_files(suites.load_suite("perplexity"))]
    assert sorted(metrics) == sorted(suites.Perplexity().metrics)
    before = {path.stem: own_files(path.stem) for path in suites.FOLDER.glob("*.yaml")}
    copy = tmp_path / "tasks"
    shutil.copytree(suites.OWN_TASKS, copy)
    (copy / "riddles.yaml").write_text("task: riddles\ninclude: _pairs_template\n")
    monkeypatch.setattr(suites, "OWN_TASKS", copy)
    assert {path.stem: own_files(path.stem) for path in suites.FOLDER.glob("*.yaml")} == before
    own = tmp_path / "own.yaml"
    own.write_text("tasks: [{task: riddles}]\n")
    assert own_files(str(own)) == ["_pairs_template", "documents.py", "riddles.yaml"]


TEXT = (
    "A heading\n\nThe small model learns to read every long document quickly. It does not. "
    "Numbers such as 42 are\nleft out of this rather short sentence. Returns x_1 for all of the "
    "given weights and masks.\n\nThis sentence goes over a line\nbreak and is still one sentence."
)


def test_sentences_are_plain_swaps_fixed_and_pairs_of_any_order_the_same():
    assert list(sentences([TEXT])) == [
        "The small model learns to read every long document quickly.",
        "This sentence goes over a line break and is still one sentence.",
    ]
    assert swap("The small model learns to read every long document quickly.") == (
        "The small learns model to read every long document quickly."
    )
    assert swap("Torch, NumPy, SciPy, Pandas, Dask, Ray.") is None
    assert swap("He had had Had had, Had.") is None
    other = "Another document says that masks are updated after each of the steps."
    pairs = prose_pairs([TEXT, other, TEXT])
    assert pairs == prose_pairs([other, TEXT])
    assert len(pairs) == 3
    assert all(pair["good"] != pair["bad"] for pair in pairs)
