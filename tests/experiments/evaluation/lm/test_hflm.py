"""Against lm-eval's own HFLM, which needs accelerate."""

import pytest

pytest.importorskip("accelerate", reason="lm-eval's HFLM needs accelerate")

from lm_eval.models.huggingface import HFLM

from experiments.evaluation.lm.harness import CausalLM
from tests.experiments.evaluation.lm.test_harness import PAIRS, requests


@pytest.fixture(scope="module")
def theirs(model, tokenizer):
    return HFLM(pretrained=model, tokenizer=tokenizer, batch_size=4, device="cpu")


def test_loglikelihoods_agree(scorer, theirs):
    ours = CausalLM(scorer).loglikelihood(requests("loglikelihood", PAIRS))
    expected = theirs.loglikelihood(requests("loglikelihood", PAIRS), disable_tqdm=True)
    assert [greedy for _, greedy in ours] == [greedy for _, greedy in expected]
    assert [nats for nats, _ in ours] == pytest.approx([nats for nats, _ in expected], rel=1e-5)


def test_rolling_loglikelihoods_agree_to_six_digits(scorer, theirs, documents):
    texts = [(" ".join(documents["test"][i : i + 3]),) for i in range(0, 12, 3)]
    ours = CausalLM(scorer).loglikelihood_rolling(requests("loglikelihood_rolling", texts))
    expected = theirs.loglikelihood_rolling(
        requests("loglikelihood_rolling", texts), disable_tqdm=True
    )
    assert ours == pytest.approx(expected, rel=1e-6)


def test_generations_agree(scorer, theirs):
    arguments = [
        (prompt, {"until": ["."], "max_gen_toks": 8, "do_sample": False})
        for prompt in ("The mask", "The layer always", "A batch")
    ]
    ours = CausalLM(scorer).generate_until(requests("generate_until", arguments))
    assert ours == theirs.generate_until(requests("generate_until", arguments), disable_tqdm=True)


def test_an_official_task_scores_the_same(scorer, theirs, tmp_path):
    """Multiple choice with lm-eval's evaluator around both."""
    import json

    from lm_eval.evaluator import evaluate
    from lm_eval.tasks import TaskManager

    rows = [
        {"question": f"The {noun}", "choices": [" drops.", " grows every weight.", " x"], "gold": 1}
        for noun in ("mask", "layer", "tensor", "token", "batch", "window")
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "task": "choice",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(path)}, "cache_dir": str(tmp_path / "cache")},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{gold}}",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    }

    def scores(lm):
        loaded = TaskManager(include_defaults=False).load([task])
        results = evaluate(lm=lm, task_dict=loaded, bootstrap_iters=0)["results"]["choice"]
        return results["acc,none"], results["acc_norm,none"]

    assert scores(CausalLM(scorer)) == scores(theirs)


def test_hflm_reads_the_exported_folder(model_dir, scorer):
    lm = HFLM(pretrained=str(model_dir), batch_size=4, device="cpu")
    ours = CausalLM(scorer).loglikelihood(requests("loglikelihood", PAIRS[:2]))
    theirs = lm.loglikelihood(requests("loglikelihood", PAIRS[:2]), disable_tqdm=True)
    assert [nats for nats, _ in ours] == pytest.approx([nats for nats, _ in theirs], rel=1e-5)
